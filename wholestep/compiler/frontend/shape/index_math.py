"""Which axis, and which places along it: what functions of indices share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import arange, maximum, minimum
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import ShapeError

MANY = 2**31  # elements of a tensor that int32 cannot number


def along(op: str, x: Tensor, axis: int) -> int:
    """The axis, counted from the front."""
    if not -x.ndim <= axis < x.ndim:
        fail(ShapeError, f"{op}: axis {axis} does not exist in shape {shape_text(x.shape)}.")
    return axis % x.ndim


def last_and_back(rank: int, axis: int) -> tuple[list[int], list[int]]:
    """The order of axes that brings one of them to the end, and the order that undoes it."""
    last = [*(d for d in range(rank) if d != axis), axis]
    return last, [last.index(d) for d in range(rank)]


def inside(index: Tensor, size: Extent) -> Tensor:
    """Counted from the end where below 0; one that does not exist is the nearest that does."""
    kind = "int64" if isinstance(size, int) and size >= MANY else "int32"
    index = index.astype(kind)
    count = as_tensor(size).astype(kind)
    return minimum(maximum(where(index < 0, index + count, index), 0), count - 1)


def flat_row_index(index: Tensor, x: Tensor) -> Tensor:
    """Indices into the rows of x as numbers of elements in all of it."""
    size, count = x.shape[-1], product(x.shape)
    kind = "int64" if isinstance(count, int) and count >= MANY else "int32"
    rows: Extent = product(x.shape[:-1])
    first = (arange(rows, kind) * as_tensor(size).astype(kind)).reshape((*x.shape[:-1], 1))
    return index.astype(kind) + first


def flat_index(x: Tensor, given: Sequence[Tensor | None]) -> Tensor:
    """The number of each place among the axes of x that have an index, in row-major order."""
    named = [(inside(i, x.shape[d]), x.shape[d]) for d, i in enumerate(given) if i is not None]
    linear = named[0][0]
    for index, size in named[1:]:
        linear = linear * as_tensor(size).astype(linear.dtype) + index.astype(linear.dtype)
    return linear


def as_indices(index: object) -> Tensor:
    """Of a list, an array or a tensor."""
    return as_tensor(np.asarray(index) if isinstance(index, list) else index)  # type: ignore[arg-type]
