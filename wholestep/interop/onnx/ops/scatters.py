"""Scatters: elements written at indices."""

from __future__ import annotations

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError
from wholestep.interop.onnx.ops.indexing import from_front, linear_index
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.table import Array, onnx_op


def put(rows: Tensor, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    """Rows with updates written, or combined, at the rows that indices name; of several for one row the order is free
    where they replace it, as ONNX has it: the indices of a file name no row twice then."""
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
        raise OptionError(f"a reduction of {reduction!r}; known are {', '.join(names)}.")
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
    """A cache with rows written from an index of each batch on, behind the end from the front again if circular."""
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
