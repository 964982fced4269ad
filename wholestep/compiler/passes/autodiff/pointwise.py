"""Gradient rules of the elementwise primitives.  y is the node, g the upstream gradient of its output.

Constant factors multiply g first: g is often a broadcast scalar, and then so is the product.
"""

from __future__ import annotations

from math import log, pi, sqrt

from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import Node

Gradients = tuple[Node | None, ...]

# -- pointwise, one input ----------------------------------------------------------------------------------------


# y = -x:  dx = -g
def neg_rule(y: Node, g: Node) -> Gradients:
    return (b.neg(g),)


# y = |x|:  dx = g·sign(x);  at 0: 0, since sign(0) = 0
def abs_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, b.unary("sign", y.inputs[0])),)


# y = eˣ:  dx = g·y
def exp_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, y),)


# y = 2ˣ:  dx = g·y·ln 2
def exp2_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(b.scale(g, log(2)), y),)


# y = eˣ - 1:  dx = g·(y + 1)
def expm1_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, b.shift(y, 1)),)


# y = ln x:  dx = g / x
def log_rule(y: Node, g: Node) -> Gradients:
    return (b.div(g, y.inputs[0]),)


# y = log₂ x:  dx = g / (x·ln 2)
def log2_rule(y: Node, g: Node) -> Gradients:
    return (b.div(b.scale(g, 1 / log(2)), y.inputs[0]),)


# y = ln(1 + x):  dx = g / (1 + x)
def log1p_rule(y: Node, g: Node) -> Gradients:
    return (b.div(g, b.shift(y.inputs[0], 1)),)


# y = sin x:  dx = g·cos x
def sin_rule(y: Node, g: Node) -> Gradients:
    return (b.mul(g, b.unary("cos", y.inputs[0])),)


# y = cos x:  dx = -g·sin x
def cos_rule(y: Node, g: Node) -> Gradients:
    return (b.neg(b.mul(g, b.unary("sin", y.inputs[0]))),)


# y = √x:  dx = g / 2y;  at 0: infinite (NaN if g = 0), which is the limit.  A loss whose argument can be 0 guards it
# itself, as rmse does.
def sqrt_rule(y: Node, g: Node) -> Gradients:
    return (b.div(b.scale(g, 0.5), y),)


# y = 1/x:  dx = -g·y²
def recip_rule(y: Node, g: Node) -> Gradients:
    return (b.neg(b.mul(g, b.mul(y, y))),)


# y = erf x:  dx = g·2/√π·exp(-x²)
def erf_rule(y: Node, g: Node) -> Gradients:
    (x,) = y.inputs
    return (b.mul(b.scale(g, 2 / sqrt(pi)), b.unary("exp", b.neg(b.mul(x, x)))),)


# y = atan x:  dx = g / (1 + x²)
def atan_rule(y: Node, g: Node) -> Gradients:
    (x,) = y.inputs
    return (b.div(g, b.shift(b.mul(x, x), 1)),)


# y = x in another float dtype:  dx = g in the dtype of x's gradient
def cast_rule(y: Node, g: Node) -> Gradients:
    return (b.cast(g, y.inputs[0].type.dtype.accumulate),)


# -- pointwise, two and three inputs -----------------------------------------------------------------------------


# y = a + c:  da = g, dc = g
def add_rule(y: Node, g: Node) -> Gradients:
    return g, g


# y = a - c:  da = g, dc = -g
def sub_rule(y: Node, g: Node) -> Gradients:
    return g, b.neg(g)


# y = a·c:  da = g·c, dc = g·a
def mul_rule(y: Node, g: Node) -> Gradients:
    a, c = y.inputs
    return b.mul(g, c), b.mul(g, a)


# y = a/c:  da = g/c, dc = -(g/c)·y.  Also for `ratio`: there g and c are scalars; g/c is a host expression if c is one
# (the number of elements), and is broadcast to the numerator's elements afterwards.
def div_rule(y: Node, g: Node) -> Gradients:
    da = b.div(g, y.inputs[1])
    return da, b.neg(b.mul(da, y))


# y = a^c:  da = g·c·a^(c-1), 0 if c = 0 (also at a = 0);
#           dc = g·y·ln a, 0 if a = 0 and c ≥ 0 (the limit; ln 0 would give NaN)
def pow_rule(y: Node, g: Node) -> Gradients:
    a, c = y.inputs
    zero = b.zeros_like(a)
    da = b.mul(b.mul(g, c), b.power(a, b.shift(c, -1)))
    exponent = b.constant_value(c)
    if exponent is None:
        da = b.where(b.equal(c, zero), zero, da)
    elif exponent == 0:
        da = zero
    at_limit = b.make("logical_and", (b.equal(a, zero), b.make("less_equal", (zero, c))))
    # ln of 1 in place of ln 0: the discarded branch must be finite, or its own gradient is NaN.
    logarithm = b.unary("log", b.where(at_limit, b.full_like(a, 1), a))
    return da, b.mul(g, b.mul(y, logarithm))


# y = max(a, c):  da = g if a > c, g/2 if a = c, else 0; dc = the same with a and c exchanged
def maximum_rule(y: Node, g: Node) -> Gradients:
    a, c = y.inputs
    return _to_winner(g, c, a), _to_winner(g, a, c)


# y = min(a, c):  da = g if a < c, g/2 if a = c, else 0; dc = the same with a and c exchanged
def minimum_rule(y: Node, g: Node) -> Gradients:
    a, c = y.inputs
    return _to_winner(g, a, c), _to_winner(g, c, a)


def _to_winner(g: Node, smaller: Node, larger: Node) -> Node:
    tie = b.where(b.equal(smaller, larger), b.scale(g, 0.5), b.zeros_like(g))
    return b.where(b.less(smaller, larger), g, tie)


# y = x in training, z in evaluation:  dx = g; gradients exist in training only
def by_mode_rule(y: Node, g: Node) -> Gradients:
    return g, None


# y = c ? p : q:  dp = c ? g : 0, dq = c ? 0 : g.  `where`, not a product: 0·∞ must not reach the other branch.
def where_rule(y: Node, g: Node) -> Gradients:
    c, zero = y.inputs[0], b.zeros_like(g)
    return None, b.where(c, g, zero), b.where(c, zero, g)
