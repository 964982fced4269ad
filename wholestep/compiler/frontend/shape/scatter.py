"""Scatters: tensors with some elements replaced or combined, at positions given by indices or masks.

`put_along_axis` and replacements compare every index with every position, as a masked reduction; `index_add`,
accumulating `index_put`, and sums and means along axes longer than SHORT use `scatter_add`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions.cumulative import prod
from wholestep.compiler.frontend.functions.primitives import concat, gather, iota, maximum, minimum, scatter_add
from wholestep.compiler.frontend.functions.reductions import axis_and_size, normalize_axis
from wholestep.compiler.frontend.shape.index_math import (
    as_indices,
    clamp_index,
    flat_index,
    flat_row_index,
    move_axis_last,
)
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.sequences import cumsum
from wholestep.compiler.frontend.shape.sort_topk import SHORT, take_along_axis
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import DType, Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = [
    "index_add", "index_copy", "index_fill", "index_put", "masked_scatter", "put_along_axis", "scatter_slice",
]  # fmt: skip

REDUCTIONS = ("replace", "sum", "prod", "mean", "max", "min")


def put_along_axis(
    x: Tensor,
    index: Operand,
    values: Operand,
    axis: int = -1,
    reduce: str = "replace",
    include_self: bool = True,
) -> Tensor:
    """x with values written at indices along an axis: y[i, index[i, j]] = values[i, j], as in NumPy; torch calls it
    `scatter` and `scatter_reduce`.

    Compares each index with each position along the axis: n·m comparisons, without a table in memory.

    Args:
        index: integers, of the rank of x; if it is shorter than x along another axis, the rest of x is unchanged.
            Negative indices count from the end; out-of-range indices are clamped.
        values: a number, or at least as large as the index on every axis.
        reduce: "replace" (the last of several values for one position), "sum", "prod", "mean", "max" or "min".
        include_self: for all but "replace": whether x is one of the terms; positions without an index keep x.

    Example: `ws.put_along_axis(x, best, 1.0, axis=1)`.
    """
    op, i = "put_along_axis", as_tensor(index)
    at = normalize_axis(op, x, axis)
    if reduce not in REDUCTIONS:
        fail(OptionError, f"{op}: reduce must be one of {', '.join(REDUCTIONS)}; received {reduce!r}.")
    _need_integers(op, i)
    region = _region(op, x, i, at)
    v = _values_of(op, values, i, x.dtype)
    part = x[tuple(slice(0, n) if n != e else slice(None) for n, e in zip(region, x.shape, strict=True))]
    last, back = move_axis_last(x.ndim, at)
    result = _put(part.permute(last), clamp_index(i, x.shape[at]).permute(last), v.permute(last), reduce, include_self)
    result = result.permute(back)
    if region == x.shape:
        return result
    amounts = [(0, e - n if isinstance(e, int) and isinstance(n, int) else 0) for e, n in zip(x.shape, region)]
    extents = [(e, n) for e, n in zip(x.shape, region, strict=True)]
    shape = [e if n != e else 1 for e, n in extents]
    mask = np.zeros(shape, bool)
    mask[tuple(slice(0, n) if n != e else slice(None) for e, n in extents)] = True
    return where(mask, pad(result, amounts), x)


def _region(op: str, x: Tensor, index: Tensor, axis: int) -> tuple[Extent, ...]:
    """The shape of the leading part of x that an index can address."""
    fits = index.ndim == x.ndim and all(
        d == axis or n == e or (isinstance(n, int) and isinstance(e, int) and n <= e)
        for d, (n, e) in enumerate(zip(index.shape, x.shape, strict=True))
    )
    if not fits:
        fail(
            ShapeError,
            f"{op}: index must have the same rank as x {shape_text(x.shape)} and may exceed it only along axis {axis}; "
            f"received {shape_text(index.shape)}. For entire slices: ws.index_copy, ws.index_add.",
        )
    return tuple(e if d == axis else n for d, (n, e) in enumerate(zip(index.shape, x.shape, strict=True)))


def _values_of(op: str, values: Operand, index: Tensor, dtype: DType) -> Tensor:
    """The values, broadcast to one per index."""
    v = as_tensor(values)
    if v.ndim == 0:
        return v.astype(dtype).expand(*index.shape)
    if v.dtype != dtype:
        fail(DTypeError, f"{op}: the values are {v.dtype}, x is {dtype}. Cast one of them: v.astype('{dtype}').")
    fits = v.ndim == index.ndim and all(
        a == b or (isinstance(a, int) and isinstance(b, int) and a >= b)
        for a, b in zip(v.shape, index.shape, strict=True)
    )
    if not fits:
        fail(
            ShapeError,
            f"{op}: values must be at least as large as the index {shape_text(index.shape)} on every axis; received "
            f"{shape_text(v.shape)}.",
        )
    return v[tuple(slice(0, n) if n != e else slice(None) for n, e in zip(index.shape, v.shape, strict=True))]


def _put(x: Tensor, index: Tensor, values: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The scatter along the last axis, for indices in range."""
    size, count = x.shape[-1], index.shape[-1]
    if reduce in ("sum", "mean") and not (isinstance(size, int) and size <= SHORT):
        flat = flat_row_index(index, x).reshape((product(index.shape),))
        total = product(x.shape)

        def scatter_sum(v: Tensor) -> Tensor:
            return scatter_add(v.reshape((product(v.shape),)), flat, total).reshape(x.shape)

        return _combine_with_self(
            x, scatter_sum(values), scatter_sum(as_tensor(1).astype(x.dtype).expand(*index.shape)), reduce, include_self
        )
    positions = iota((*x.shape, count), x.ndim - 1)
    hits = positions == index.reshape((*index.shape[:-1], 1, count))
    broadcast_values = values.reshape((*values.shape[:-1], 1, count))
    if reduce == "replace":
        last_hit = where(hits, iota((*x.shape, count), x.ndim), -1).max(-1)
        return where(last_hit >= 0, take_along_axis(values, maximum(last_hit, 0), -1), x)
    if reduce in ("sum", "mean"):
        zero = as_tensor(0).astype(x.dtype)
        return _combine_with_self(
            x, where(hits, broadcast_values, zero).sum(-1), hits.astype(x.dtype).sum(-1), reduce, include_self
        )
    any_hit = hits.astype("int32").max(-1) > 0
    neutral = as_tensor(_IDENTITY[reduce](x.dtype)).astype(x.dtype)
    terms = where(hits, broadcast_values, neutral)
    if reduce == "prod":
        reduced = prod(terms, -1)
        return where(any_hit, reduced * x if include_self else reduced, x)
    reduced = terms.max(-1) if reduce == "max" else terms.min(-1)
    with_self = maximum(reduced, x) if reduce == "max" else minimum(reduced, x)
    return where(any_hit, with_self if include_self else reduced, x)


