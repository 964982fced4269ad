"""Methods of PyTorch's tensors whose arguments differ from the arguments of our functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wholestep.compiler.frontend.functions.creation import full
from wholestep.compiler.frontend.shape.sort_topk import take_along_axis
from wholestep.compiler.frontend.tensor import Operand, Tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, Shape, as_dtype
from wholestep.errors import HabitError, WholestepError

__all__ = [
    "dim", "expand_as", "new_full", "new_ones", "new_zeros", "pick_along", "size", "to", "to_bool",
    "to_double", "to_float", "to_half", "to_int", "to_long", "view_as", "where_",
]  # fmt: skip


def size(x: Tensor, axis: int | None = None) -> Shape | Extent:
    """The shape of x, or the size of one axis."""
    return x.shape if axis is None else x.shape[axis]


def dim(x: Tensor) -> int:
    """`x.ndim`"""
    return x.ndim


def to_float(x: Tensor) -> Tensor:
    """`x.astype("float32")`"""
    return x.astype("float32")


def to_double(x: Tensor) -> Tensor:
    """`x.astype("float64")`"""
    return x.astype("float64")


def to_half(x: Tensor) -> Tensor:
    """`x.astype("float16")`"""
    return x.astype("float16")


def to_int(x: Tensor) -> Tensor:
    """`x.astype("int32")`"""
    return x.astype("int32")


def to_long(x: Tensor) -> Tensor:
    """`x.astype("int64")`"""
    return x.astype("int64")


def to_bool(x: Tensor) -> Tensor:
    """x != 0"""
    return x != 0


def to(x: Tensor, *targets: Any, dtype: object = None, device: object = None) -> Tensor:
    """x in another dtype, or in the dtype of another tensor; a device is ignored, since the session has the device."""
    for value in (*targets, device):
        if isinstance(value, Tensor):
            dtype = value.dtype
        elif value is not None and value != "cpu":
            try:
                dtype = as_dtype(value)
            except WholestepError:
                fail(
                    HabitError,
                    f"a tensor has no device to go `to`: {value!r}; the device belongs to the session, "
                    "ws.build_session(..., device='cpu'). A dtype is x.astype('float64').",
                )
    return x if dtype is None else x.astype(dtype)


def view_as(x: Tensor, y: Tensor) -> Tensor:
    """`x.reshape(y.shape)`"""
    return x.reshape(y.shape)


def expand_as(x: Tensor, y: Tensor) -> Tensor:
    """`x.expand(y.shape)`"""
    return x.expand(y.shape)


def pick_along(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """`ws.take_along_axis(x, index, axis)`"""
    return take_along_axis(x, index, axis)


def where_(x: Tensor, condition: Tensor, y: Operand) -> Tensor:
    """x where the condition holds, y elsewhere"""
    return where(condition, x, y)


def new_zeros(x: Tensor, *shape: object, dtype: object = None) -> Tensor:
    """Zeros of the given shape with x's dtype."""
    return full(_shape(shape), 0, x.dtype if dtype is None else dtype)


def new_ones(x: Tensor, *shape: object, dtype: object = None) -> Tensor:
    """Ones of the given shape with x's dtype."""
    return full(_shape(shape), 1, x.dtype if dtype is None else dtype)


def new_full(x: Tensor, shape: object, value: Any, dtype: object = None) -> Tensor:
    """A constant tensor of the given shape with x's dtype."""
    return full(shape, value, x.dtype if dtype is None else dtype)


def _shape(sizes: Sequence[object]) -> object:
    return sizes[0] if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)
