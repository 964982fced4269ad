"""Functions of PyTorch's that reduce axes, or tell of a tensor."""

from __future__ import annotations

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions import statistics
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, pointwise
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent
from wholestep.errors import OptionError

__all__ = [
    "amax", "amin", "argmax", "is_floating_point", "max", "mean", "min", "numel", "std_mean", "sum", "var_mean",
]  # fmt: skip


def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.sum(axis)`"""
    return as_tensor(x).sum(axis, keepdims)


def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.mean(axis)`"""
    return as_tensor(x).mean(axis, keepdims)


def amax(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.max(axis)`"""
    return as_tensor(x).max(axis, keepdims)


def amin(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`x.min(axis)`"""
    return as_tensor(x).min(axis, keepdims)


_PAIR = "in PyTorch that is a pair of values and indices; write ws.amax(x, axis) and ws.argmax(x, axis)"


def max(x: Operand, y: Operand | None = None) -> Tensor:
    """The largest element of x, or the larger of x and y; along an axis it is `ws.amax`."""
    if isinstance(y, int):
        fail(OptionError, f"max(x, {y!r}): {_PAIR}.")
    return as_tensor(x).max() if y is None else pointwise("maximum", x, y)


def min(x: Operand, y: Operand | None = None) -> Tensor:
    """The smallest element of x, or the smaller of x and y; along an axis it is `ws.amin`."""
    if isinstance(y, int):
        fail(OptionError, f"min(x, {y!r}): {_PAIR.replace('max', 'min')}.")
    return as_tensor(x).min() if y is None else pointwise("minimum", x, y)


def argmax(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """`x.argmax(axis)`"""
    return as_tensor(x).argmax(axis, keepdims)


def var_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Variance and mean."""
    return statistics.var(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def std_mean(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """Standard deviation and mean."""
    return statistics.std(x, axis, correction, keepdims), as_tensor(x).mean(axis, keepdims)


def numel(x: Tensor) -> Extent:
    """How many elements: a number, or an expression of the sizes that are not known yet."""
    return x.node.type.elements


def is_floating_point(x: Tensor) -> bool:
    """Is its dtype a float?"""
    return x.dtype.is_float


take_their_words(globals(), __all__)
