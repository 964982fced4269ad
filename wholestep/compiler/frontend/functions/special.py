"""lgamma, digamma and erfinv, composed of primitives: Stirling series with recurrence, and polynomials with Newton."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from wholestep.compiler.frontend.control.custom_gradient import custom_gradient
from wholestep.compiler.frontend.functions.primitives import cos, erf, exp, floor, log, sin
from wholestep.compiler.frontend.functions.statistics import float_tensor
from wholestep.compiler.frontend.functions.trigonometry import with_derivative
from wholestep.compiler.frontend.tensor import Operand, Tensor, where

__all__ = ["digamma", "erfinv", "lgamma"]

SHIFT = 8  # Stirling's series is used for x ≥ SHIFT; the recurrence shifts smaller x into that range

# Coefficients of Stirling's series for log Γ: B₂ₖ / (2k (2k - 1)) for k = 1, 2, ...
_GAMMA = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)
# Coefficients of the series for its derivative: B₂ₖ / 2k
_DIGAMMA = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
# Coefficients of the series for its second derivative: B₂ₖ
_TRIGAMMA = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def _polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """The polynomial c₀ + c₁x + c₂x² + ..."""
    total = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        total = total * x + c
    return total


def _reflect(x: Tensor, above: Callable[[Tensor], Tensor], below: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The reflection formula: above(x) for x ≥ ½, and below(x, above(1 - x)) otherwise."""
    is_reflected = x < 0.5
    value = above(where(is_reflected, 1.0 - x, x))
    return where(is_reflected, below(where(is_reflected, x, 0.25), value), value)


def _shift_series(x: Tensor, series: Callable[[Tensor], Tensor], term: Callable[[Tensor], Tensor]) -> Tensor:
    """f(x) = series(x + SHIFT) - Σ term(x + i) for small x; series(x) otherwise."""
    small = x < SHIFT
    near = where(small, x, 1.0)
    total = term(near)
    for i in range(1, SHIFT):
        total = total + term(near + float(i))
    return where(small, series(where(small, near + float(SHIFT), x)) - total, series(where(small, float(SHIFT), x)))


def lgamma(x: Operand) -> Tensor:
    """log |Γ(x)|, infinite at 0, -1, -2 ...; its gradient is `ws.digamma`.  Example: `ws.lgamma(5.0)` is log 24."""

    def series(z: Tensor) -> Tensor:
        r = z.recip()
        return (z - 0.5) * log(z) - z + 0.5 * math.log(2.0 * math.pi) + r * _polynomial(r * r, _GAMMA)

    def above(x: Tensor) -> Tensor:
        small = x < SHIFT
        near = where(small, x, 1.0)
        product = near
        for i in range(1, SHIFT):
            product = product * (near + float(i))
        return where(small, series(near + float(SHIFT)) - log(product), series(where(small, float(SHIFT), x)))

    def below(x: Tensor, reflected: Tensor) -> Tensor:
        return math.log(math.pi) - log(abs(sin(math.pi * (x - floor(x))))) - reflected

    t = float_tensor("lgamma", x)
    return with_derivative(t, lambda x: _reflect(x, above, below), digamma)


def digamma(x: Operand) -> Tensor:
    """The derivative of log Γ(x).  Example: `ws.digamma(1.0)` is -0.5772, Euler's constant with a minus."""

    def series(z: Tensor) -> Tensor:
        r = z.recip()
        return log(z) - 0.5 * r - r * r * _polynomial(r * r, _DIGAMMA)

    def below(x: Tensor, reflected: Tensor) -> Tensor:
        angle = math.pi * (x - floor(x))
        return reflected - math.pi * cos(angle) / sin(angle)

    t = float_tensor("digamma", x)
    return with_derivative(
        t, lambda x: _reflect(x, lambda z: _shift_series(z, series, lambda v: v.recip()), below), _trigamma
    )


def _trigamma(x: Tensor) -> Tensor:
    def series(z: Tensor) -> Tensor:
        r = z.recip()
        return r + 0.5 * r * r + r * r * r * _polynomial(r * r, _TRIGAMMA)

    def above(z: Tensor) -> Tensor:
        return _shift_series(z, series, lambda v: -(v * v).recip())

    def below(x: Tensor, reflected: Tensor) -> Tensor:
        sine = sin(math.pi * (x - floor(x)))
        return math.pi**2 / (sine * sine) - reflected

    return _reflect(x, above, below)


# Single-precision coefficients from Giles (2010), "Approximating the erfinv function"
_MIDDLE = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_TAIL = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322, 0.000100950558,
    -0.000200214257,
)  # fmt: skip


def erfinv(x: Operand) -> Tensor:
    """The inverse of erf; infinite at ±1, NaN beyond.  Example: `ws.erfinv(0.0)` is 0."""
    t = float_tensor("erfinv", x)

    @custom_gradient
    def function(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        w = -log((1.0 - x) * (1.0 + x))
        tail = w >= 5.0
        end = where(tail & (w < math.inf), w, 5.0).sqrt() - 3.0
        y = x * where(tail, _polynomial(end, _TAIL), _polynomial(where(tail, 0.0, w - 2.5), _MIDDLE))
        for _ in range(2):  # Newton's method refines single precision to double
            y = y - (erf(y) - x) / (2.0 / math.sqrt(math.pi) * exp(-(y * y)))
        y = where(abs(x) == 1, x * math.inf, y)
        return y, lambda upstream: upstream * (math.sqrt(math.pi) / 2.0 * exp(y * y))

    return function(t)