def _combine_with_self(x: Tensor, total: Tensor, count: Tensor, reduce: str, include_self: bool) -> Tensor:
    """The sum or mean of the scattered values, with x as a term or replacing it; x where nothing was scattered."""
    if reduce == "sum":
        return x + total if include_self else where(count > 0, total, x)
    number = count + 1 if include_self else maximum(count, 1)
    combined = x + total if include_self else total
    mean = combined / number if x.dtype.is_float else combined // number
    return where(count > 0, mean, x)


def _limits(dtype: DType) -> tuple[Any, Any]:
    if dtype.is_float:
        return -float("inf"), float("inf")
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


_IDENTITY: dict[str, Callable[[DType], Any]] = {
    "prod": lambda dtype: 1,
    "max": lambda dtype: _limits(dtype)[0],
    "min": lambda dtype: _limits(dtype)[1],
}


# -- entire slices -----------------------------------------------------------------------------------------------


def index_add(x: Tensor, axis: int, index: Operand, source: Operand, alpha: Operand = 1) -> Tensor:
    """x with the slices of `source` added at the indices: y[index[i]] += alpha · source[i].

    Example: `ws.index_add(totals, 0, owners, amounts)`.
    """
    at, i, s = _slices("index_add", x, axis, index, source)
    sums = scatter_add(s, i, x.shape[at], at)
    return x + (sums if isinstance(alpha, int | float) and alpha == 1 else sums * alpha)


