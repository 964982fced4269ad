"""Elementwise functions of PyTorch: operators by name, and compositions of one line."""

from __future__ import annotations

import math

from wholestep.compiler.frontend.functions import elementwise, primitives
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, pointwise, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import boolean
from wholestep.errors import OptionError

__all__ = [
    "add", "addcdiv", "addcmul", "bernoulli", "clamp_max", "clamp_min", "cosh", "deg2rad", "div", "eq", "erfc",
    "fmod", "frac", "ge", "gt", "heaviside", "hypot", "identity", "le", "logaddexp", "logical_and", "logical_not",
    "logical_or", "logit", "lt", "mul", "nan_to_num", "ne", "neg", "rad2deg", "rand_like", "randn_like", "sinh",
    "sub", "tan", "xlogy",
]  # fmt: skip


# -- operators ---------------------------------------------------------------------------------------------------------


def add(x: Operand, y: Operand, alpha: float = 1) -> Tensor:
    """x + alpha · y"""
    return as_tensor(x) + (y if alpha == 1 else as_tensor(y) * alpha)


def sub(x: Operand, y: Operand, alpha: float = 1) -> Tensor:
    """x - alpha · y"""
    return as_tensor(x) - (y if alpha == 1 else as_tensor(y) * alpha)


def mul(x: Operand, y: Operand) -> Tensor:
    """x · y"""
    return as_tensor(x) * y


def div(x: Operand, y: Operand, rounding_mode: str | None = None) -> Tensor:
    """x / y; rounded down with "floor", towards 0 with "trunc"."""
    if rounding_mode not in (None, "floor", "trunc"):
        fail(OptionError, f"div: rounding_mode is None, 'floor' or 'trunc'; received {rounding_mode!r}.")
    if rounding_mode is not None and as_tensor(x).dtype.is_integer:
        down = as_tensor(x) // y
        if rounding_mode == "floor":
            return down
        return where((down < 0) & (down * y != x), down + 1, down)
    quotient = as_tensor(x) / y
    if rounding_mode is None:
        return quotient
    return primitives.floor(quotient) if rounding_mode == "floor" else elementwise.trunc(quotient)


def neg(x: Operand) -> Tensor:
    """-x"""
    return -as_tensor(x)


def identity(x: Tensor, *_: object, **__: object) -> Tensor:
    """x itself: tensors are immutable and have no memory of their own."""
    return x


def eq(x: Operand, y: Operand) -> Tensor:
    """x == y"""
    return as_tensor(x) == y


def ne(x: Operand, y: Operand) -> Tensor:
    """x != y"""
    return as_tensor(x) != y


def lt(x: Operand, y: Operand) -> Tensor:
    """x < y"""
    return as_tensor(x) < y


def le(x: Operand, y: Operand) -> Tensor:
    """x <= y"""
    return as_tensor(x) <= y


def gt(x: Operand, y: Operand) -> Tensor:
    """x > y"""
    return as_tensor(x) > y


def ge(x: Operand, y: Operand) -> Tensor:
    """x >= y"""
    return as_tensor(x) >= y


def _truth(x: Operand) -> Tensor:
    t = as_tensor(x)
    return t if t.dtype == boolean else t != 0


def logical_and(x: Operand, y: Operand) -> Tensor:
    """Are both not 0?"""
    return _truth(x) & _truth(y)


def logical_or(x: Operand, y: Operand) -> Tensor:
    """Is one of them not 0?"""
    return _truth(x) | _truth(y)


def logical_not(x: Operand) -> Tensor:
    """Is it 0?"""
    return ~_truth(x)


# -- one element at a time ---------------------------------------------------------------------------------------------


def tan(x: Operand) -> Tensor:
    """sin x / cos x"""
    return primitives.sin(x) / primitives.cos(x)


def sinh(x: Operand) -> Tensor:
    """(eˣ - e⁻ˣ) / 2, exact near 0"""
    return 0.5 * (primitives.expm1(x) - primitives.expm1(-as_tensor(x)))


