"""Selection along an axis: take_along_axis, advanced indexing, sort and top-k; and random integers.

Sorting is by rank (n² comparisons, fused and without a table in memory); top-k of long axes makes k passes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import (
    arange,
    concat,
    floor,
    gather,
    iota,
    maximum,
    minimum,
    random_uniform,
    scatter_add,
)
from wholestep.compiler.frontend.functions.reductions import normalize_axis
from wholestep.compiler.frontend.shape.index_math import MANY, as_indices, flat_index, flat_row_index, move_axis_last
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

__all__ = ["argsort", "random_integers", "sort", "take_along_axis", "topk"]

# Elements.  Axes up to this length are read by comparing each index with each position; longer ones by a gather at
# row-major linear indices, which is faster there, but depends on the row's number in the batch and therefore cannot be
# split into micro-batches.
SHORT = 512
FEW = 64  # elements; up to this length a full sort is faster than k passes


def take_along_axis(x: Tensor, index: Operand, axis: int = -1) -> Tensor:
    """x at indices along an axis, separate for each position on the others: y[i, j] = x[i, index[i, j]], as in NumPy;
    torch calls it `gather`.

    Args:
        index: integers, of the rank of x; along each axis but `axis`, 1 (broadcast) or at most as long as x
            (a shorter axis reads the first positions of x).  Out-of-range indices are clamped.

    Example: `ws.take_along_axis(scores, labels[:, None], axis=1)`.
    """
    i, at = as_tensor(index), normalize_axis("take_along_axis", x, axis)
    if not i.dtype.is_integer:
        fail(DTypeError, f"take_along_axis needs integer indices; received {i!r}. Cast them: i.astype('int32').")
    fits = i.ndim == x.ndim and all(d == at or _is_index_size(a, b) for d, (a, b) in enumerate(zip(i.shape, x.shape)))
    if not fits:
        fail(
            ShapeError,
            f"take_along_axis: index must have the same rank as x {shape_text(x.shape)} and may exceed it only along "
            f"axis {at}; received {shape_text(i.shape)}. For entire slices: ws.gather(x, i, axis).",
        )
    region = [e if d == at or n == 1 else n for d, (n, e) in enumerate(zip(i.shape, x.shape, strict=True))]
    x = x[tuple(slice(None) if n == e else slice(0, n) for n, e in zip(region, x.shape, strict=True))]
    i = i.expand(*(n if d == at else e for d, (n, e) in enumerate(zip(i.shape, x.shape, strict=True))))
    last, back = move_axis_last(x.ndim, at)
    return _take_clamped(x.permute(last), i.permute(last)).permute(back)


def _is_index_size(index: Extent, size: Extent) -> bool:
    """May an index have this size along an axis: 1 (broadcast), or at most the size of the axis?"""
    return index in (1, size) or (isinstance(index, int) and isinstance(size, int) and index < size)


def _take_clamped(x: Tensor, index: Tensor) -> Tensor:
    """take_along_axis along the last axis, with clamped indices."""
    size, count = x.shape[-1], product(x.shape)
    kind = "int64" if isinstance(count, int) and count >= MANY else "int32"
    end = size - 1 if isinstance(size, int) else as_tensor(size).astype(kind) - 1
    clamped = minimum(maximum(index.astype(kind), 0), end)
    if isinstance(size, int) and (size <= SHORT or index.shape[-1] == 1):
        return _take_along_last(x, clamped.astype("int32"))
    return gather(x.reshape((count,)), flat_row_index(clamped, x))


def _take_along_last(x: Tensor, index: Tensor) -> Tensor:
    """take_along_axis by comparing each index with each position: one fused loop, forward and backward."""
    size, count = x.shape[-1], index.shape[-1]
    positions = iota((*x.shape[:-1], count, size), x.ndim)
    hits = positions == index.reshape((*index.shape, 1))
    return where(hits, x.reshape((*x.shape[:-1], 1, size)), as_tensor(0).astype(x.dtype)).sum(-1)


# -- x[:, [0, 2]], x[arange, labels] -----------------------------------------------------------------------------


def advanced_index(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """Advanced indexing: x[key] with integer tensors, arrays or lists in the key, which broadcast with each other.

    Their axes replace the indexed ones if those are adjacent, and otherwise come first, as in torch.
    """
    items = _expand_ellipsis(x, key)
    positions = [p for p, item in enumerate(items) if isinstance(item, Tensor | np.ndarray | list)]
    indices = [items[p] for p in positions]
    rest = x[tuple(slice(None) if p in positions else item for p, item in enumerate(items))]
    axes = [sum(1 for item in items[:p] if not isinstance(item, int | np.integer)) for p in positions]
    if len(indices) == 1:
        return gather(rest, indices[0], axes[0])
    tensors = [_integer_index(i) for i in indices]
    if len(indices) == 2 and axes == [0, 1] and tensors[0].node.op == "iota":
        rows = rest.shape[0]
        if tensors[0].shape == (rows,) and tensors[1].shape == (rows,):  # x[arange(rows), labels]: one element per row
            result = take_along_axis(rest, tensors[1].reshape((rows, 1, *[1] * (rest.ndim - 2))), 1)
            return result.reshape((rows, *rest.shape[2:]))
    return _gather_axes(rest, tensors, axes)


def _integer_index(index: Any) -> Tensor:
    i = as_indices(index)
    if not i.dtype.is_integer:
        fail(DTypeError, f"an index must contain integers; received {i!r}. Select with ws.where instead of a mask.")
    return i


def _gather_axes(x: Tensor, indices: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
    """The elements at one index per axis: merges the indexed axes and gathers at linear indices."""
    adjacent = axes[-1] - axes[0] == len(axes) - 1
    others = [d for d in range(x.ndim) if d not in axes]
    front = [d for d in others if d < axes[0]] if adjacent else []
    after = [d for d in others if d not in front]
    index_per_axis: list[Tensor | None] = [None] * x.ndim
    for axis, index in zip(axes, indices, strict=True):
        index_per_axis[axis] = index
    linear = flat_index(x, index_per_axis)
    order = [*front, *axes, *after]
    permuted = x if order == list(range(x.ndim)) else x.permute(order)
    merged = product(x.shape[d] for d in axes)
    flat = permuted.reshape((*(x.shape[d] for d in front), merged, *(x.shape[d] for d in after)))
    return gather(flat, linear, len(front))


def _expand_ellipsis(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """The key with `...` expanded to one slice per axis."""
    ellipses = [p for p, item in enumerate(key) if item is Ellipsis]
    if not ellipses:
        return list(key)
    used = sum(1 for item in key if item is not None and item is not Ellipsis)
    slices = [slice(None)] * max(x.ndim - used, 0)
    return [*key[: ellipses[0]], *slices, *key[ellipses[0] + 1 :]]


# -- sorting -----------------------------------------------------------------------------------------------------


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The int32 indices that sort x along an axis; stable, and NaN is the largest.

    Compares all pairs of elements: n² comparisons, without a table in memory.  No gradient.

    Example: `ws.argsort(x, descending=True)`.
    """
    at = normalize_axis("argsort", x, axis)
    if x.dtype == boolean:
        x = x.astype("int32")
    last, back = move_axis_last(x.ndim, at)
    rows = x.permute(last)
    size, count = rows.shape[-1], product(rows.shape)
    a, b = rows.reshape((*rows.shape, 1)), rows.reshape((*rows.shape[:-1], 1, size))
    before = _is_less(a, b) if descending else _is_less(b, a)
    neither = ~(before | (_is_less(b, a) if descending else _is_less(a, b)))
    row, column = iota((size, size), 0), iota((size, size), 1)
    rank = (before | (neither & (column < row))).astype("int32").sum(-1)  # the number of elements that precede each
    index = iota(rows.shape, rows.ndim - 1)
    if isinstance(size, int) and size <= SHORT:
        positions = iota((*rows.shape, size), rows.ndim - 1)  # position r gets the element of rank r
        order = where(positions == rank.reshape(b.shape), index.reshape(b.shape), 0).sum(-1)
    else:
        first = (arange(product(rows.shape[:-1])) * as_tensor(size).astype("int32")).reshape((*rows.shape[:-1], 1))
        order = scatter_add(index.reshape((count,)), (rank + first).reshape((count,)), count).reshape(rows.shape)
    return order.permute(back)