def index_copy(x: Tensor, axis: int, index: Operand, source: Operand) -> Tensor:
    """x with the slices at the indices replaced by slices of `source`; if an index repeats, its last slice wins.

    Example: `ws.index_copy(table, 0, changed, rows)`.
    """
    at, i, s = _slices("index_copy", x, axis, index, source)
    return _replace_slices(x, at, i, s)


def index_fill(x: Tensor, axis: int, index: Operand, value: Operand) -> Tensor:
    """x with the slices at the indices set to a number.  Example: `ws.index_fill(x, 1, [0, 2], 0.0)`."""
    at = normalize_axis("index_fill", x, axis)
    i = as_indices(index)
    _need_integers("index_fill", i)
    number = as_tensor(value)
    return _replace_slices(x, at, clamp_index(i.reshape((-1,)), x.shape[at]), number.astype(x.dtype))


def _slices(op: str, x: Tensor, axis: int, index: Operand, source: Operand) -> tuple[int, Tensor, Tensor]:
    at = normalize_axis(op, x, axis)
    i, s = as_indices(index), as_tensor(source)
    _need_integers(op, i)
    i = i.reshape((-1,)) if i.ndim != 1 else i
    if s.shape != (*x.shape[:at], i.shape[0], *x.shape[at + 1 :]):
        fail(
            ShapeError,
            f"{op}: source must have the shape {shape_text(x.shape)} with {i.shape[0]} (one slice per index) along "
            f"axis {at}; received {shape_text(s.shape)}.",
        )
    return at, clamp_index(i, x.shape[at]), s