def cosh(x: Operand) -> Tensor:
    """(eˣ + e⁻ˣ) / 2"""
    return 0.5 * (primitives.exp(x) + primitives.exp(-as_tensor(x)))


def erfc(x: Operand) -> Tensor:
    """1 - erf x"""
    return 1.0 - primitives.erf(x)


def logit(x: Operand, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), with x clamped to [eps, 1 - eps] if eps is given."""
    t = as_tensor(x) if eps is None else elementwise.clip(x, eps, 1.0 - eps)
    return primitives.log(t) - primitives.log1p(-t)


def xlogy(x: Operand, y: Operand) -> Tensor:
    """x · log y, 0 where x is 0"""
    t, u = as_tensor(x), as_tensor(y)
    nothing = (t == 0) & (u <= 0)
    return where(nothing, 0.0, t * primitives.log(where(nothing, 1.0, u)))


def logaddexp(x: Operand, y: Operand) -> Tensor:
    """log(eˣ + eʸ), finite for finite numbers"""
    t = as_tensor(x)
    return pointwise("maximum", t, y) + primitives.log1p(primitives.exp(-abs(t - y)))


def hypot(x: Operand, y: Operand) -> Tensor:
    """√(x² + y²)"""
    return (elementwise.square(x) + elementwise.square(y)).sqrt()


def deg2rad(x: Operand) -> Tensor:
    """Degrees as radians."""
    return as_tensor(x) * (math.pi / 180.0)


def rad2deg(x: Operand) -> Tensor:
    """Radians as degrees."""
    return as_tensor(x) * (180.0 / math.pi)


def frac(x: Operand) -> Tensor:
    """The fractional part of x, with x's sign."""
    return as_tensor(x) - elementwise.trunc(x)


def fmod(x: Operand, y: Operand) -> Tensor:
    """The remainder of x / y with x's sign."""
    t = as_tensor(x)
    rest = pointwise("mod", abs(t), abs(as_tensor(y)))
    return where(t < 0, -rest, rest)


def heaviside(x: Operand, values: Operand) -> Tensor:
    """0 below 0, 1 above, `values` at 0"""
    t = as_tensor(x)
    return where(t == 0, values, (t > 0).astype(t.dtype))


def clamp_min(x: Operand, min: Operand) -> Tensor:
    """max(x, min): x, but at least min."""
    return elementwise.clip(x, min)


def clamp_max(x: Operand, max: Operand) -> Tensor:
    """min(x, max): x, but at most max."""
    return elementwise.clip(x, None, max)


def nan_to_num(x: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """x with finite numbers in place of NaN and infinities"""
    t = as_tensor(x)
    if not t.dtype.is_float:
        return t
    largest = t.dtype.largest
    t = where(elementwise.isnan(t), nan, t)
    t = where(t == math.inf, largest if posinf is None else posinf, t)
    return where(t == -math.inf, -largest if neginf is None else neginf, t)


def addcmul(x: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Tensor:
    """x + value · tensor1 · tensor2"""
    return as_tensor(x) + as_tensor(tensor1) * tensor2 * value


def addcdiv(x: Operand, tensor1: Operand, tensor2: Operand, value: float = 1) -> Tensor:
    """x + value · tensor1 / tensor2"""
    return as_tensor(x) + as_tensor(tensor1) / tensor2 * value


def rand_like(x: Tensor) -> Tensor:
    """Uniform numbers in [0, 1) of x's shape and dtype, new in every step."""
    return primitives.random_uniform(x, x.shape, dtype=x.dtype)


def randn_like(x: Tensor) -> Tensor:
    """Normal numbers of x's shape and dtype, new in every step."""
    return primitives.random_normal(x, x.shape, dtype=x.dtype)


def bernoulli(x: Tensor) -> Tensor:
    """1 with probability x, else 0, drawn anew in every step; x gets no gradient."""
    return (rand_like(x) < primitives.stop_gradient(x)).astype(x.dtype)
