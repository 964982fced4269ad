"""Inverse trigonometric and hyperbolic functions; their gradients are closed forms (custom gradients)."""

from __future__ import annotations

import math
from collections.abc import Callable

from wholestep.compiler.frontend.control.custom_gradient import custom_gradient
from wholestep.compiler.frontend.functions.primitives import atan, log, log1p, maximum, minimum, sign, sin
from wholestep.compiler.frontend.functions.statistics import float_tensor
from wholestep.compiler.frontend.tensor import Operand, Tensor, common_graph, where
from wholestep.compiler.frontend.type_promotion import align, promote

__all__ = ["acos", "acosh", "asin", "asinh", "atan2", "atanh", "sinc"]

LARGE = 1e8  # above this, x² ± 1 rounds to x², and x² overflows long before x


def with_derivative(x: Tensor, value: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Tensor:
    """A function with a given derivative, which replaces automatic differentiation of its formula."""

    @custom_gradient
    def function(x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        return value(x), lambda upstream: upstream * slope(x)

    return function(x)


def _root(x: Tensor) -> Tensor:
    """√(1 - x²)"""
    return ((1.0 - x) * (1.0 + x)).sqrt()


def asin(x: Operand) -> Tensor:
    """The angle whose sine is x, from -π/2 to π/2; NaN outside of -1 ... 1.  Example: `ws.asin(0.0)` is 0."""
    return with_derivative(float_tensor("asin", x), lambda x: atan(x / _root(x)), lambda x: _root(x).recip())


def acos(x: Operand) -> Tensor:
    """The angle whose cosine is x, from 0 to π; NaN outside of -1 ... 1.  Example: `ws.acos(1.0)` is 0."""
    t = float_tensor("acos", x)
    return with_derivative(t, lambda x: 2.0 * atan(((1.0 - x) / (1.0 + x)).sqrt()), lambda x: -_root(x).recip())


def atan2(y: Operand, x: Operand) -> Tensor:
    """The angle of the point (x, y), from -π to π; 0 at the origin, with a gradient of 0.

    Example: `ws.atan2(1.0, 0.0)` is π/2.
    """
    a, b = float_tensor("atan2", y), float_tensor("atan2", x)
    graph = common_graph(a, b)
    a, b = (Tensor(node, graph) for node in align("atan2", promote("atan2", [a.node, b.node])))

    @custom_gradient
    def function(y: Tensor, x: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor]]]:
        high, low = maximum(abs(x), abs(y)), minimum(abs(x), abs(y))
        angle = atan(low / where(high == 0, 1.0, high))
        angle = where(abs(y) > abs(x), math.pi / 2 - angle, angle)
        angle = where(x < 0, math.pi - angle, angle)
        squared_radius = x * x + y * y

        def gradient(upstream: Tensor) -> tuple[Tensor, Tensor]:
            scaled = where(squared_radius == 0, 0.0, upstream / where(squared_radius == 0, 1.0, squared_radius))
            return scaled * x, -(scaled * y)

        return where(y < 0, -angle, angle), gradient

    return function(a, b)


def asinh(x: Operand) -> Tensor:
    """The number whose hyperbolic sine is x.  Example: `ws.asinh(0.0)` is 0."""
    t = float_tensor("asinh", x)

    def value(x: Tensor) -> Tensor:
        size = abs(x)
        inner = where(size > LARGE, 1.0, size)
        near = log1p(inner + inner * inner / (1.0 + (1.0 + inner * inner).sqrt()))
        return sign(x) * where(size > LARGE, log(where(size > LARGE, size, 1.0)) + math.log(2.0), near)

    return with_derivative(t, value, lambda x: (x * x + 1.0).sqrt().recip())


def acosh(x: Operand) -> Tensor:
    """The number, not below 0, whose hyperbolic cosine is x; NaN below 1.  Example: `ws.acosh(1.0)` is 0."""
    t = float_tensor("acosh", x)

    def value(x: Tensor) -> Tensor:
        excess = where(x > LARGE, 1.0, x) - 1.0
        near = log1p(excess + (excess * (excess + 2.0)).sqrt())
        return where(x > LARGE, log(where(x > LARGE, x, 1.0)) + math.log(2.0), near)

    return with_derivative(t, value, lambda x: ((x - 1.0) * (x + 1.0)).sqrt().recip())


def atanh(x: Operand) -> Tensor:
    """The number whose hyperbolic tangent is x; NaN outside of -1 ... 1.  Example: `ws.atanh(0.0)` is 0."""
    t = float_tensor("atanh", x)
    return with_derivative(
        t,
        lambda x: 0.5 * sign(x) * log1p(2.0 * abs(x) / (1.0 - abs(x))),
        lambda x: ((1.0 - x) * (1.0 + x)).recip(),
    )


def sinc(x: Operand) -> Tensor:
    """sin(πx) / (πx), 1 at 0.  Example: `ws.sinc(0.0)` is 1."""
    t = float_tensor("sinc", x)
    angle = where(t == 0, 1.0, t * math.pi)
    return where(t == 0, 1.0, sin(angle) / angle)