def _is_less(a: Tensor, b: Tensor) -> Tensor:
    """a < b in the order in which NaN is the largest."""
    return (a < b) | ((a == a) & (b != b)) if a.dtype.is_float else a < b


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x sorted along an axis; the gradient is scattered back to the original positions.  See `argsort`.

    Example: `ws.sort(x)[..., -1]` is the largest.
    """
    return take_along_axis(x, argsort(x, axis, descending), axis)


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis and their int32 indices, in descending order; stable, NaN is the largest.

    A short axis is sorted; a longer one is searched in k passes over x.

    Args:
        largest: False gives the k smallest, the smallest first.

    Example: `values, indices = ws.topk(scores, 5)`.
    """
    at = normalize_axis("topk", x, axis)
    size = x.shape[at]
    if not isinstance(k, int) or isinstance(k, bool) or k < 1 or (isinstance(size, int) and k > size):
        fail(OptionError, f"topk: k must be an integer from 1 to {size}, the size of the axis; received {k!r}.")
    if isinstance(size, int) and (size <= FEW or not x.dtype.is_float):
        indices = argsort(x, at, largest)[(*(slice(None),) * at, slice(0, k))]
    else:
        indices = _largest_indices(x if largest else -x, k, at)
    return take_along_axis(x, indices, at), indices


