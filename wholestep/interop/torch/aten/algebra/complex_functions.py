"""Functions of complex numbers, composed of real functions of their parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.algebra.complex import pair
from wholestep.interop.torch.aten.record import AtenRecorder, Pair
from wholestep.interop.torch.aten.table import row


def _times(a: Pair, b: Pair) -> Pair:
    return Pair(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)


def _even(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return 0.5 * (ws.exp(x) + ws.exp(-x))


def _odd(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return 0.5 * (ws.exp(x) - ws.exp(-x))


def _logarithm(z: Pair) -> Pair:
    return Pair(0.5 * ws.log(z.real * z.real + z.imag * z.imag), ws.atan2(z.imag, z.real))


def _exponential(z: Pair) -> Pair:
    size = ws.exp(z.real)
    return Pair(size * ws.cos(z.imag), size * ws.sin(z.imag))


def _inverse(z: Pair) -> Pair:
    size = z.real * z.real + z.imag * z.imag
    return Pair(z.real / size, -z.imag / size)


def _root(z: Pair) -> Pair:
    logarithm = _logarithm(z)
    return _exponential(Pair(0.5 * logarithm.real, 0.5 * logarithm.imag))


def _direction(z: Pair) -> Pair:
    """z / |z|, 0 at 0"""
    squared = z.real * z.real + z.imag * z.imag
    size = ws.where(squared == 0.0, 1.0, ws.sqrt(ws.where(squared == 0.0, 1.0, squared)))
    return Pair(z.real / size, z.imag / size)


def _hyperbolic_sine(z: Pair) -> Pair:
    return Pair(_odd(z.real) * ws.cos(z.imag), _even(z.real) * ws.sin(z.imag))


def _hyperbolic_cosine(z: Pair) -> Pair:
    return Pair(_even(z.real) * ws.cos(z.imag), _odd(z.real) * ws.sin(z.imag))


def _register(name: str, function: Callable[[Pair], Pair]) -> None:
    row(f"complex.{name}")(lambda r, x: function(pair(r, x)))


for _name, _function in {
    "exp": _exponential, "log": _logarithm, "reciprocal": _inverse, "sqrt": _root, "sgn": _direction,
    "sinh": _hyperbolic_sine, "cosh": _hyperbolic_cosine,
}.items():  # fmt: skip
    _register(_name, _function)
_register("sin", lambda z: Pair(ws.sin(z.real) * _even(z.imag), ws.cos(z.real) * _odd(z.imag)))
_register("cos", lambda z: Pair(ws.cos(z.real) * _even(z.imag), -ws.sin(z.real) * _odd(z.imag)))
_register("tanh", lambda z: _times(_hyperbolic_sine(z), _inverse(_hyperbolic_cosine(z))))


@row("complex.angle")
def _angle(r: AtenRecorder, x: Any) -> Tensor:
    z = x if isinstance(x, Pair) else pair(r, x)
    return ws.atan2(z.imag, z.real)


@row("angle")
def _angle_of_real(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return ws.where(t != t, t, ws.where(t < 0.0, math.pi, 0.0).astype(r.dtype))


@row("_neg_view", "_neg_view_copy")
def _negate(r: AtenRecorder, x: Any) -> Tensor:
    return -r.tensor(x)


@row("complex.pow.Tensor_Scalar", refuses="complex powers")
def _pow(r: AtenRecorder, x: Any, power: Any) -> Pair:
    z = pair(r, x)
    if isinstance(power, complex):
        r.refuse("has a complex power")
    if float(power).is_integer() and 0 < abs(power) <= 8:
        return reduce(_times, [z if power > 0 else _inverse(z)] * int(abs(power)))
    z = _logarithm(z)
    return _exponential(Pair(z.real * float(power), z.imag * float(power)))
