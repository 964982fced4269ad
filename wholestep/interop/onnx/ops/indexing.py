"""Gathers and scatters: elements read or written at indices."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import Extent, product
from wholestep.errors import OptionError, ShapeError
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.sizes import number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op


def from_front(index: Tensor | Array, n: Extent) -> Tensor:
    """Convert negative indices, which count from the end, to indices from the start."""
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
    for d in range(x.ndim):  # the index may be smaller than x on the other axes
        if d != at and i.shape[d] != x.shape[d]:
            x = x[(*(slice(None),) * d, slice(0, i.shape[d]))]
    if x.dtype.name == "bool":
        return ws.take_along_axis(x.astype("int32"), i, at) != 0
    return ws.take_along_axis(x, i, at)


def linear_index(index: Tensor, shape: tuple[Extent, ...]) -> Tensor:
    """Combine (..., k) indices of the first k axes to one index of these axes flattened."""
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


# -- scatters ----------------------------------------------------------------------------------------------------------


def put(rows: Tensor, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Write or combine updates at indexed rows; without a reduction, the order of equal indices is undefined."""
    n = rows.shape[0]
    if rows.dtype.name in ("bool", "uint8"):
        whole = put(rows.astype("int32"), index, updates.astype("int32"), reduction)
        return whole != 0 if rows.dtype.name == "bool" else whole.astype(rows.dtype)
    added = ws.scatter_add(updates, index, n)
    if reduction == "add":
        return rows + added
    if reduction == "none":
        count = ws.scatter_add(ws.ones(index.shape, dtype="int32"), index, n)
        return ws.where((count > 0).reshape((n, *[1] * (rows.ndim - 1))), added, rows)
    places = index.reshape((product(index.shape), *[1] * (rows.ndim - 1))).expand(*updates.shape)
    return ws.put_along_axis(rows, places, updates, 0, reduction_name(reduction))


def reduction_name(reduction: str) -> str:
    """Our name of an ONNX reduction."""
    names = {"none": "replace", "add": "sum", "mul": "prod", "max": "max", "min": "min"}
    if reduction not in names:
        raise OptionError(f"reduction={reduction!r} is not supported; supported: {', '.join(names)}.")
    return names[reduction]


@onnx_op("ScatterElements", "Scatter", raw=("index",))
def scatter_elements(
    x: Tensor, index: Tensor | Array, updates: Tensor, *, axis: int = 0, reduction: str = "none"
) -> Tensor:
    at = axis_of(axis, x.ndim)
    i = from_front(index, x.shape[at])
    return ws.put_along_axis(x, i, updates, at, reduction_name(reduction))


@onnx_op("ScatterND")
def scatter_nd(x: Tensor, index: Tensor, updates: Tensor, *, reduction: str = "none") -> Tensor:
    k = int(index.shape[-1])
    chosen = linear_index(index.astype("int64"), x.shape[:k])
    count = product(chosen.shape)
    rows = x.reshape((product(x.shape[:k]), *x.shape[k:]))
    wide = updates.reshape((count, *x.shape[k:]))
    return put(rows, chosen.reshape((count,)), wide, reduction).reshape(x.shape)


@onnx_op("TensorScatter")
def tensor_scatter(
    x: Tensor, update: Tensor, write_indices: Tensor | None = None, *, axis: int = -2, mode: str = "linear"
) -> Tensor:
    """A cache with new rows, from one start index per batch element; mode "circular" wraps around at the end."""
    at, n = axis_of(axis, x.ndim), int(x.shape[axis])
    many = int(update.shape[at])
    start = as_tensor(np.zeros(int(x.shape[0]), np.int64)) if write_indices is None else write_indices.astype("int64")
    first = start.reshape((x.shape[0], *[1] * (x.ndim - 1)))
    place = ws.iota(x.shape, at, "int64") - first
    place = ws.mod(place + n, as_tensor(np.int64(n))) if mode == "circular" else place
    inside = (place >= 0) & (place < many)
    wide = update if many >= n else ws.pad(update, [(0, n - many) if d == at else (0, 0) for d in range(x.ndim)])
    kind = x.dtype
    moved = ws.take_along_axis(wide.astype("int32") if kind.name == "bool" else wide, ws.clip(place, 0, n - 1), at)
    return ws.where(inside, moved.astype(kind), x)
