"""Elementwise functions composed of primitives, and bitwise functions of integers."""

from __future__ import annotations

import math

from wholestep.compiler.frontend.functions.primitives import floor, log
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, pointwise, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import boolean
from wholestep.errors import DTypeError, OptionError

__all__ = [
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "ceil", "clip", "floor_divide", "isfinite", "isinf",
    "isnan", "left_shift", "lerp", "log10", "logical_xor", "masked_fill", "pow", "right_shift", "round", "rsqrt",
    "square", "trunc",
]  # fmt: skip


def clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x limited to [min, max], either of which may be omitted; outside, the gradient is 0.

    At the limits themselves the gradient passes to x, as in torch.  Example: `ws.clip(5.0, 0.0, 1.0)` is 1.
    """
    if min is None and max is None:
        fail(OptionError, "clip needs min=, max= or both.")
    out = as_tensor(x)
    if min is not None:
        out = where(out < min, min, out)
    return out if max is None else where(out > max, max, out)


def pow(x: Operand, exponent: Operand) -> Tensor:
    """x to a power, as `x ** exponent`.  Example: `ws.pow(2.0, 3.0)` is 8."""
    return as_tensor(x) ** exponent


def square(x: Operand) -> Tensor:
    """x · x.  Example: `ws.square(3.0)` is 9."""
    t = as_tensor(x)
    return t * t


def rsqrt(x: Operand) -> Tensor:
    """1 / √x.  Example: `ws.rsqrt(4.0)` is 0.5."""
    return as_tensor(x).sqrt().recip()


def log10(x: Operand) -> Tensor:
    """The logarithm to base 10.  Example: `ws.log10(100.0)` is 2."""
    return log(x) * (1.0 / math.log(10.0))


def ceil(x: Operand) -> Tensor:
    """The smallest integer that is not less than x.  Example: `ws.ceil(1.5)` is 2."""
    return -floor(-as_tensor(x))


def trunc(x: Operand) -> Tensor:
    """x without its fraction.  Example: `ws.trunc(-1.5)` is -1."""
    t = as_tensor(x)
    return where(t < 0, ceil(t), floor(t))


def round(x: Operand) -> Tensor:
    """The nearest integer, ties to even, as in NumPy and torch.  Example: `ws.round(2.5)` is 2."""
    t = as_tensor(x)
    below = floor(t)
    fraction, odd = t - below, below - 2.0 * floor(below * 0.5)  # the fraction, and 1 if the floor is odd
    return where((fraction > 0.5) | ((fraction == 0.5) & (odd == 1)), below + 1, below)


def floor_divide(x: Operand, y: Operand) -> Tensor:
    """The largest integer that is not greater than x / y, as `x // y`; integer division by 0 gives 0, as in NumPy.

    For floats it is (x - x mod y) / y, so that integer quotients are exact.  Example: `ws.floor_divide(7.0, 2.0)` is 3.
    """
    t = as_tensor(x)
    if t.dtype.is_integer:
        return pointwise("floor_divide", t, y)
    if not t.dtype.is_float:
        fail(DTypeError, f"floor_divide needs numbers; received {t.node.type}. Cast it first: x.astype('float32').")
    return floor((t - pointwise("mod", t, y)) / y + 0.5)


def lerp(start: Operand, end: Operand, weight: Operand) -> Tensor:
    """start + weight · (end - start).  Example: `ws.lerp(0.0, 10.0, 0.3)` is 3."""
    first = as_tensor(start)
    return first + (as_tensor(end) - first) * weight


def masked_fill(x: Operand, mask: Operand, value: Operand) -> Tensor:
    """x with `value` where the mask is True.  Example: `ws.masked_fill(scores, hidden, -1e9)`."""
    return where(mask, value, x)


def isnan(x: Operand) -> Tensor:
    """Is each element not a number?  Example: `ws.isnan(0.0)` is False."""
    t = as_tensor(x)
    return t != t


def isinf(x: Operand) -> Tensor:
    """Is each element infinite, of either sign?  Example: `ws.isinf(0.0)` is False."""
    return abs(as_tensor(x)) == math.inf


def isfinite(x: Operand) -> Tensor:
    """Is each element neither infinite nor NaN?  Example: `ws.isfinite(0.0)` is True."""
    return abs(as_tensor(x)) < math.inf


def logical_xor(x: Operand, y: Operand) -> Tensor:
    """Is exactly one of two bool tensors True?  Example: `ws.logical_xor(a > 0, b > 0)`."""
    t = as_tensor(x)
    if t.dtype != boolean:
        fail(DTypeError, f"logical_xor needs bool tensors; received {t.node.type}. Compare it first: x != 0.")
    return t != as_tensor(y)


def bitwise_and(x: Operand, y: Operand) -> Tensor:
    """Bitwise and, as `x & y`; of bool tensors the logical and.  Example: `ws.bitwise_and(6, 3)` is 2."""
    return as_tensor(x) & y


def bitwise_or(x: Operand, y: Operand) -> Tensor:
    """Bitwise or, as `x | y`.  Example: `ws.bitwise_or(6, 3)` is 7."""
    return as_tensor(x) | y


def bitwise_xor(x: Operand, y: Operand) -> Tensor:
    """Bitwise exclusive or, as `x ^ y`.  Example: `ws.bitwise_xor(6, 3)` is 5."""
    return as_tensor(x) ^ y


def bitwise_not(x: Operand) -> Tensor:
    """Bitwise complement, as `~x`.  Example: `ws.bitwise_not(6)` is -7."""
    return ~as_tensor(x)


def left_shift(x: Operand, y: Operand) -> Tensor:
    """x · 2ʸ without the overflowing bits, as `x << y`; 0 if y is negative or not less than the number of bits.

    Example: `ws.left_shift(3, 2)` is 12.
    """
    return as_tensor(x) << y


def right_shift(x: Operand, y: Operand) -> Tensor:
    """⌊x / 2ʸ⌋, as `x >> y`; only the sign remains if y is negative or not less than the number of bits.

    Example: `ws.right_shift(12, 2)` is 3.
    """
    return as_tensor(x) >> y
