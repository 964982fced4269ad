"""Sorting, top-k, medians, modes, searches and histograms."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


@row("topk")
def _topk(
    r: AtenRecorder, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    t, k = r.tensor(x), r.fixed(k, "k")
    at = dim % t.ndim
    if not t.dtype.is_float or k > 16 or k == t.shape[at]:
        order = ws.argsort(t, at, descending=largest)
        index = order[(slice(None),) * at + (slice(0, k),)]
    else:
        _, index = ws.topk(t if largest else -t, k, at)
    return ws.take_along_axis(t, index, at), index.astype("int64")


@row("sort")
def _sort(
    r: AtenRecorder, x: Any, *args: Any, stable: Any = None, dim: Any = None, descending: Any = None
) -> tuple[Tensor, Tensor]:
    numbers = [a for a in args if not (a is None or isinstance(a, bool))]
    flags = [a for a in args if isinstance(a, bool)]
    at = (numbers[0] if numbers else -1) if dim is None else dim
    down = (flags[-1] if flags else False) if descending is None else descending
    t = r.tensor(x)
    if t.ndim == 0:
        return t, ws.zeros_like(t, "int64")
    order = ws.argsort(t, at, bool(down))
    return ws.take_along_axis(t, order, at), order.astype("int64")


@row("argsort")
def _argsort(r: AtenRecorder, x: Any, *args: Any, **named: Any) -> Tensor:
    return _sort(r, x, *args, **named)[1]


@row("kthvalue")
def _kthvalue(r: AtenRecorder, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    t = r.tensor(x)
    return _element_of_rank(t, r.fixed(k, "k") - 1, dim % t.ndim, keepdim)


@row("median.dim")
def _median(r: AtenRecorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    t = r.tensor(x)
    at = dim % t.ndim
    return _element_of_rank(t, (r.fixed(t.shape[at], "the size of the axis") - 1) // 2, at, keepdim)


@row("median.default")
def _median_of_all(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x).reshape(-1)
    return _element_of_rank(t, (r.fixed(t.shape[0], "the number of elements") - 1) // 2, 0, False)[0]


def _element_of_rank(t: Tensor, rank: int, at: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    return element_at(t, ws.argsort(t, at)[(slice(None),) * at + (slice(rank, rank + 1),)], at, keepdim)


def element_at(t: Tensor, index: Tensor, at: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The elements at an index along an axis, and the index."""
    value, index = ws.take_along_axis(t, index, at), index.astype("int64")
    shape = t.shape[:at] + t.shape[at + 1 :]
    return (value, index) if keepdim else (value.reshape(shape), index.reshape(shape))


@row("nanmedian.dim")
def _nanmedian(r: AtenRecorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The median of the elements that are not NaN, which are sorted first; their count gives the middle."""
    t = r.tensor(x)
    at = dim % t.ndim
    count = (~ws.isnan(t)).astype("int32").sum(at, True)
    rank = ws.maximum(count - 1, 0) // 2
    index = ws.take_along_axis(ws.argsort(t, at), rank, at)
    return element_at(t, index, at, keepdim)


@row("nanmedian.default")
def _nanmedian_of_all(r: AtenRecorder, x: Any) -> Tensor:
    return _nanmedian(r, r.tensor(x).reshape(-1), 0)[0]


@row("mode")
def _mode(r: AtenRecorder, x: Any, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest of the most frequent values, and its last index."""
    t = r.tensor(x)
    at = dim % t.ndim
    n = r.fixed(t.shape[at], "the size of the axis")
    fixed = ws.stop_gradient(t)
    often = (fixed.unsqueeze(at + 1) == fixed.unsqueeze(at)).astype("int32").sum(at + 1)
    is_most = often == often.max(at, True)
    most = fixed.dtype.largest if fixed.dtype.is_float else 2**31 - 1
    least = ws.where(is_most, fixed, most).min(at, True)
    place = ws.iota(t.shape, at)
    index = ws.where(is_most & (fixed == least), place, -1).max(at, True)
    return element_at(t, ws.clip(index, 0, n - 1), at, keepdim)


@row("bucketize", refuses="a sorter")
def _bucketize(r: AtenRecorder, values: Any, edges: Any, *, right: bool = False, **_: Any) -> Tensor:
    kind = r.common(*r.node.args[:2])
    return ws.bucketize(r.tensor(values, kind), r.tensor(edges, kind), right).astype(r.dtype)


@row("searchsorted", refuses="a sorter")
def _searchsorted(
    r: AtenRecorder, edges: Any, values: Any, *, right: bool = False, side: Any = None, sorter: Any = None, **_: Any
) -> Tensor:
    if sorter is not None:
        r.refuse("takes a sorter")
    kind = r.common(*r.node.args[:2])
    return ws.searchsorted(r.tensor(edges, kind), r.tensor(values, kind), right or side == "right").astype(r.dtype)


@row("histc", refuses="bounds that depend on the data")
def _histc(r: AtenRecorder, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    t = r.tensor(x)
    return ws.histc(t if t.dtype.is_float else t.astype("float64"), bins, min, max).astype(r.dtype)


@row("bincount", refuses="a length that depends on the data")
def _bincount(r: AtenRecorder, x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    count = r.fixed(r.shape[0], "the length, which depends on the data,")
    return ws.bincount(r.tensor(x), count, r.optional(weights)).astype(r.dtype)


@row("isin")
def _isin(r: AtenRecorder, elements: Any, test: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    x = r.tensor(elements)
    y = r.tensor(test, x.dtype.name).reshape(-1)
    is_member = (x.reshape((*x.shape, 1)) == y).astype("int32").max(-1) != 0
    return ~is_member if invert else is_member
