"""Functions of PyTorch that move, select and scatter elements."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.functions import primitives
from wholestep.compiler.frontend.functions.creation import eye, full_like
from wholestep.compiler.frontend.shape import scatter as scattering
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "broadcast_to", "diag_embed", "diagonal", "hstack", "index_select", "narrow", "repeat_interleave", "scatter",
    "scatter_reduce", "select", "select_scatter", "t", "trace", "vstack",
]  # fmt: skip


def t(x: Tensor) -> Tensor:
    """The transposed matrix; a vector is returned unchanged."""
    if x.ndim > 2:
        fail(ShapeError, f"t takes at most two axes; received {shape_text(x.shape)}. Write x.transpose(-1, -2).")
    return x.transpose() if x.ndim == 2 else x


def broadcast_to(x: Tensor, size: Sequence[Extent | str]) -> Tensor:
    """`x.expand(size)`"""
    return x.expand(size)


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate horizontally: along axis 1, vectors along axis 0."""
    return primitives.concat(tensors, 0 if as_tensor(tensors[0]).ndim < 2 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenate vertically: along axis 0, with vectors as rows."""
    rows = [as_tensor(v) for v in tensors]
    return primitives.concat([v.reshape((1, -1)) if v.ndim < 2 else v for v in rows], 0)


def index_select(x: Tensor, axis: int, index: Tensor) -> Tensor:
    """`ws.take(x, index, axis)`"""
    return primitives.gather(x, index, axis)


def scatter(x: Tensor, axis: int, index: Tensor, src: Operand, reduce: str | None = None) -> Tensor:
    """x with elements replaced along an axis: y[index[i, j], j] = src[i, j]."""
    how = {None: "replace", "add": "sum", "multiply": "prod"}.get(reduce)
    if how is None:
        fail(OptionError, f"scatter: reduce is None, 'add' or 'multiply'; received {reduce!r}.")
    return scattering.put_along_axis(x, index, src, axis, how)


def scatter_reduce(x: Tensor, axis: int, index: Tensor, src: Operand, reduce: str, include_self: bool = True) -> Tensor:
    """x combined with other elements by a reduction along an axis, at the given indices."""
    how = {"amax": "max", "amin": "min"}.get(reduce, reduce)
    return scattering.put_along_axis(x, index, src, axis, how, include_self)


def select_scatter(x: Tensor, src: Tensor, axis: int, index: int) -> Tensor:
    """x with the slice at an index replaced."""
    (at,) = x._axes(axis)
    one = src.reshape((*src.shape[:at], 1, *src.shape[at:]))
    return scattering.scatter_slice(x, one, at, index, None if index == -1 else index + 1)


def select(x: Tensor, axis: int, index: int) -> Tensor:
    """The slice at an index; the axis is removed."""
    (position,) = x._axes(axis)
    return x[(*(slice(None),) * position, index)]


def narrow(x: Tensor, axis: int, start: int, length: int) -> Tensor:
    """A range of `length` slices along an axis, from `start` on."""
    (position,) = x._axes(axis)
    return x[(*(slice(None),) * position, slice(start, start + length))]


def repeat_interleave(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    """Repeat every slice along an axis `repeats` times; without an axis, of the flattened x."""
    if axis is None:
        return repeat_interleave(x.reshape(-1), repeats, 0)
    if not isinstance(repeats, int) or repeats < 1:
        fail(OptionError, f"repeat_interleave: repeats must be an integer of at least 1; received {repeats!r}.")
    (position,) = x._axes(axis)
    before, extent, after = x.shape[:position], x.shape[position], x.shape[position + 1 :]
    wide = x.reshape((*before, extent, 1, *after)).expand((*before, extent, repeats, *after))
    return wide.reshape((*before, extent * repeats, *after))


def diagonal(x: Tensor) -> Tensor:
    """The diagonals of the matrices on the last two axes."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        fail(ShapeError, f"diagonal takes square matrices, on the last two axes; received {shape_text(x.shape)}.")
    return where(eye(x.shape[-2], x.shape[-1], dtype="int32") == 1, x, full_like(x, 0)).sum(-1)


def diag_embed(x: Tensor) -> Tensor:
    """Matrices with the last axis of x on their diagonals."""
    return x.reshape((*x.shape, 1)) * eye(x.shape[-1], dtype=x.dtype)


def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal."""
    return diagonal(x).sum(-1)
