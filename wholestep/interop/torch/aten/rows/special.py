"""Special functions (Bessel, incomplete gamma, zeta, scaled erfc) and fake quantization."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.control.custom_gradient import custom_gradient_outputs, upstream_gradient
from wholestep.compiler.frontend.functions.special import _trigamma
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

# -- modified Bessel functions -----------------------------------------------------------------------------------

FAR = 30.0  # above it, TERMS terms of the asymptotic series are exact to float64
NODES, TERMS = 60, 15


def bessel(x: Tensor, order: int) -> Tensor:
    """e^-|x| Iₙ(x): near 0 the mean of e^(x cos θ) cos nθ over a circle, exact with few nodes."""
    size = ws.abs(x)
    far = size > FAR
    near = ws.where(far, 1.0, x)
    total: Any = 0.0
    for k in range(NODES // 2 + 1):
        weight = (1.0 if k in (0, NODES // 2) else 2.0) * math.cos(order * 2.0 * math.pi * k / NODES) / NODES
        total = total + weight * ws.exp(near * math.cos(2.0 * math.pi * k / NODES) - ws.abs(near))
    away = ws.where(far, size, FAR)
    factors = [-(4.0 * order**2 - (2 * k - 1) ** 2) / (8.0 * k) for k in range(1, TERMS)]
    series = 1.0 + factors[-1] / away
    for factor in factors[-2::-1]:
        series = 1.0 + factor / away * series
    large = series / ws.sqrt(2.0 * math.pi * away)
    return ws.where(far, ws.sign(x) * large if order % 2 else large, total)


def _register_bessel(names: Sequence[str], order: int, scaled: bool) -> None:
    @row(*names)
    def record(r: AtenRecorder, x: Any) -> Tensor:
        t = r.tensor(x, r.dtype)
        value = bessel(t, order)
        return value if scaled else value * ws.exp(ws.abs(t))


_register_bessel(("i0", "special_i0", "special_modified_bessel_i0"), 0, False)
_register_bessel(("special_i0e",), 0, True)
_register_bessel(("special_i1", "special_modified_bessel_i1"), 1, False)
_register_bessel(("special_i1e",), 1, True)

# -- zeta, and the derivatives of log Γ --------------------------------------------------------------------------

# coefficients B₂ⱼ / (2j)!, j = 1 ..., of the Euler-Maclaurin formula
_EULER = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600)
FIRST = 12  # terms that are summed directly before the formula is used


def zeta(s: Any, q: Tensor) -> Tensor:
    """The Hurwitz zeta function, Σ (q + k)^-s, for s > 1 and q > 0."""
    power = lambda base: base**-s if isinstance(s, int | float) else ws.exp(-s * ws.log(base))  # noqa: E731
    total = power(q)
    for k in range(1, FIRST):
        total = total + power(q + float(k))
    away = q + float(FIRST)
    last = power(away)
    total = total + last * away / (s - 1.0) + 0.5 * last
    rising, step = s * 1.0, last / away
    for j, factor in enumerate(_EULER, 1):
        total = total + factor * rising * step
        rising = rising * (s + 2.0 * j - 1.0) * (s + 2.0 * j)
        step = step / (away * away)
    return total


@row("special_zeta", refuses="s that is not above 1; the gradient is that of the series")
def _zeta(r: AtenRecorder, s: Any, q: Any) -> Tensor:
    kind = r.dtype
    exponent = float(s) if isinstance(s, int | float) else ws.stop_gradient(r.tensor(s, kind))
    at = r.tensor(q, kind)
    if not isinstance(exponent, float):
        return zeta(exponent, at)
    return zeta(exponent, at) if exponent > 1.0 else r.refuse(f"has s = {exponent}; the series needs s above 1")


@row("polygamma", "special_polygamma")
def _polygamma(r: AtenRecorder, *args: Any) -> Tensor:
    order, x = args if isinstance(args[0], int) else args[::-1]
    t = r.tensor(x, r.dtype)
    if order < 2:
        return ws.digamma(t) if order == 0 else _with_derivative(t, _trigamma, lambda v: -2.0 * zeta(3.0, v))
    return (-1.0) ** (order + 1) * math.factorial(order) * zeta(float(order + 1), t)


def _with_derivative(x: Tensor, function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    value = ws.stop_gradient(function(ws.stop_gradient(x)))
    arriving = upstream_gradient(value, 0)
    return custom_gradient_outputs("polygamma", [value], [arriving], [(x, arriving * slope(ws.stop_gradient(x)))])[0]


# -- incomplete gamma functions ----------------------------------------------------------------------------------

ROUNDS = 300  # terms of the series (x < a + 1) or the continued fraction: exact for a up to some thousands


def _incomplete(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The incomplete gamma functions P(a, x) and Q(a, x), with sum 1; the smaller one is computed directly."""
    below = x < a + 1.0
    inside = ws.where(below, x, 0.5 * a)

    def longer(carry: tuple[Tensor, Tensor, Tensor], _: Any) -> tuple[Any, Any]:
        term, total, n = carry
        term = term * inside / (n + 1.0)
        return (term, total + term, n + 1.0), ()

    _, series, _ = ws.scan(longer, (1.0 / a, 1.0 / a, a), None, length=ROUNDS)[0]
    away = ws.where(below, a + 2.0, x)
    tiny, start = 1e-30, away + 1.0 - a

    def deeper(carry: tuple[Tensor, Tensor, Tensor, Tensor], _: Any) -> tuple[Any, Any]:
        """The next term of the continued fraction by Lentz's method."""
        value, c, d, k = carry
        numerator, denominator = -k * (k - a), start + 2.0 * k
        d = denominator + numerator * d
        c = denominator + numerator / c
        c, d = (ws.where(ws.abs(v) < tiny, tiny, v) for v in (c, d))
        d = 1.0 / d
        return (value * c * d, c, d, k + 1.0), ()

    first = 1.0 / ws.where(ws.abs(start) < tiny, tiny, start)
    fraction = ws.scan(deeper, (first, ws.full_like(a, 1.0 / tiny), first, ws.ones_like(a)), None, length=ROUNDS)[0][0]
    scale = lambda z: ws.exp(a * ws.log(ws.maximum(z, 1e-300)) - z - ws.lgamma(a))  # noqa: E731
    lower, upper = series * scale(inside), fraction * scale(away)
    lower = ws.where(x <= 0.0, 0.0, lower)
    return ws.where(below, lower, 1.0 - upper), ws.where(below, 1.0 - lower, upper)


