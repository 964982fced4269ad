"""Sums along an axis, order, the largest few, counts."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.aten.record import Recorder
from wholestep.aten.table import row
from wholestep.compiler.frontend.tensor import Tensor


@row("cumsum")
def _cumsum(r: Recorder, x: Any, dim: int, dtype: Any = None) -> Tensor:
    t = r.tensor(x, r.dtype)
    return t if t.ndim == 0 else ws.cumsum(t, dim)


def _steps(r: Recorder, x: Any, dim: int) -> tuple[Tensor, list[int]]:
    """The axis in front, and how to put it back."""
    t = r.tensor(x, r.dtype)
    at = dim % t.ndim
    order = [at, *(d for d in range(t.ndim) if d != at)]
    return t.permute(order), [order.index(d) for d in range(t.ndim)]


@row("cumprod")
def _cumprod(r: Recorder, x: Any, dim: int, dtype: Any = None) -> Tensor:
    steps, back = _steps(r, x, dim)
    start = ws.ones_like(steps[0])
    _, out = ws.scan(lambda c, e: (c * e, c * e), start, steps)
    return out.permute(back)


@row("logcumsumexp")
def _logcumsumexp(r: Recorder, x: Any, dim: int) -> Tensor:
    t = r.tensor(x, r.dtype)
    largest = ws.stop_gradient(t.max(dim, keepdims=True))
    return ws.log(ws.cumsum(ws.exp(t - largest), dim)) + largest


def _running(r: Recorder, x: Any, dim: int, least: bool) -> tuple[Tensor, Tensor]:
    steps, back = _steps(r, x, dim)
    number = ws.iota(steps.shape, 0, "int64")

    def step(carry: tuple[Tensor, Tensor], item: tuple[Tensor, Tensor]) -> Any:
        best, place = carry
        value, here = item
        better = value <= best if least else value >= best
        carry = (ws.where(better, value, best), ws.where(better, here, place))
        return carry, carry

    _, (values, places) = ws.scan(step, (steps[0], number[0]), (steps, number))
    return values.permute(back), places.permute(back)


@row("cummax")
def _cummax(r: Recorder, x: Any, dim: int) -> tuple[Tensor, Tensor]:
    return _running(r, x, dim, least=False)


@row("cummin")
def _cummin(r: Recorder, x: Any, dim: int) -> tuple[Tensor, Tensor]:
    return _running(r, x, dim, least=True)


@row("topk")
def _topk(
    r: Recorder, x: Any, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
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
    r: Recorder, x: Any, *args: Any, stable: Any = None, dim: Any = None, descending: Any = None
) -> tuple[Tensor, Tensor]:
    given = [a for a in args if not (a is None or isinstance(a, bool))]
    flags = [a for a in args if isinstance(a, bool)]
    at = (given[0] if given else -1) if dim is None else dim
    down = (flags[-1] if flags else False) if descending is None else descending
    t = r.tensor(x)
    if t.ndim == 0:
        return t, ws.zeros_like(t, "int64")
    order = ws.argsort(t, at, bool(down))
    return ws.take_along_axis(t, order, at), order.astype("int64")


@row("argsort")
def _argsort(r: Recorder, x: Any, *args: Any, **named: Any) -> Tensor:
    return _sort(r, x, *args, **named)[1]


@row("kthvalue")
def _kthvalue(r: Recorder, x: Any, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    t = r.tensor(x)
    return _ranked(t, r.fixed(k, "k") - 1, dim % t.ndim, keepdim)


@row("median.dim")
def _median(r: Recorder, x: Any, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    t = r.tensor(x)
    at = dim % t.ndim
    return _ranked(t, (r.fixed(t.shape[at], "the size of the axis") - 1) // 2, at, keepdim)


@row("median.default")
def _median_of_all(r: Recorder, x: Any) -> Tensor:
    t = r.tensor(x).reshape(-1)
    return _ranked(t, (r.fixed(t.shape[0], "the number of elements") - 1) // 2, 0, False)[0]


def _ranked(t: Tensor, rank: int, at: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    index = ws.argsort(t, at)[(slice(None),) * at + (slice(rank, rank + 1),)]
    value, index = ws.take_along_axis(t, index, at), index.astype("int64")
    shape = t.shape[:at] + t.shape[at + 1 :]
    return (value, index) if keepdim else (value.reshape(shape), index.reshape(shape))


@row("bucketize", "searchsorted", refuses="boundaries with several axes")
def _bucketize(
    r: Recorder, a: Any, b: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Tensor:
    first = str(r.node.target).startswith("aten.bucketize")
    values, edges = (a, b) if first else (b, a)
    kind = r.common(*r.node.args[:2])
    v, e = r.tensor(values, kind), r.tensor(edges, kind)
    if e.ndim != 1 or sorter is not None:
        r.refuse("has boundaries with several axes, or a sorter")
    apart = v.reshape((*v.shape, 1))
    below = e <= apart if (right or side == "right") else e < apart
    return below.astype(r.dtype).sum(-1)


@row("histc", refuses="bounds that depend on the data")
def _histc(r: Recorder, x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    if min == max:
        r.refuse("has no bounds: those of the data are not known before a step")
    t = r.tensor(x, "float64").reshape(-1)
    place = ws.floor((t - float(min)) * (bins / (float(max) - float(min))))
    place = ws.where(t == float(max), float(bins - 1), place)
    inside = (t >= float(min)) & (t <= float(max))
    hits = (ws.arange(bins, dtype="float64").reshape((bins, 1)) == place) & inside
    return hits.astype(r.dtype).sum(-1)


@row("bincount", refuses="a length that depends on the data")
def _bincount(r: Recorder, x: Any, weights: Any = None, minlength: int = 0) -> Tensor:
    count = r.fixed(r.shape[0], "the length, which depends on the data,")
    hits = (ws.arange(count, dtype="int64").reshape((count, 1)) == r.tensor(x, "int64")).astype(r.dtype)
    return hits.sum(-1) if weights is None else (hits * r.tensor(weights, r.dtype)).sum(-1)


@row("isin")
def _isin(r: Recorder, elements: Any, test: Any, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    x = r.tensor(elements)
    y = r.tensor(test, x.dtype.name).reshape(-1)
    found = (x.reshape((*x.shape, 1)) == y).astype("int32").max(-1) != 0
    return ~found if invert else found