def _largest_indices(x: Tensor, k: int, axis: int) -> Tensor:
    """The indices of the k largest by repeated argmax; a mask marks those already taken, so that -inf may be chosen."""
    positions = iota(x.shape, axis)

    def largest(taken: Tensor) -> tuple[Tensor, Tensor]:
        remaining = where(taken, -math.inf, x)
        best = remaining.max(axis, keepdims=True)
        best_index = (
            (~taken & ((remaining == best) | (remaining != remaining))).astype("int32").argmax(axis, keepdims=True)
        )
        return taken | (positions == best_index), best_index

    taken = x != x
    taken = taken & ~taken  # all False, with the shape and batch dependence of x
    if k <= 4:  # unrolled: a loop would cost more than it saves
        indices_of_passes = []
        for _ in range(k):
            taken, one = largest(taken)
            indices_of_passes.append(one)
        return indices_of_passes[0] if k == 1 else concat(indices_of_passes, axis)
    _, stacked = scan(lambda carry, _: largest(carry), taken, length=k)  # (k, ..., 1, ...)
    indices: Tensor = stacked.reshape((k, *(e for d, e in enumerate(x.shape) if d != axis)))
    return indices.permute((*range(1, axis + 1), 0, *range(axis + 1, x.ndim)))


def random_integers(graph: Graph | Tensor, shape: object, low: int, high: int, dtype: object = "int32") -> Tensor:
    """Uniform random integers from low to high - 1, drawn anew in every step.

    Example: `steps = ws.random_integers(g, ("batch",), 0, 1000)`.
    """
    for name, value in (("low", low), ("high", high)):
        if not isinstance(value, int) or isinstance(value, bool):
            fail(OptionError, f"random_integers: {name} must be an integer; received {value!r}.")
    if not low < high or high - low > 2**24:
        fail(OptionError, f"random_integers: high - low must be from 1 to 2**24; received low={low}, high={high}.")
    return (floor(random_uniform(graph, shape, dtype="float64") * float(high - low)) + float(low)).astype(dtype)
