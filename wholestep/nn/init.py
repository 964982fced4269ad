"""PyTorch's `nn.init`: set the initializer of an existing parameter.  `ws.init` sets it when the layer is constructed.

Each takes a parameter of a layer, `ws.nn.init.xavier_uniform_(layer.weight)`, and returns it.  Fans are counted as in
PyTorch, for weights (outputs, inputs, ...).  Numbers are drawn when the model is first used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.attrs import Initializer
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.lazy import missing_names
from wholestep.nn.module.parameter import Parameter

__all__ = [
    "calculate_gain", "constant_", "copy_", "dirac_", "eye_", "kaiming_normal_", "kaiming_uniform_", "normal_", "ones_",
    "orthogonal_", "trunc_normal_", "uniform_", "xavier_normal_", "xavier_uniform_", "zeros_",
]  # fmt: skip


def _begin(tensor: Any, how: Initializer, function: str) -> Any:
    if not isinstance(tensor, Parameter):
        fail(
            UsageError,
            f"{function} takes a parameter of a layer, outside of forward, as in {function}(layer.weight); received "
            f"{tensor!r}.",
        )
    initializers.check_fits(how, tensor.shape, "parameter")
    if tensor.slot is None:
        tensor.init = initializers.outputs_first(how, tensor.shape)
        return tensor
    if how.kind not in ("constant", "values"):
        fail(
            UsageError,
            f"{function}: {tensor!r} has its numbers already, since the model was used. Say how it begins before that, "
            "or give it numbers: model.load_state_dict({name: array}, strict=False).",
        )
    tensor.slot.write(initializers.materialize(how, tensor.shape, tensor.dtype, 0, ""))
    return tensor


def zeros_(tensor: Any) -> Any:
    """Initialize a parameter with zeros.  Example: `ws.nn.init.zeros_(layer.bias)`."""
    return _begin(tensor, initializers.zeros(), "zeros_")


def ones_(tensor: Any) -> Any:
    """Initialize a parameter with ones.  Example: `ws.nn.init.ones_(norm.weight)`."""
    return _begin(tensor, initializers.ones(), "ones_")


def constant_(tensor: Any, val: float) -> Any:
    """Initialize a parameter with a constant.  Example: `ws.nn.init.constant_(layer.bias, 0.1)`."""
    return _begin(tensor, initializers.constant(val), "constant_")


def copy_(tensor: Any, source: Any) -> Any:
    """Initialize a parameter with the values of an array.  Example: `ws.nn.init.copy_(layer.weight, array)`."""
    array = np.asarray(source.detach().cpu() if hasattr(source, "detach") else source)
    shape: tuple[int, ...] = tuple(getattr(tensor, "shape", ()))
    if array.shape not in (shape, ()):
        fail(ShapeError, f"copy_: {tensor!r} takes an array of its shape; received {array.shape}.")
    return _begin(tensor, initializers.values(np.broadcast_to(array, shape)), "copy_")


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    """Initialize with normally distributed numbers.  Example: `ws.nn.init.normal_(layer.weight, std=0.02)`."""
    return _begin(tensor, initializers.normal(mean, std), "normal_")


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0) -> Any:
    """Initialize with uniform numbers in [a, b).  Example: `ws.nn.init.uniform_(layer.weight, -0.1, 0.1)`."""
    return _begin(tensor, initializers.uniform(a, b), "uniform_")


def trunc_normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0) -> Any:
    """Initialize with normal numbers within [a, b].  Example: `ws.nn.init.trunc_normal_(layer.weight, std=0.02)`."""
    return _begin(tensor, initializers.trunc_normal(mean, std, a, b), "trunc_normal_")


def xavier_uniform_(tensor: Any, gain: float = 1.0) -> Any:
    """Initialize with `ws.init.xavier_uniform`.  Example: `ws.nn.init.xavier_uniform_(layer.weight)`."""
    return _begin(tensor, initializers.xavier_uniform(gain), "xavier_uniform_")


def xavier_normal_(tensor: Any, gain: float = 1.0) -> Any:
    """Initialize with `ws.init.xavier_normal`.  Example: `ws.nn.init.xavier_normal_(layer.weight)`."""
    return _begin(tensor, initializers.xavier_normal(gain), "xavier_normal_")


def kaiming_uniform_(tensor: Any, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Any:
    """`ws.init.kaiming_uniform`, also for other activations.  Example: `ws.nn.init.kaiming_uniform_(layer.weight)`."""
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return _begin(tensor, initializers.uniform(-bound, bound), "kaiming_uniform_")


def kaiming_normal_(tensor: Any, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu") -> Any:
    """`ws.init.kaiming_normal`, also for other activations.  Example: `ws.nn.init.kaiming_normal_(layer.weight)`."""
    std = calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return _begin(tensor, initializers.normal(0.0, std), "kaiming_normal_")


def _fan(tensor: Any, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        fail(OptionError, f"mode={mode!r}: expected 'fan_in' or 'fan_out'.")
    shape: tuple[int, ...] = tuple(getattr(tensor, "shape", ()))
    if len(shape) < 2:
        fail(ShapeError, f"a weight with fans has at least two axes; received {tensor!r}. Use normal_ or zeros_.")
    return (shape[1] if mode == "fan_in" else shape[0]) * math.prod(shape[2:])


def orthogonal_(tensor: Any, gain: float = 1.0) -> Any:
    """Orthonormal rows, or columns if there are fewer.  Example: `ws.nn.init.orthogonal_(layer.weight)`."""
    return _begin(tensor, initializers.orthogonal(gain), "orthogonal_")


def eye_(tensor: Any) -> Any:
    """Initialize a matrix with the identity matrix.  Example: `ws.nn.init.eye_(layer.weight)`."""
    if len(getattr(tensor, "shape", ())) != 2:
        fail(ShapeError, f"eye_ takes a matrix; received {tensor!r}.")
    return _begin(tensor, initializers.values(np.eye(*tensor.shape)), "eye_")


def dirac_(tensor: Any, groups: int = 1) -> Any:
    """Initialize a convolution so that it passes its input through.  Example: `ws.nn.init.dirac_(conv.weight)`."""
    shape: tuple[int, ...] = tuple(getattr(tensor, "shape", ()))
    if not 3 <= len(shape) <= 5 or shape[0] % groups:
        fail(ShapeError, f"dirac_ takes the weight of a convolution, outputs divided by groups; received {tensor!r}.")
    array, each = np.zeros(shape), shape[0] // groups
    for group in range(groups):
        for channel in range(min(each, shape[1])):
            array[(group * each + channel, channel, *(size // 2 for size in shape[2:]))] = 1.0
    return _begin(tensor, initializers.values(array), "dirac_")


_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0, "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor for initial weights before an activation.  Example: `ws.nn.init.calculate_gain("relu")` is √2."""
    if nonlinearity == "leaky_relu":
        return math.sqrt(2.0 / (1.0 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        fail(OptionError, f"no gain is known for {nonlinearity!r}; known are leaky_relu, {', '.join(_GAINS)}.")
    return _GAINS[nonlinearity]


__getattr__ = missing_names(__name__)
