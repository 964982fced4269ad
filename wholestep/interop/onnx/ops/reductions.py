"""Reductions, softmax, cumulative sums, top-k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import boolean
from wholestep.interop.onnx.ops.shapes import axes_of, axis_of
from wholestep.interop.onnx.read.sizes import number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op
from wholestep.interop.torch.functions.reductions import logsumexp_over

Axes = tuple[int, ...]
Reduction = Callable[[Tensor, Axes, bool], Tensor]  # takes x, the axes, and whether to keep them with size 1


def _largest(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return (x.astype("int32").max(axes, keep) > 0) if x.dtype == boolean else x.max(axes, keep)


def _smallest(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return (x.astype("int32").min(axes, keep) > 0) if x.dtype == boolean else x.min(axes, keep)


def _mean(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    return x.mean(axes, keep) if x.dtype.is_float else x.astype("float64").mean(axes, keep).astype(x.dtype)


def _log_sum_exp(x: Tensor, axes: Axes, keep: bool) -> Tensor:
    y = x if x.dtype.is_float else x.astype("float64")
    return logsumexp_over(y, axes, keep).astype(x.dtype) if axes else x


def _in_floats(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x) if x.dtype.is_float else function(x.astype("float64")).astype(x.dtype)


_root, _log = _in_floats(ws.sqrt), _in_floats(ws.log)
REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": lambda x, axes, keep: x.sum(axes, keep),
    "ReduceMean": _mean,
    "ReduceMax": _largest,
    "ReduceMin": _smallest,
    "ReduceProd": lambda x, axes, keep: ws.prod(x, axes, keepdims=keep) if axes else x,
    "ReduceL1": lambda x, axes, keep: ws.abs(x).sum(axes, keep),
    "ReduceL2": lambda x, axes, keep: _root((x * x).sum(axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: (x * x).sum(axes, keep),
    "ReduceLogSum": lambda x, axes, keep: _log(x.sum(axes, keep)),
    "ReduceLogSumExp": _log_sum_exp,
}


@onnx_op(*REDUCTIONS, static=("axes_given",))
def reduce(
    x: Tensor,
    axes_given: Array | None = None,
    *,
    axes: Any = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    node: NodeContext,
) -> Tensor:
    chosen = axes if axes_given is None else axes_given
    empty = chosen is None or np.size(chosen) == 0
    places: Axes = () if empty and noop_with_empty_axes else tuple(sorted(axes_of(None if empty else chosen, x.ndim)))
    return REDUCTIONS[node.op](x, places, bool(keepdims))


@onnx_op("ArgMax", "ArgMin")
def arg(x: Tensor, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0, node: NodeContext) -> Tensor:
    at = axis_of(axis, x.ndim)
    y = ws.flip(x, at) if select_last_index else x
    index = y.argmax(at, bool(keepdims)) if node.op == "ArgMax" else ws.argmin(y, at, bool(keepdims))
    index = index.astype("int64")
    return as_tensor(x.shape[at]).astype("int64") - 1 - index if select_last_index else index


@onnx_op("Softmax", "LogSoftmax")
def softmax(x: Tensor, *, axis: int = -1, node: NodeContext) -> Tensor:
    return (ws.softmax if node.op == "Softmax" else ws.log_softmax)(x, axis_of(axis, x.ndim))


@onnx_op("Hardmax")
def hardmax(x: Tensor, *, axis: int = -1) -> Tensor:
    at = axis_of(axis, x.ndim)
    return (ws.iota(x.shape, at) == x.argmax(at, True)).astype(x.dtype)


@onnx_op("CumSum", "CumProd", static=("axis",))
def cumulative(x: Tensor, axis: Array, *, exclusive: int = 0, reverse: int = 0, node: NodeContext) -> Tensor:
    at = axis_of(int(number(axis)), x.ndim)
    if not exclusive and node.op == "CumSum":
        return ws.cumsum(x, at, reverse=bool(reverse))
    order = [at, *(d for d in range(x.ndim) if d != at)]
    steps, first = x.permute(order), 0 if node.op == "CumSum" else 1
    start = ws.full(steps.shape[1:], first, x.dtype)

    def step(total: Tensor, one: Tensor) -> tuple[Tensor, Tensor]:
        after = total + one if node.op == "CumSum" else total * one
        return after, total if exclusive else after

    _, out = ws.scan(step, start, steps, reverse=bool(reverse))
    sums: Tensor = out.permute([order.index(d) for d in range(x.ndim)])
    return sums


@onnx_op("TopK", static=("k",))
def top_k(x: Tensor, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Tensor, Tensor]:
    at = axis_of(axis, x.ndim)
    count = int(number(k))
    keys = x if x.dtype.is_float else x.astype("float64")
    _, index = ws.topk(keys if largest else -keys, count, at)
    return ws.take_along_axis(x, index, at), index.astype("int64")
