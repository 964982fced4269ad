"""Index arithmetic shared by gathers, scatters and sorts: axes, clamped indices, row-major linear indices."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import arange, maximum, minimum
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.ir.types import Extent, product

MANY = 2**31  # elements; tensors of at least this size need int64 indices


def move_axis_last(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """The permutation that moves an axis to the end, and its inverse."""
    last = [*(d for d in range(rank) if d != axis), axis]
    return last, [last.index(d) for d in range(rank)]


def multiply_axis(x: Tensor, axis: int, matrix: np.ndarray) -> Tensor:
    """x multiplied along one axis by a constant matrix, (size before, size after)."""
    last, back = move_axis_last(x.ndim, axis)
    return (x.permute(last) @ as_tensor(np.ascontiguousarray(matrix).astype(x.dtype.numpy))).permute(back)


def clamp_index(index: Tensor, size: Extent) -> Tensor:
    """Negative indices count from the end; out-of-range indices are clamped."""
    kind = "int64" if isinstance(size, int) and size >= MANY else "int32"
    index = index.astype(kind)
    count = as_tensor(size).astype(kind)
    return minimum(maximum(where(index < 0, index + count, index), 0), count - 1)


def flat_row_index(index: Tensor, x: Tensor) -> Tensor:
    """Indices along the last axis of x as row-major indices into all of x."""
    size, count = x.shape[-1], product(x.shape)
    kind = "int64" if isinstance(count, int) and count >= MANY else "int32"
    rows: Extent = product(x.shape[:-1])
    first = (arange(rows, kind) * as_tensor(size).astype(kind)).reshape((*x.shape[:-1], 1))
    return index.astype(kind) + first


def flat_index(x: Tensor, indices: Sequence[Tensor | None]) -> Tensor:
    """The row-major linear index over the axes of x that have an index (those that are not None)."""
    indexed_axes = [(clamp_index(i, x.shape[d]), x.shape[d]) for d, i in enumerate(indices) if i is not None]
    linear = indexed_axes[0][0]
    for index, size in indexed_axes[1:]:
        linear = linear * as_tensor(size).astype(linear.dtype) + index.astype(linear.dtype)
    return linear


def as_indices(index: object) -> Tensor:
    """A list, an array or a tensor as an index tensor."""
    return as_tensor(np.asarray(index) if isinstance(index, list) else index)  # type: ignore[arg-type]
