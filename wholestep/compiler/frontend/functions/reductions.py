"""Reductions over axes (sum, mean, max, min, argmax): methods of `Tensor`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import boolean, product, shape_text, uint8
from wholestep.errors import DTypeError, ShapeError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.tensor import Axes, Tensor


def axes_of(self: Tensor, axis: Axes) -> tuple[int, ...]:
    """The axes as sorted, nonnegative numbers; all axes if None is given."""
    requested = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    for a in requested:
        if not -self.ndim <= a < self.ndim:
            fail(ShapeError, f"axis {a} does not exist in shape {shape_text(self.shape)}.")
    out = tuple(sorted(a % self.ndim for a in requested))
    if len(set(out)) < len(out):
        fail(ShapeError, f"axes {tuple(requested)} contain an axis of {shape_text(self.shape)} twice.")
    return out


def normalize_axis(op: str, x: Tensor, axis: int) -> int:
    """The axis as a nonnegative number; an error if it does not exist."""
    if not -x.ndim <= axis < x.ndim:
        fail(ShapeError, f"{op}: axis {axis} does not exist in shape {shape_text(x.shape)}.")
    return axis % x.ndim


def axis_and_size(op: str, x: Tensor, axis: int) -> tuple[int, int]:
    """The axis as a nonnegative number, and its size, which must be fixed."""
    position = normalize_axis(op, x, axis)
    length = x.shape[position]
    if not isinstance(length, int):
        fail(ShapeError, f"{op}: axis {axis} of {shape_text(x.shape)} is symbolic; give the dimension a fixed size.")
    return position, length


def _reduce(x: Tensor, op: str, axes: tuple[int, ...], attrs: at.Attrs, keepdims: bool) -> Tensor:
    if not axes:
        return x
    out = x._unary(op, attrs)
    return out.reshape(tuple(1 if d in axes else e for d, e in enumerate(x.shape))) if keepdims else out


def sum(self: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Σ x over the axes (all if none is given); half types accumulate in float32 and are rounded once."""
    axes = self._axes(axis)
    return _reduce(self, "sum", axes, at.SumAttrs(axes, self.dtype.accumulate), keepdims).astype(self.dtype)


def mean(self: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Σ x / n over the axes: a ratio node, so that a loss ending in it can be split into micro-batches."""
    if not self.dtype.is_float:
        fail(DTypeError, f"mean needs a float tensor; received {self.node.type}. Cast it first: x.astype('float32').")
    from wholestep.compiler.frontend.tensor import ratio  # circular import: tensor.py uses this module

    axes = self._axes(axis)
    count = product(self.shape[d] for d in axes)
    return ratio(self.astype(self.dtype.accumulate).sum(axes, keepdims), count).astype(self.dtype)


def max(self: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element; its gradient is split evenly among tied elements."""
    axes = self._axes(axis)
    return _reduce(self, "max", axes, at.MaxAttrs(axes), keepdims)


def min(self: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element; its gradient is split evenly among tied elements."""
    if self.dtype == boolean:
        fail(DTypeError, f"min needs numbers; received {self.node.type}. Cast it first: x.astype('float32').")
    return self._mirrored().max(axis, keepdims)._mirrored()


def order_reversed(self: Tensor) -> Tensor:
    """A bijection that reverses the order: -x for floats; -1 - x for integers, since -x overflows for the lowest."""
    if self.dtype.is_float:
        return -self
    return (255 if self.dtype == uint8 else -1) - self


def argmax(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int32 index of the first largest element (in the flattened tensor if no axis is given)."""
    if axis is None:
        return self.reshape(-1).argmax(0)
    axes = self._axes(axis)
    return _reduce(self, "argmax", axes, at.ArgmaxAttrs(axes[0]), keepdims)


def sum_reduce(self: Tensor, axis: Axes = None) -> Tensor:
    """An alias of `sum`, its name in a primitive instruction set."""
    return self.sum(axis)


def max_reduce(self: Tensor, axis: Axes = None) -> Tensor:
    """An alias of `max`, its name in a primitive instruction set."""
    return self.max(axis)
