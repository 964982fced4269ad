"""Functions of complex numbers, composed of real functions of their parts."""

from __future__ import annotations

import math
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


@row("complex.log")
def _log(r: AtenRecorder, x: Any) -> Pair:
    return _logarithm(pair(r, x))


@row("complex.sqrt")
def _sqrt(r: AtenRecorder, x: Any) -> Pair:
    z = _logarithm(pair(r, x))
    return _exponential(Pair(0.5 * z.real, 0.5 * z.imag))


@row("complex.reciprocal")
def _reciprocal(r: AtenRecorder, x: Any) -> Pair:
    return _inverse(pair(r, x))


@row("complex.pow.Tensor_Scalar", refuses="complex powers")
def _pow(r: AtenRecorder, x: Any, power: Any) -> Pair:
    z = pair(r, x)
    if isinstance(power, complex):
        r.refuse("has a complex power")
    if float(power).is_integer() and 0 < abs(power) <= 8:
        base = z if power > 0 else _inverse(z)
        found = base
        for _ in range(int(abs(power)) - 1):
            found = _times(found, base)
        return found
    z = _logarithm(z)
    return _exponential(Pair(z.real * float(power), z.imag * float(power)))


@row("complex.sgn")
def _sgn(r: AtenRecorder, x: Any) -> Pair:
    z = pair(r, x)
    squared = z.real * z.real + z.imag * z.imag
    size = ws.where(squared == 0.0, 1.0, ws.sqrt(ws.where(squared == 0.0, 1.0, squared)))
    return Pair(z.real / size, z.imag / size)


@row("complex.sin")
def _sin(r: AtenRecorder, x: Any) -> Pair:
    z = pair(r, x)
    return Pair(ws.sin(z.real) * _even(z.imag), ws.cos(z.real) * _odd(z.imag))


@row("complex.cos")
def _cos(r: AtenRecorder, x: Any) -> Pair:
    z = pair(r, x)
    return Pair(ws.cos(z.real) * _even(z.imag), -ws.sin(z.real) * _odd(z.imag))


@row("complex.sinh")
def _sinh(r: AtenRecorder, x: Any) -> Pair:
    z = pair(r, x)
    return Pair(_odd(z.real) * ws.cos(z.imag), _even(z.real) * ws.sin(z.imag))


@row("complex.cosh")
def _cosh(r: AtenRecorder, x: Any) -> Pair:
    z = pair(r, x)
    return Pair(_even(z.real) * ws.cos(z.imag), _odd(z.real) * ws.sin(z.imag))


@row("complex.tanh")
def _tanh(r: AtenRecorder, x: Any) -> Pair:
    return _times(_sinh(r, x), _inverse(_cosh(r, x)))
