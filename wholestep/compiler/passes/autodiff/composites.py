"""Gradient rules of the composites: cheaper and more stable than differentiating their decompositions.  y is the node,
g the upstream gradient of its output."""

from __future__ import annotations

from math import pi, sqrt

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.autodiff.pointwise import Gradients


# y = max(x, 0):  dx = g if y > 0, else 0;  at 0: 0
def relu_rule(y: Node, g: Node) -> Gradients:
    zero = b.zeros_like(y)
    return (b.where(b.less(zero, y), g, zero),)


# y = 1/(1 + e⁻ˣ):  dx = g·y·(1 - y)
def sigmoid_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, b.mul(y, _one_minus(y))),)


# y = tanh x:  dx = g·(1 - y²)
def tanh_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, _one_minus(b.mul(y, y))),)


# y = x·s with s = sigmoid(x):  dx = g·(s + y·(1 - s))
def silu_rule(y: Node, g: Node) -> Gradients:
    s = b.unary("sigmoid", y.inputs[0])
    return (b.mul(g, b.add(s, b.mul(y, _one_minus(s)))),)


# y = log(1 + eˣ):  dx = g·sigmoid(x)
def softplus_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, b.unary("sigmoid", y.inputs[0])),)


# exact:  y = x·Φ(x):  dx = g·(Φ(x) + x·φ(x)) with Φ(x) = (1 + erf(x/√2))/2, φ(x) = exp(-x²/2)/√(2π)
# tanh:   y = x·(1 + t)/2, t = tanh(u), u = √(2/π)·(x + 0.044715·x³):
#         dx = g·((1 + t)/2 + x·(1 - t²)/2·u'), u' = √(2/π)·(1 + 3·0.044715·x²)
def gelu_rule(y: Node, g: Node) -> Gradients:
    (x,) = y.inputs
    square = b.mul(x, x)
    if attrs_of(y, at.GeluAttrs).approximate:
        # u is the same expression as in the forward pass, so that CSE shares one tanh
        u = b.scale(b.add(x, b.scale(b.mul(square, x), 0.044715)), sqrt(2 / pi))
        t = b.unary("tanh", u)
        slope = b.shift(b.scale(square, sqrt(2 / pi) * 3 * 0.044715), sqrt(2 / pi))
        gate = b.scale(b.shift(t, 1), 0.5)
        density = b.mul(b.scale(_one_minus(b.mul(t, t)), 0.5), slope)
    else:
        gate = b.scale(b.shift(b.unary("erf", b.scale(x, sqrt(0.5))), 1), 0.5)
        density = b.scale(b.unary("exp", b.scale(square, -0.5)), 1 / sqrt(2 * pi))
    return (b.mul(g, b.add(gate, b.mul(x, density))),)


# z = max(x, 0) - x·y + log(1 + e^-|x|):  dx = g·(sigmoid(x) - y), dy = -g·x
def bce_rule(z: Node, g: Node) -> Gradients:
    x, y = z.inputs
    return b.mul(g, b.sub(b.unary("sigmoid", x), y)), b.neg(b.mul(g, x))


def _one_minus(x: Node) -> Node:
    return b.sub(b.full_like(x, 1), x)


# y = softmax x:  dx = y·(g - Σ g·y)
def softmax_rule(y: Node, g: Node) -> Gradients:
    axes = (attrs_of(y, at.SoftmaxAttrs).axis,)
    inner = b.sum_axes(b.mul(g, y), axes)
    return (b.mul(y, b.sub(g, b.restore_axes(inner, axes, y.type.shape))),)


# y = log softmax x:  dx = g - eʸ·Σ g
def log_softmax_rule(y: Node, g: Node) -> Gradients:
    axes = (attrs_of(y, at.SoftmaxAttrs).axis,)
    total = b.restore_axes(b.sum_axes(g, axes), axes, y.type.shape)
    return (b.sub(g, b.mul(b.unary("exp", y), total)),)


# y = log Σ eˣ:  dx = g·e^(x - y)
def logsumexp_rule(y: Node, g: Node) -> Gradients:
    (x,), axes = y.inputs, (attrs_of(y, at.SoftmaxAttrs).axis,)
    probability = b.unary("exp", b.sub(x, b.restore_axes(y, axes, x.type.shape)))
    return (b.mul(probability, b.restore_axes(g, axes, x.type.shape)),)


# y = -log softmax(x)[label]:  dx = (softmax x - onehot(label))·g
def cross_entropy_rule(y: Node, g: Node) -> Gradients:
    x, labels = y.inputs
    axis = x.type.rank - 1
    onehot = b.where(b.one_hot_mask(labels, x.type.shape[axis]), b.full_like(x, 1), b.zeros_like(x))
    return b.mul(b.sub(b.softmax(x, axis), onehot), b.restore_axes(g, (axis,), x.type.shape)), None


# y = norm(x, weight, bias): all gradients are results of one op; results without readers cost nothing
def norm_rule(y: Node, g: Node) -> Gradients:
    return b.results(f"{y.op}_grad", (*y.inputs[:2], g), y.attrs)[: len(y.inputs)]


def attention_rule(y: Node, g: Node) -> Gradients:
    lse = b.make("attention_lse", y.inputs, y.attrs)
    return b.results("attention_grad", (*y.inputs, lse, b.cast(g, y.inputs[0].type.dtype)), y.attrs)


# y = x/(1 - rate) if kept, else 0:  dx = the same function of g;  drate = 0, the gradient of the mean over all masks
def dropout_rule(y: Node, g: Node) -> Gradients:
    rate = y.inputs[1]
    return b.make("dropout", (g, rate), y.attrs), b.zeros_like(rate)
