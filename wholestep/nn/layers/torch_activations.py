"""Activations as modules that few networks have, under PyTorch's names; `nn.functional` says what each computes."""

from __future__ import annotations

from wholestep.compiler.frontend.functions import primitives
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn import functional as fn
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter

__all__ = [
    "CELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardtanh", "LogSigmoid", "LogSoftmax", "PReLU", "ReLU6", "SELU",
    "Softmin", "Softshrink", "Softsign", "Tanhshrink", "Threshold",
]  # fmt: skip


class ReLU6(Module):
    """x between 0 and 6"""

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu6(x)


class SELU(Module):
    """The scaled ELU (arXiv:1706.02515)."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.selu(x)


class CELU(Module):
    """x above 0, alpha · (e^(x/alpha) - 1) below."""

    def __init__(self, alpha: float = 1.0) -> None:
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return fn.celu(x, self.alpha)


class GLU(Module):
    """a · sigmoid(b), a and b the halves of an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return fn.glu(x, self.axis)


class PReLU(Module):
    """x above 0, a trained slope · x below: one slope, or one for each channel."""

    weight: Tensor

    def __init__(self, num_parameters: int = 1, init: float = 0.25, dtype: object = "float32") -> None:
        self.weight = parameter((num_parameters,), init, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return fn.prelu(x, self.weight)


class Hardtanh(Module):
    """x between two numbers."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0) -> None:
        self.min_val, self.max_val = min_val, max_val

    def forward(self, x: Tensor) -> Tensor:
        return fn.hardtanh(x, self.min_val, self.max_val)


class Hardsigmoid(Module):
    """x / 6 + ½ between 0 and 1."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.hardsigmoid(x)


class LogSigmoid(Module):
    """log sigmoid(x)"""

    def forward(self, x: Tensor) -> Tensor:
        return fn.logsigmoid(x)


class LogSoftmax(Module):
    """log softmax(x) along an axis, for `ws.losses.nll_loss`."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return primitives.log_softmax(x, self.axis)


class Softmin(Module):
    """softmax(-x) along an axis."""

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Tensor) -> Tensor:
        return fn.softmin(x, self.axis)


class Softsign(Module):
    """x / (1 + |x|)"""

    def forward(self, x: Tensor) -> Tensor:
        return fn.softsign(x)


class Tanhshrink(Module):
    """x - tanh x"""

    def forward(self, x: Tensor) -> Tensor:
        return fn.tanhshrink(x)


class Softshrink(Module):
    """x towards 0 by lambd, 0 between."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return fn.softshrink(x, self.lambd)


class Hardshrink(Module):
    """0 where |x| is at most lambd, else x."""

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: Tensor) -> Tensor:
        return fn.hardshrink(x, self.lambd)


class Threshold(Module):
    """x above a threshold, else a value."""

    def __init__(self, threshold: float, value: float) -> None:
        self.threshold, self.value = threshold, value

    def forward(self, x: Tensor) -> Tensor:
        return fn.threshold(x, self.threshold, self.value)