def _replace_slices(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """`index` is a vector; `source` has one slice per index, or is a scalar."""
    size, count = x.shape[axis], index.shape[0]
    hits = iota((size, count), 0) == index
    last_hit = where(hits, iota((size, count), 1), -1).max(-1)
    mask = (last_hit >= 0).reshape((size, *[1] * (x.ndim - axis - 1)))
    return where(mask, source if source.ndim == 0 else gather(source, maximum(last_hit, 0), axis), x)


def index_put(x: Tensor, indices: Sequence[Operand | None], values: Operand, accumulate: bool = False) -> Tensor:
    """x with values written at the elements addressed by one index per axis, as `x[i, j] = values`; None: entire axis.

    Args:
        indices: integers, which broadcast with each other and count from the end if negative; or one bool mask of x's
            leading axes, with a number or a tensor that broadcasts to x as values.
        values: broadcast to the shape of x[indices].
        accumulate: add the values; otherwise the last of several values for one element remains.

    Example: `ws.index_put(x, (rows, columns), 1.0)`.
    """
    op = "index_put"
    index_tensors = [None if i is None else as_indices(i) for i in indices]
    if len(index_tensors) > x.ndim or all(i is None for i in index_tensors):
        fail(ShapeError, f"{op} needs 1 to {x.ndim} indices, not all None; received {len(index_tensors)}.")
    masks = [i for i in index_tensors if i is not None and i.dtype == boolean]
    if masks:
        return _put_by_mask(op, x, index_tensors, values, accumulate)
    for i in index_tensors:
        if i is not None:
            _need_integers(op, i)
    order, linear, rest, result_shape = _flatten_indices(x, index_tensors)
    v = as_tensor(values)
    v = (v.astype(x.dtype) if v.ndim == 0 else v).expand(*result_shape)
    v = v.permute(
        _values_first(len(result_shape), linear.ndim, order, [d for d, i in enumerate(index_tensors) if i is not None])
    )
    positions = product(x.shape[d] for d in order[: x.ndim - len(rest)])
    flat = x.permute(order).reshape((positions, *rest))
    count = product(linear.shape)
    v, linear = v.reshape((count, *rest)), linear.reshape((count,))
    result = flat + scatter_add(v, linear, positions) if accumulate else _replace_slices(flat, 0, linear, v)
    shape = [x.shape[d] for d in order]
    return result.reshape(shape).permute([order.index(d) for d in range(x.ndim)])


def _flatten_indices(
    x: Tensor, index_tensors: Sequence[Tensor | None]
) -> tuple[list[int], Tensor, list[Extent], list[Extent]]:
    """(axes, indexed axes first; linear index over the indexed axes; sizes of the other axes; shape of x[given])."""
    indexed = [d for d, i in enumerate(index_tensors) if i is not None]
    others = [d for d in range(x.ndim) if d not in indexed]
    linear = flat_index(x, index_tensors)
    rest = [x.shape[d] for d in others]
    if indexed[-1] - indexed[0] == len(indexed) - 1:  # adjacent: the axes of the indices replace them
        result_shape = [*x.shape[: indexed[0]], *linear.shape, *x.shape[indexed[-1] + 1 :]]
    else:
        result_shape = [*linear.shape, *rest]
    return [*indexed, *others], linear, rest, result_shape


def _values_first(rank: int, indexed: int, order: Sequence[int], indexed_axes: Sequence[int]) -> list[int]:
    """The permutation of the values' axes that moves the axes of the indices to the front."""
    first = indexed_axes[0] if indexed_axes[-1] - indexed_axes[0] == len(indexed_axes) - 1 else 0
    index_axes = list(range(first, first + indexed))
    return [*index_axes, *(d for d in range(rank) if d not in index_axes)]


def _put_by_mask(
    op: str, x: Tensor, index_tensors: Sequence[Tensor | None], values: Operand, accumulate: bool
) -> Tensor:
    mask = index_tensors[0]
    if len(index_tensors) != 1 or mask is None or mask.shape != x.shape[: mask.ndim]:
        fail(
            ShapeError,
            f"{op}: a mask must be the only index and have the leading axes of {shape_text(x.shape)}; received "
            f"{[None if i is None else shape_text(i.shape) for i in index_tensors]}.",
        )
    v = as_tensor(values)
    v = v.astype(x.dtype) if v.ndim == 0 else v
    broadcast_mask = mask.reshape((*mask.shape, *[1] * (x.ndim - mask.ndim)))
    return where(broadcast_mask, x + v if accumulate else v, x)


def masked_scatter(x: Tensor, mask: Operand, source: Tensor) -> Tensor:
    """x with the elements of `source`, in order, where the mask is True.

    Example: `ws.masked_scatter(x, hidden, replacements)`.
    """
    m = as_tensor(mask)
    if m.dtype != boolean:
        fail(DTypeError, f"masked_scatter needs a bool mask; received {m!r}. Compare it first: m != 0.")
    m = m.expand(*x.shape)
    total = product(x.shape)
    position = (cumsum(m.reshape((total,)).astype("int32"), 0) - 1).reshape(x.shape)
    return where(m, gather(source.reshape((product(source.shape),)), maximum(position, 0)), x)


def scatter_slice(
    x: Tensor, source: Operand, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Tensor:
    """x with x[start:stop:step] along an axis replaced by `source`; torch calls it `slice_scatter`.

    Example: `ws.scatter_slice(x, rows, 0, 2, 4)`.
    """
    op, s = "scatter_slice", as_tensor(source)
    at, size = axis_and_size(op, x, axis)
    positions = range(*slice(start, stop, step).indices(size))
    if s.shape != (*x.shape[:at], len(positions), *x.shape[at + 1 :]):
        fail(
            ShapeError,
            f"{op}: source must have {len(positions)} slices along axis {at} of {shape_text(x.shape)}; received "
            f"{shape_text(s.shape)}.",
        )
    before = (slice(None),) * at
    if not positions:
        return x
    if step == 1:
        parts = [x[(*before, slice(0, positions[0]))], s, x[(*before, slice(positions[-1] + 1, size))]]
        nonempty = [p for p in parts if p.shape[at] != 0]
        return concat(nonempty, at) if len(nonempty) > 1 else s
    source_index, mask = np.zeros(size, np.int32), np.zeros((size, *[1] * (x.ndim - at - 1)), bool)
    source_index[list(positions)], mask[list(positions)] = np.arange(len(positions)), True
    return where(mask, gather(s, source_index, at), x)


def _need_integers(op: str, index: Tensor) -> None:
    if not index.dtype.is_integer:
        fail(DTypeError, f"{op} needs integer indices; received {index!r}. Cast them: i.astype('int32').")
