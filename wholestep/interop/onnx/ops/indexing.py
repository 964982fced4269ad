"""Gathers: elements read at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import Extent, product
from wholestep.errors import ShapeError
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.sizes import number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op


def from_front(index: Tensor | Array, n: Extent) -> Tensor:
    """Indices that count from the end where they are negative, as they count from the front."""
    if isinstance(index, np.ndarray) and index.dtype != object and isinstance(n, int):
        if index.size and not -n <= index.min() <= index.max() < n:
            raise ShapeError(f"the indices {index.min()} to {index.max()} are outside of an axis of {n}.")
        return as_tensor(np.where(index < 0, index + n, index))
    i = as_tensor(index)
    if i.dtype.name == "uint8":
        return i.astype("int32")
    return ws.where(i < 0, i + as_tensor(n).astype(i.dtype), i)


@onnx_op("Gather", raw=("index",))
def gather(x: Tensor, index: Tensor | Array, *, axis: int = 0, node: NodeContext) -> Tensor:
    at = axis_of(axis, x.ndim)
    n = x.shape[at]
    if node.ours:
        return ws.gather(x, as_tensor(index), at)
    if isinstance(index, np.ndarray) and index.size == 1 and index.dtype != object:
        place = int(index.reshape(-1)[0])
        one = x[(*(slice(None),) * at, place)]
        return one.reshape((*x.shape[:at], *index.shape, *x.shape[at + 1 :]))
    if isinstance(index, np.ndarray) and index.dtype != object and isinstance(n, int):
        return ws.gather(x, index, at)
    return ws.gather(x, from_front(index, n), at)


@onnx_op("GatherElements", raw=("index",))
def gather_elements(x: Tensor, index: Tensor | Array, *, axis: int = 0) -> Tensor:
    at = axis_of(axis, x.ndim)
    i = from_front(index, x.shape[at])
    for d in range(x.ndim):  # an index may be smaller than x on the other axes
        if d != at and i.shape[d] != x.shape[d]:
            x = x[(*(slice(None),) * d, slice(0, i.shape[d]))]
    if x.dtype.name == "bool":
        return ws.take_along_axis(x.astype("int32"), i, at) != 0
    return ws.take_along_axis(x, i, at)


def linear_index(index: Tensor, shape: tuple[Extent, ...]) -> Tensor:
    """(..., k) indices of the first k axes as one index of them together."""
    total: Any = None
    for j, n in enumerate(shape):
        part = index[..., j]
        part = ws.where(part < 0, part + as_tensor(n).astype(index.dtype), part)
        total = part if total is None else total * as_tensor(n).astype(index.dtype) + part
    index_of_all: Tensor = total
    return index_of_all


@onnx_op("GatherND")
def gather_nd(x: Tensor, index: Tensor, *, batch_dims: int = 0) -> Tensor:
    i, b = index.astype("int64"), batch_dims
    k = int(i.shape[-1])
    if b:
        rows = [ws.iota((*i.shape[:-1], 1), d, "int64") for d in range(b)]
        i = ws.concat([*rows, i], -1)
    flat = x.reshape((product(x.shape[: b + k]), *x.shape[b + k :]))
    chosen = linear_index(i, x.shape[: b + k])
    out = ws.gather(flat, chosen.reshape((product(chosen.shape),)))
    return out.reshape((*index.shape[:-1], *x.shape[b + k :]))


@onnx_op("OneHot", static=("depth",))
def one_hot(index: Tensor, depth: Array, values: Tensor, *, axis: int = -1) -> Tensor:
    classes = int(number(depth))
    i = index.astype("int64")
    i = ws.where(i < 0, i + classes, i)
    at = axis_of(axis, i.ndim + 1)
    shape = (*i.shape[:at], classes, *i.shape[at:])
    here = i.reshape((*i.shape[:at], 1, *i.shape[at:])) == ws.iota(shape, at, "int64")
    return ws.where(here, values[1], values[0])
