"""Activations as modules, for `Sequential`; the functions of the same name document the edge cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wholestep.compiler.frontend.functions import activations, primitives
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter


class Lambda(Module):
    """A function as a module.  Example: `ws.nn.Lambda(lambda x: x * 2.0)`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)

    def options(self) -> str:
        return getattr(self.function, "__name__", "")


class ReLU(FunctionModule, function=primitives.relu):
    """max(x, 0)"""


class LeakyReLU(FunctionModule, function=activations.leaky_relu):
    """Leaky ReLU: x where x > 0, else slope · x."""

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def options(self) -> str:
        return f"{self.slope:g}"


class ELU(FunctionModule, function=activations.elu):
    """Exponential linear unit: x where x > 0, else alpha · (eˣ - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def options(self) -> str:
        return f"{self.alpha:g}"


class GELU(FunctionModule, function=primitives.gelu):
    """Gaussian error linear unit: x · Φ(x), exact, or approximated with `approximate="tanh"`."""

    def __init__(self, approximate: str = "none") -> None:
        self.approximate = approximate

    def options(self) -> str:
        return "" if self.approximate == "none" else f"approximate={self.approximate!r}"


class SiLU(FunctionModule, function=primitives.silu):
    """Sigmoid linear unit (swish): x · sigmoid(x)."""


class Mish(FunctionModule, function=activations.mish):
    """x · tanh(softplus(x))"""


class Softplus(FunctionModule, function=activations.softplus):
    """log(1 + eˣ)"""


class Hardswish(FunctionModule, function=activations.hardswish):
    """x · min(max(x + 3, 0), 6) / 6"""


class SwiGLU(FunctionModule, function=activations.swiglu):
    """The gated activation silu(a) · b, where a and b are the halves of the last axis."""


class Tanh(FunctionModule, function=primitives.tanh):
    """tanh x"""


class Sigmoid(FunctionModule, function=primitives.sigmoid):
    """1 / (1 + e⁻ˣ)"""


class Softmax(FunctionModule, function=primitives.softmax):
    """eˣ / Σ eˣ along an axis; losses take raw scores, so trained networks rarely end with it."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class ReLU6(FunctionModule, function=activations.relu6):
    """ReLU clipped at 6: min(max(x, 0), 6)."""


class SELU(FunctionModule, function=activations.selu):
    """The scaled ELU (arXiv:1706.02515)."""


class CELU(FunctionModule, function=activations.celu):
    """x where x > 0, else alpha · (e^(x/alpha) - 1)."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha


class GLU(FunctionModule, function=activations.glu):
    """Gated linear unit: a · sigmoid(b), where a and b are the halves of an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class PReLU(Module):
    """ReLU with a trained negative slope: one for the layer, or one for each channel."""

    weight: Tensor

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: object = "float32") -> None:
        self.weight = parameter((num_parameters,), init, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return activations.prelu(x, self.weight)


class Hardtanh(FunctionModule, function=activations.hardtanh):
    """Clips x to an interval, [-1, 1] by default."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val, self.max_val = min_val, max_val


class Hardsigmoid(FunctionModule, function=activations.hardsigmoid):
    """Piecewise linear sigmoid: x / 6 + ½, clipped to [0, 1]."""


class LogSigmoid(FunctionModule, function=activations.logsigmoid):
    """log sigmoid(x)"""


class LogSoftmax(FunctionModule, function=primitives.log_softmax):
    """log softmax(x) along an axis, for `ws.losses.nll_loss`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class Softmin(FunctionModule, function=activations.softmin):
    """softmax(-x) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis


class Softsign(FunctionModule, function=activations.softsign):
    """x / (1 + |x|)"""


class Tanhshrink(FunctionModule, function=activations.tanhshrink):
    """x - tanh x"""


class Softshrink(FunctionModule, function=activations.softshrink):
    """Soft shrinkage: moves x towards 0 by lambd; 0 where |x| is at most lambd."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Hardshrink(FunctionModule, function=activations.hardshrink):
    """Hard shrinkage: 0 where |x| is at most lambd, else x."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd


class Threshold(FunctionModule, function=activations.threshold):
    """x where it is above a threshold, else a constant."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = threshold, value
