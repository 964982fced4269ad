"""Activations as modules, for `Sequential`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wholestep.compiler.frontend.functions import activations, primitives
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn.module.module import Module


class Lambda(Module):
    """A function as a module.  Example: `ws.nn.Lambda(lambda x: x * 2.0)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def options(self) -> str:
        return getattr(self.function, "__name__", "")


class ReLU(Module):
    """max(x, 0)"""

    def forward(self, x: Tensor) -> Tensor:
        return primitives.relu(x)


class LeakyReLU(Module):
    """x above 0, slope · x below."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return activations.leaky_relu(x, self.slope)

    def options(self) -> str:
        return f"{self.slope:g}"


class ELU(Module):
    """x above 0, alpha · (eˣ - 1) below."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return activations.elu(x, self.alpha)

    def options(self) -> str:
        return f"{self.alpha:g}"


class GELU(Module):
    """x · Φ(x), exactly, or with `approximate="tanh"`."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        return primitives.gelu(x, approximate=self.approximate)

    def options(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class SiLU(Module):
    """x · sigmoid(x)"""

    def forward(self, x: Tensor) -> Tensor:
        return primitives.silu(x)


class Mish(Module):
    """x · tanh(softplus(x))"""

    def forward(self, x: Tensor) -> Tensor:
        return activations.mish(x)


class Softplus(Module):
    """log(1 + eˣ)"""

    def forward(self, x: Tensor) -> Tensor:
        return activations.softplus(x)


class Hardswish(Module):
    """x · min(max(x + 3, 0), 6) / 6"""

    def forward(self, x: Tensor) -> Tensor:
        return activations.hardswish(x)


class SwiGLU(Module):
    """silu(a) · b, a and b the halves of the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return activations.swiglu(x)


class Tanh(Module):
    """tanh x"""

    def forward(self, x: Tensor) -> Tensor:
        return primitives.tanh(x)


class Sigmoid(Module):
    """1 / (1 + e⁻ˣ)"""

    def forward(self, x: Tensor) -> Tensor:
        return primitives.sigmoid(x)


class Softmax(Module):
    """eˣ / Σ eˣ along an axis; losses take raw scores, so a network that is trained seldom ends in it."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return primitives.softmax(x, self.axis)

    def options(self) -> str:
        return f"axis={self.axis}"
