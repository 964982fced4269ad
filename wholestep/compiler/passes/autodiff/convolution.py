"""Gradient rules of convolution and max pooling.

A convolution and its two gradients are the three partial derivatives of one trilinear form, so the gradients of each
are the other two.  The argmax of a pool is piecewise constant: its adjoint is linear, and so is the adjoint of that.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import image_dims
from wholestep.compiler.passes.autodiff.pointwise import Gradients


def _size(images: Node, last: bool) -> tuple[int, int]:
    _, _, (height, width) = image_dims(images.type, last)
    assert isinstance(height, int), "type rules require integer extents"
    assert isinstance(width, int), "type rules require integer extents"
    return height, width


def _adjoint(op: str, inputs: tuple[Node, Node], a: at.ConvAttrs, like: Node) -> Node:
    size = _size(like, a.last)
    return b.make(op, inputs, at.ConvGradAttrs(a.stride, a.low, a.high, a.dilation, a.groups, a.last, size))


# y = x * w:  dx = conv_grad_input(g, w), dw = conv_grad_weight(x, g)
def conv2d_rule(y: Node, g: Node) -> Gradients:
    (x, w), a = y.inputs, attrs_of(y, at.ConvAttrs)
    g = b.cast(g, x.type.dtype)
    return _adjoint("conv2d_grad_input", (g, w), a, x), _adjoint("conv2d_grad_weight", (x, g), a, w)


# y(u, w) is bilinear, h is the upstream gradient:  du = h * w, dw = conv_grad_weight(h, u)
def conv2d_grad_input_rule(y: Node, h: Node) -> Gradients:
    (u, w), a = y.inputs, attrs_of(y, at.ConvGradAttrs).forward
    h = b.cast(h, u.type.dtype)
    return b.make("conv2d", (h, w), a), _adjoint("conv2d_grad_weight", (h, u), a, w)


# y(x, u) is bilinear, h is the upstream gradient, of a weight's shape:  dx = conv_grad_input(u, h), du = x * h
def conv2d_grad_weight_rule(y: Node, h: Node) -> Gradients:
    (x, u), a = y.inputs, attrs_of(y, at.ConvGradAttrs).forward
    h = b.cast(h, u.type.dtype)
    return _adjoint("conv2d_grad_input", (u, h), a, x), b.make("conv2d", (x, h), a)


# y = max over each window:  dx = g at the first maximum, 0 elsewhere
def max_pool2d_rule(y: Node, g: Node) -> Gradients:
    (x,), a = y.inputs, attrs_of(y, at.PoolAttrs)
    return (_pool_gradient(g, b.make("max_pool2d_index", (x,), a), a, x),)


def _pool_gradient(g: Node, index: Node, a: at.PoolAttrs, like: Node) -> Node:
    size = _size(like, a.last)
    return b.make("max_pool2d_grad", (g, index), at.PoolGradAttrs(a.window, a.stride, a.low, a.high, a.last, size))


# y = u at the given positions, 0 elsewhere:  du = h at those positions
def max_pool2d_grad_rule(y: Node, h: Node) -> Gradients:
    return b.make("max_pool2d_pick", (h, y.inputs[1]), attrs_of(y, at.PoolGradAttrs).forward), None


# y = x at the given positions:  dx = g there, 0 elsewhere
def max_pool2d_pick_rule(y: Node, g: Node) -> Gradients:
    x, index = y.inputs
    return _pool_gradient(g, index, attrs_of(y, at.PoolAttrs), x), None
