"""Scatters: elements written or added at indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.functions import is_nonzero
from wholestep.interop.torch.aten.rows.indexing import spread
from wholestep.interop.torch.aten.rows.shape import strided_places
from wholestep.interop.torch.aten.table import row


@row("index_put", "_unsafe_index_put", refuses="several values at a mask that depends on the data")
def _index_put(r: AtenRecorder, x: Any, indices: Any, values: Any, accumulate: bool = False) -> Tensor:
    t = r.tensor(x, r.dtype)
    used = [(at, i) for at, i in enumerate(indices) if i is not None]
    if len(used) == 1 and isinstance(used[0][1], Tensor) and used[0][1].dtype.name == "bool":
        return _put_at_mask(r, t, used[0][1], used[0][0], r.tensor(values, r.dtype), accumulate)
    by_axis = [None if i is None else r.tensor(i) for i in spread(r, indices)]
    return _numbers(t, lambda n, kind: ws.index_put(n, by_axis, r.tensor(values, r.dtype).astype(kind), accumulate))


def _put_at_mask(r: AtenRecorder, t: Tensor, mask: Tensor, at: int, value: Tensor, accumulate: bool) -> Tensor:
    """Write one value, or one per position along the trailing axes, where the mask is True."""
    behind = t.ndim - at - mask.ndim
    lead = value.shape[: max(value.ndim - behind, 0)]
    if any(e != 1 for e in lead):
        r.refuse("puts several values at a mask that depends on the data")
    value = value.reshape(value.shape[len(lead) :])
    return ws.where(mask.reshape((*mask.shape, *[1] * behind)), t + value if accumulate else value, t)


def _numbers(t: Tensor, function: Callable[[Tensor, str], Tensor]) -> Tensor:
    """Booleans converted to numbers, which a scatter can combine."""
    if t.dtype.name != "bool":
        return function(t, t.dtype.name)
    return function(t.astype("int32"), "int32") != 0


_HOW = {None: "replace", "add": "sum", "multiply": "prod", "amax": "max", "amin": "min"}


@row("scatter", "scatter_add", "scatter_reduce")
def _scatter(
    r: AtenRecorder,
    x: Any,
    dim: int,
    index: Any,
    src: Any,
    how: Any = None,
    include_self: bool = True,
    *,
    reduce: Any = None,
) -> Tensor:
    reduction = "sum" if "scatter_add" in str(r.node.target) else how or reduce
    t, i = r.tensor(x, r.dtype), r.tensor(index)
    if t.ndim == 0:
        t, i = t.reshape(1), i.reshape(1)
    values = r.tensor(src, r.dtype).expand(*i.shape) if isinstance(src, bool | int | float) else r.tensor(src, r.dtype)
    values = values.reshape(i.shape) if values.ndim == 0 else values
    if values.shape != i.shape:
        values = values[tuple(slice(0, e) for e in i.shape)]
    reduction = _HOW.get(reduction, reduction)
    out = _numbers(t, lambda n, kind: ws.put_along_axis(n, i, values.astype(kind), dim, reduction, include_self))
    return out.reshape(r.shape)


@row("index_reduce")
def _index_reduce(
    r: AtenRecorder, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    values, i = r.tensor(source, r.dtype), r.tensor(index).reshape(-1)
    shape = tuple(e if d == dim % values.ndim else 1 for d, e in enumerate(values.shape))
    return _scatter(r, x, dim, i.reshape(shape).expand(*values.shape), values, reduce, include_self)


@row("index_fill")
def _index_fill(r: AtenRecorder, x: Any, dim: int, index: Any, value: Any) -> Tensor:
    return _numbers(
        r.tensor(x, r.dtype), lambda n, kind: ws.index_fill(n, dim, r.tensor(index), r.operand(value, kind))
    )


@row("slice_scatter")
def _slice_scatter(
    r: AtenRecorder, x: Any, src: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    if s.shape == t.shape:
        return s
    last = None if end is None or (isinstance(end, int) and end >= 2**62) else end
    return _numbers(t, lambda n, kind: ws.scatter_slice(n, s.astype(kind), dim, start, last, step))


@row("select_scatter")
def _select_scatter(r: AtenRecorder, x: Any, src: Any, dim: int, index: int) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    at = dim % t.ndim
    size = t.shape[at]
    here = ws.iota((size,), 0) == r.operand(index % size if isinstance(size, int) else index, "int32")
    here = here.reshape((*[1] * at, size, *[1] * (t.ndim - at - 1)))
    return ws.where(here, s.reshape((*s.shape[:at], 1, *s.shape[at:])), t)


@row("diagonal_scatter")
def _diagonal_scatter(r: AtenRecorder, x: Any, src: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
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
def _as_strided_scatter(r: AtenRecorder, x: Any, src: Any, size: Any, stride: Any, offset: Any = None) -> Tensor:
    t, s = r.tensor(x, r.dtype), r.tensor(src, r.dtype)
    if not r.node.args[0].meta["val"].is_contiguous():
        r.refuse("writes memory that is not contiguous")
    index = strided_places(size, stride, offset).reshape(-1).astype(np.int32)
    return ws.index_copy(t.reshape(-1), 0, index, s.reshape(-1)).reshape(t.shape)


@row("masked_scatter")
def _masked_scatter(r: AtenRecorder, x: Any, mask: Any, source: Any) -> Tensor:
    t = r.tensor(x, r.dtype).expand(*r.shape)
    return ws.masked_scatter(t, is_nonzero(r, mask).expand(*r.shape), r.tensor(source, r.dtype))
