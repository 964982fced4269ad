"""Elements put, or added, at indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.aten.indexing import grid, linear, spread
from wholestep.aten.logic import truth
from wholestep.aten.movement import before
from wholestep.aten.record import Recorder
from wholestep.aten.table import row
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import product


def _written(r: Recorder, t: Tensor, index: Tensor, values: Tensor, axis: int) -> Tensor:
    """t with values at positions of one axis; of those that meet, which one stays is not said by torch either."""
    if t.dtype.name == "bool":
        return _written(r, t.astype("int32"), index, values.astype("int32"), axis) != 0
    size = t.shape[axis]
    flat = index.reshape(-1)
    ordinal = ws.arange(flat.shape[0], dtype="int32")
    last = ws.where(flat.reshape((-1, 1)) == flat.reshape((1, -1)), ordinal, -1).max(1) if _may_meet(index) else None
    chosen = None if last is None else (last == ordinal).reshape(index.shape)
    ones = ws.ones_like(index, "float32") if chosen is None else chosen.astype("float32")
    hit = ws.scatter_add(ones.reshape(-1), flat, size, 0) > 0.0
    hit = hit.reshape((*[1] * axis, size, *[1] * (t.ndim - axis - 1)))
    kept = values
    if chosen is not None:
        kept = ws.where(
            chosen.reshape((*[1] * axis, *index.shape, *[1] * (t.ndim - axis - 1))), values, r.operand(0, t.dtype.name)
        )
    return ws.where(hit, ws.scatter_add(kept, index, size, axis), t)


def _may_meet(index: Tensor) -> bool:
    """May two indices be the same?  Constants tell; of others it is assumed where looking is cheap."""
    if index.node.op == "constant":
        values = index.node.attrs.array.value.reshape(-1)  # type: ignore[attr-defined]
        return len(np.unique(values)) < len(values)
    count = product(index.shape)
    return isinstance(count, int) and 1 < count <= 512


@row("index_put", "_unsafe_index_put", refuses="several values at a mask that depends on the data")
def _index_put(r: Recorder, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    t = r.tensor(x, r.dtype)
    if len(indices) == 1 and isinstance(indices[0], Tensor) and indices[0].dtype.name == "bool":
        mask = indices[0]
        if len(values.shape) and math.prod(map(int, values.shape)) != 1:
            r.refuse("puts several values at a mask that depends on the data")
        wide = mask.reshape((*mask.shape, *[1] * (t.ndim - mask.ndim)))
        value = r.tensor(values, r.dtype).reshape(())
        return ws.where(wide, t + value if accumulate else value, t)
    given = spread(r, indices)
    used = [d for d, i in enumerate(given) if i is not None]
    k, first = len(used), used[0]
    order = list(range(t.ndim))
    if used != list(range(first, first + k)):
        order = [*used, *(d for d in range(t.ndim) if d not in used)]
        given, used, first = [given[d] for d in used], list(range(k)), 0
    moved = t.permute(order) if order != list(range(t.ndim)) else t
    place = r.tensor(linear(r, given, used, moved.shape))
    flat = moved.reshape((*moved.shape[:first], product(moved.shape[first : first + k]), *moved.shape[first + k :]))
    index = place.reshape(1) if place.ndim == 0 else place
    wide = r.tensor(values, r.dtype).expand(*moved.shape[:first], *place.shape, *moved.shape[first + k :])
    wide = wide.reshape((*moved.shape[:first], *index.shape, *moved.shape[first + k :]))
    if accumulate:
        out = flat + ws.scatter_add(wide, index, flat.shape[first], first)
    else:
        out = _written(r, flat, index, wide, first)
    return out.reshape(moved.shape).permute([order.index(d) for d in range(t.ndim)])


@row("scatter", "scatter_add", "scatter_reduce", refuses="reductions other than sum, mean, product, amax and amin")
def _scatter(
    r: Recorder,
    x: Any,
    dim: int,
    index: Any,
    src: Any,
    how: Any = None,
    include_self: bool = True,
    *,
    reduce: Any = None,
) -> Tensor:
    name = str(r.node.target)
    how = "sum" if "scatter_add" in name else {"add": "sum", "multiply": "prod"}.get(how or reduce, how or reduce)
    t = r.tensor(x, r.dtype)
    if t.ndim == 0:
        return r.tensor(src, r.dtype).reshape(())
    at, i = dim % t.ndim, r.tensor(index)
    if isinstance(src, bool | int | float):
        values = r.tensor(src, r.dtype).expand(*i.shape)
    else:
        values = r.tensor(src, r.dtype)
        if values.shape != i.shape:
            values = values[tuple(slice(0, e) for e in i.shape)]
    if how in (None, "sum"):
        place, count = grid(r, index, at, t.shape).reshape(-1), product(t.shape)
        flat, moved = t.reshape(-1), values.reshape(-1)
        if how is None:
            return _put(r, t, at, i, values)
        added = ws.scatter_add(moved, place, count, 0)
        if include_self or "scatter_add" in name:
            return (flat + added).reshape(t.shape)
        hit = ws.scatter_add(ws.ones_like(moved), place, count, 0) > 0.0
        return ws.where(hit, added, flat).reshape(t.shape)
    return _reduced(r, t, at, i, values, how, include_self)


def _hits(t: Tensor, at: int, index: Tensor) -> Tensor:
    """Which element of the index means which place: (..., size, count) along the axis, moved to the end."""
    order = [*(d for d in range(t.ndim) if d != at), at]
    moved = index.permute(order)
    size = t.shape[at]
    places = ws.iota((*moved.shape[:-1], size, moved.shape[-1]), t.ndim - 1, "int64")
    return places == moved.astype("int64").reshape((*moved.shape[:-1], 1, moved.shape[-1]))


def _whole(r: Recorder, t: Tensor, at: int, index: Tensor, out: Tensor, hit: Tensor) -> Tensor:
    """The result where it was written, t elsewhere; the index may cover a part of the other axes."""
    order = [*(d for d in range(t.ndim) if d != at), at]
    back = [order.index(d) for d in range(t.ndim)]
    out, hit = out.permute(back), hit.permute(back)
    covered = all(d == at or a == b for d, (a, b) in enumerate(zip(index.shape, t.shape)))
    if covered:
        return ws.where(hit, out, t)
    amounts = [(0, 0) if d == at else (0, int(b) - int(a)) for d, (a, b) in enumerate(zip(index.shape, t.shape))]
    wide = ws.pad(out.astype("float64"), amounts).astype(out.dtype) if not out.dtype.is_float else ws.pad(out, amounts)
    return ws.where(ws.pad(hit.astype("float32"), amounts) > 0.0, wide, t)


def _put(r: Recorder, t: Tensor, at: int, index: Tensor, values: Tensor) -> Tensor:
    if t.dtype.name == "bool":
        return _put(r, t.astype("int32"), at, index, values.astype("int32")) != 0
    hits = _hits(t, at, index)
    count = index.shape[at]
    last = ws.where(hits, ws.iota(hits.shape, hits.ndim - 1), -1).max(
        -1, keepdims=True
    )  # the last one that is put there
    order = [*(d for d in range(t.ndim) if d != at), at]
    moved = values.permute(order)
    moved = moved.reshape((*moved.shape[:-1], 1, count))
    chosen = hits & (ws.iota(hits.shape, hits.ndim - 1) == last)
    out = ws.where(chosen, moved, r.operand(0, t.dtype.name)).sum(-1)
    return _whole(r, t, at, index, out, (last >= 0).reshape(out.shape))


def _reduced(r: Recorder, t: Tensor, at: int, index: Tensor, values: Tensor, how: str, include_self: bool) -> Tensor:
    hits = _hits(t, at, index)
    order = [*(d for d in range(t.ndim) if d != at), at]
    moved = values.permute(order)
    spread_out = moved.reshape((*moved.shape[:-1], 1, index.shape[at]))
    own = t.permute(order)
    own = own[tuple(slice(0, e) for e in moved.shape[:-1])] if moved.shape[:-1] != own.shape[:-1] else own
    hit = hits.astype("int32").max(-1) != 0
    if how in ("amax", "amin"):
        edge = -math.inf if how == "amax" else math.inf
        masked = ws.where(hits, spread_out, edge)
        out = masked.max(-1) if how == "amax" else masked.min(-1)
        out = (ws.maximum if how == "amax" else ws.minimum)(out, own) if include_self else out
    elif how == "mean":
        count = hits.astype(t.dtype).sum(-1) + (1.0 if include_self else 0.0)
        total = ws.where(hits, spread_out, 0.0).sum(-1) + (own if include_self else 0.0)
        out = total / ws.where(count == 0.0, 1.0, count)
    elif how == "prod":
        factors = ws.where(hits, spread_out, r.operand(1, t.dtype.name))
        out = own if include_self else ws.ones_like(own)
        for j in range(r.fixed(index.shape[at], "the size of the index")):
            out = out * factors[..., j]
    else:
        r.refuse(f"reduces by {how!r}")
    return _whole(r, t, at, index, out, hit)


@row("index_add")
def _index_add(r: Recorder, x: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Tensor:
    t, s, i = r.tensor(x, r.dtype), r.tensor(source, r.dtype), r.tensor(index)
    i = i.reshape(1) if i.ndim == 0 else i
    added = ws.scatter_add(s if alpha == 1 else s * r.operand(alpha), i, t.shape[dim % t.ndim], dim % t.ndim)
    return t + added


@row("index_copy")
def _index_copy(r: Recorder, x: Any, dim: int, index: Any, source: Any) -> Tensor:
    t, i = r.tensor(x, r.dtype), r.tensor(index)
    return _written(r, t, i.reshape(1) if i.ndim == 0 else i, r.tensor(source, r.dtype), dim % t.ndim)


@row("index_fill")
def _index_fill(r: Recorder, x: Any, dim: int, index: Any, value: Any) -> Tensor:
    t, i = r.tensor(x, r.dtype), r.tensor(index, "int64").reshape(-1)
    at = dim % t.ndim
    size = t.shape[at]
    hit = (ws.arange(size, dtype="int64").reshape((size, 1)) == i).astype("int32").max(-1) != 0
    return ws.where(hit.reshape((*[1] * at, size, *[1] * (t.ndim - at - 1))), r.operand(value), t)


@row("slice_scatter")
def _slice_scatter(
    r: Recorder, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    at = dim % t.ndim
    size = t.shape[at]
    if s.shape == t.shape:
        return s
    span = range(r.fixed(size, "the size of the axis"))[
        slice(start, None if end is None or end >= 2**62 else end, step)
    ]
    if len(span) == 0:
        return t
    if step == 1:
        pieces = [t[(*before(at), slice(0, span.start))]] if span.start else []
        pieces += [s, *([t[(*before(at), slice(span.stop, size))]] if span.stop < size else [])]  # type: ignore[operator]
        return ws.concat(pieces, at)
    table = np.full(len(range(size)), -1)
    table[list(span)] = np.arange(len(span))
    placed = ws.gather(s, np.maximum(table, 0).astype(np.int32), at)
    hit = r.graph.constant((table >= 0).reshape([-1 if d == at else 1 for d in range(t.ndim)]), "bool")
    return ws.where(hit, placed, t)


@row("select_scatter")
def _select_scatter(r: Recorder, x: Any, src: Any, dim: int, index: int) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    at = dim % t.ndim
    size = t.shape[at]
    here = ws.iota((size,), 0) == r.operand(index % size if isinstance(size, int) else index, "int32")
    here = here.reshape((*[1] * at, size, *[1] * (t.ndim - at - 1)))
    return ws.where(here, s.reshape((*s.shape[:at], 1, *s.shape[at:])), t)


@row("diagonal_scatter")
def _diagonal_scatter(r: Recorder, x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    a, b = dim1 % t.ndim, dim2 % t.ndim
    order = [*(d for d in range(t.ndim) if d not in (a, b)), a, b]
    moved = t.permute(order)
    rows, columns = moved.shape[-2:]
    count = s.shape[-1]
    wide = ws.pad(s, [(0, 0)] * (s.ndim - 1) + [(max(offset, 0), int(columns) - int(count) - max(offset, 0))])
    on = (ws.iota((rows, columns), 1) - ws.iota((rows, columns), 0)) == offset
    out = ws.where(on, wide.reshape((*wide.shape[:-1], 1, columns)), moved)
    return out.permute([order.index(d) for d in range(t.ndim)])


@row("as_strided_scatter", refuses="what is not contiguous")
def _as_strided_scatter(r: Recorder, x: Any, src: Any, size: Any, stride: Any, offset: Any = None) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    if not r.node.args[0].meta["val"].is_contiguous():
        r.refuse("writes memory that is not contiguous")
    places = np.full(tuple(size), offset or 0, np.int64)
    for d, (n, step) in enumerate(zip(size, stride)):
        places += np.arange(n).reshape([-1 if i == d else 1 for i in range(len(size))]) * step
    index = r.graph.constant(places.reshape(-1).astype(np.int32))
    return _written(r, t.reshape(-1), index, s.reshape(-1), 0).reshape(t.shape)


@row("masked_scatter")
def _masked_scatter(r: Recorder, x: Any, mask: Any, source: Any) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(source, r.dtype).reshape(-1)
    wide = truth(r, mask).expand(*t.shape).reshape(-1)
    number = ws.cumsum(wide.astype("int32"), 0) - 1  # the how many-th element of the source
    return ws.where(wide, ws.gather(s, ws.maximum(number, 0)), t.reshape(-1)).reshape(t.shape)