def _register_gamma(names: Sequence[str], which: int) -> None:
    @row(*names, refuses="a gradient of its first argument, which torch has none of either")
    def record(r: AtenRecorder, a: Any, x: Any) -> Tensor:
        first, second = (r.tensor(v, r.dtype).expand(*r.shape) for v in (a, x))
        order, at = ws.stop_gradient(first), ws.stop_gradient(second)
        value = ws.stop_gradient(_incomplete(order, at)[which])
        arriving = upstream_gradient(value, 0)
        density = ws.exp((order - 1.0) * ws.log(at) - at - ws.lgamma(order))
        slope = arriving * density * (-1.0 if which else 1.0)
        return custom_gradient_outputs(names[0], [value], [arriving], [(second, slope)])[0]


_register_gamma(("igamma", "special_gammainc"), 0)
_register_gamma(("igammac", "special_gammaincc"), 1)

# -- around erf --------------------------------------------------------------------------------------------------

WIDTH = 0.5  # step size of the midpoint rule below: its error is e^-(π / WIDTH)²


@row("special_erfcx")
def _erfcx(r: AtenRecorder, x: Any) -> Tensor:
    return scaled_erfc(r.tensor(x, r.dtype))


@row("special_log_ndtr")
def _log_ndtr(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    low = t < -1.0
    below, above = ws.where(low, t, -1.0), ws.where(low, 0.0, t)
    tail = ws.log(scaled_erfc(below * -math.sqrt(0.5)) * 0.5) - below * below * 0.5
    return ws.where(low, tail, ws.log1p(0.5 * (ws.erf(above * math.sqrt(0.5)) - 1.0)))


def scaled_erfc(t: Tensor) -> Tensor:
    """e^(x²) erfc(x): above 1 an integral by the midpoint rule, corrected for its pole."""
    large = t >= 1.0
    near, away = ws.where(large, 0.0, t), ws.where(large, t, 1.0)
    square = away * away
    total = 1.0 / square
    for n in range(1, 13):
        total = total + 2.0 * math.exp(-((n * WIDTH) ** 2)) / (square + (n * WIDTH) ** 2)
    inside = ws.where(away < math.pi / WIDTH, away, 1.0)
    pole = 2.0 * ws.exp(inside * inside) / (1.0 - ws.exp(2.0 * math.pi / WIDTH * inside))
    upper = total * away * (WIDTH / math.pi) + ws.where(away < math.pi / WIDTH, pole, 0.0)
    return ws.where(large, upper, ws.exp(near * near) * (1.0 - ws.erf(near)))


# -- numbers as few bits would hold them -------------------------------------------------------------------------


def _fake_quantize(r: AtenRecorder, x: Any, scale: Any, zero: Any, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Fake quantization: round to integer steps; the gradient passes inside the range."""
    t = r.tensor(x)
    # torch stores scales and their inverses in float32
    step = ws.stop_gradient(r.tensor(scale, "float32"))
    start = ws.stop_gradient(r.tensor(zero, t.dtype.name))
    inverse = (1.0 / step).astype(t.dtype)
    place = ws.stop_gradient(ws.round(t * inverse) + start)
    inside = (place >= float(low)) & (place <= float(high))
    value = ((ws.clip(place, float(low), float(high)) - start).astype("float32") * step).astype(t.dtype)
    return ws.where(inside, t + ws.stop_gradient(value - t), value), inside


@row("fake_quantize_per_tensor_affine", "fake_quantize_per_tensor_affine_cachemask")
def _per_tensor(r: AtenRecorder, x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    return _several(r, _fake_quantize(r, x, scale, zero, low, high))


@row("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def _per_tensor_where(r: AtenRecorder, x: Any, scale: Any, zero: Any, on: Any, low: int, high: int) -> Any:
    value, inside = _fake_quantize(r, x, scale, zero, low, high)
    is_on = r.tensor(on).astype("bool").reshape(())
    return ws.where(is_on, value, r.tensor(x)), inside


@row("fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask")
def _per_channel(r: AtenRecorder, x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    t = r.tensor(x)
    shape = tuple(e if d == axis % t.ndim else 1 for d, e in enumerate(t.shape))
    results = _fake_quantize(r, x, r.tensor(scale).reshape(shape), r.tensor(zero).reshape(shape), low, high)
    return _several(r, results)


def _several(r: AtenRecorder, results: tuple[Tensor, Tensor]) -> Any:
    return results[0] if isinstance(r.meta, torch.Tensor) else results
