"""Operators that change shapes, move elements, or create tensors of a given shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import Dim, product
from wholestep.errors import ShapeError, UsageError
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.sizes import extents, need_room, number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op

FAR = 2**30  # exporters write such large numbers for "to the end"


def axis_of(axis: int, rank: int) -> int:
    """The axis counted from the front; raise an error if it does not exist."""
    if not -rank <= axis < rank:
        raise ShapeError(f"axis {axis} does not exist in a tensor of {rank} axes.")
    return axis % rank


def axes_of(axes: Array | Sequence[int] | None, rank: int) -> list[int]:
    """The axes counted from the front; all axes if none are given."""
    return list(range(rank)) if axes is None else [axis_of(int(d), rank) for d in np.asarray(axes).reshape(-1)]


def along(x: Tensor, indices: Any, axis: int) -> Tensor:
    """The slices of x along an axis at constant indices."""
    chosen = np.asarray(indices, np.int64)
    n = x.shape[axis]
    if np.array_equal(chosen, np.arange(chosen.size)) and chosen.size == n:
        return x
    return ws.gather(x, chosen, axis)


def cut(x: Tensor, axis: int, start: Any, stop: Any, step: int = 1) -> Tensor:
    """x[start:stop:step] along one axis."""
    return x[(*(slice(None),) * axis, slice(start, stop, step))]


@onnx_op("Reshape", static=("shape",))
def reshape(x: Tensor, shape: Array, *, allowzero: int = 0, node: NodeContext) -> Tensor:
    wanted = extents(shape)
    batch = node.batch
    if batch is not None and shape.dtype != object and wanted[:1] == [batch.fixed] and batch.is_in(x.shape):
        wanted[0] = batch.actual  # shapes in a file for a fixed batch size contain that size
    sizes = [x.shape[i] if e == 0 and not allowzero and i < x.ndim else e for i, e in enumerate(wanted)]
    return x.reshape(tuple(sizes))


@onnx_op("Flatten")
def flatten(x: Tensor, *, axis: int = 1) -> Tensor:
    at = axis + x.ndim if axis < 0 else axis
    return x.reshape((product(x.shape[:at]), product(x.shape[at:])))


@onnx_op("Transpose")
def transpose(x: Tensor, *, perm: Sequence[int] | None = None) -> Tensor:
    return x.permute(tuple(reversed(range(x.ndim))) if perm is None else tuple(perm))


@onnx_op("Unsqueeze", static=("axes",))
def unsqueeze(x: Tensor, axes: Array) -> Tensor:
    rank = x.ndim + axes.size
    new, rest = set(axes_of(axes, rank)), iter(x.shape)
    return x.reshape(tuple(1 if d in new else next(rest) for d in range(rank)))


@onnx_op("Squeeze", static=("axes",))
def squeeze(x: Tensor, axes: Array | None = None) -> Tensor:
    gone = [d for d, e in enumerate(x.shape) if e == 1] if axes is None else axes_of(axes, x.ndim)
    return x.reshape(tuple(e for d, e in enumerate(x.shape) if d not in gone))


@onnx_op("Expand", static=("shape",))
def expand(x: Tensor, shape: Array) -> Tensor:
    wanted = extents(shape)
    rank = max(len(wanted), x.ndim)
    sizes, other = ([1] * (rank - len(s)) + list(s) for s in (x.shape, wanted))
    return x.expand(*(a if b == 1 else b for a, b in zip(sizes, other))) if rank else x


@onnx_op("Concat")
def concat(first: Tensor, *rest: Tensor, axis: int, node: NodeContext) -> Tensor:
    parts, batch = [first, *rest], node.batch
    if batch is not None and axis_of(axis, first.ndim) and any(t.shape[0] == batch.actual for t in parts):
        parts = [t.expand(batch.actual, *t.shape[1:]) if t.shape[0] == batch.fixed == 1 else t for t in parts]
    return ws.concat(parts, axis)


@onnx_op("Split", static=("split",))
def split(
    x: Tensor, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None, node: NodeContext
) -> tuple[Tensor, ...]:
    at = axis_of(axis, x.ndim)
    if split is not None:
        return ws.split(x, [int(e) for e in split.reshape(-1)], at)
    n, parts = x.shape[at], num_outputs or node.outputs
    if not isinstance(n, int):
        raise ShapeError(f"Split along the symbolic dimension {n}; give the dimension a fixed number.")
    each = -(-n // parts)
    return ws.split(x, [*[each] * (parts - 1), n - each * (parts - 1)], at)


@onnx_op("Slice", static=("starts", "ends", "axes", "steps"))
def slice_(x: Tensor, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Tensor:
    first, last = extents(starts), extents(ends)
    strides = [1] * len(first) if steps is None else extents(steps)
    places = list(range(len(first))) if axes is None else axes_of(axes, x.ndim)
    key: list[Any] = [slice(None)] * x.ndim
    for d, s, e, k in zip(places, first, last, strides, strict=True):
        n = x.shape[d]
        if isinstance(n, Dim) or isinstance(s, Dim) or isinstance(e, Dim):
            beyond = isinstance(e, int) and e >= FAR
            key[d] = slice(s, None if beyond or e == n else e, k)
        elif k > 0:
            key[d] = slice(s, e, k)
        else:
            x = along(x, range(n)[slice(s, None if e < -n else e, k)], d)
    return x[tuple(key)] if x.ndim else x


@onnx_op("Pad", static=("pads", "value", "axes"))
def pad(
    x: Tensor, pads: Array, value: Array | None = None, axes: Array | None = None, *, mode: str = "constant"
) -> Tensor:
    places, amounts = axes_of(axes, x.ndim), extents(pads)
    fill = 0.0 if value is None or not value.size else float(number(value))
    pairs = [(0, 0)] * x.ndim
    for i, d in enumerate(places):
        pairs[d] = (amounts[i], amounts[i + len(places)])
    for d, (low, high) in enumerate(pairs):  # negative padding crops
        n = x.shape[d]
        if min(low, high) < 0:
            x = cut(x, d, max(0, -low), n - max(0, -high))
    around = [(max(low, 0), max(high, 0)) for low, high in pairs]
    need_room([n + low + high for n, (low, high) in zip(x.shape, around)], np.dtype(x.dtype.numpy).itemsize)
    if mode == "constant":
        if x.dtype.name == "bool":
            return ws.pad(x.astype("int32"), around, fill) != 0
        return ws.pad(x, around, fill) if any(map(any, around)) else x
    names = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    for d, (low, high) in enumerate(around):
        if low or high:
            n = x.shape[d]
            if not isinstance(n, int):
                raise ShapeError(f"Pad with mode {mode!r} needs a known size at axis {d}; received {n}.")
            x = along(x, np.pad(np.arange(n), (low, high), mode=names[mode]), d)  # type: ignore[call-overload]
    return x


@onnx_op("Tile", static=("repeats",))
def tile(x: Tensor, repeats: Array) -> Tensor:
    times = extents(repeats)
    apart = x.reshape(tuple(e for s in x.shape for e in (1, s)))
    wide = apart.expand(*(e for n, s in zip(times, x.shape) for e in (n, s))) if x.ndim else apart
    return wide.reshape(tuple(n * s for n, s in zip(times, x.shape)))


@onnx_op("CenterCropPad", static=("shape",))
def center_crop_pad(x: Tensor, shape: Array, *, axes: Sequence[int] | None = None) -> Tensor:
    for d, wanted in zip(axes_of(axes, x.ndim), extents(shape)):
        n = int(x.shape[d])
        if n > wanted:
            x = cut(x, d, (n - wanted) // 2, (n - wanted) // 2 + wanted)
        elif n < wanted:
            low = (wanted - n) // 2
            x = ws.pad(x, [(low, wanted - n - low) if j == d else (0, 0) for j in range(x.ndim)])
    return x


@onnx_op("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode != "DCR":
        return ws.pixel_shuffle(x, blocksize)
    n, c, h, w = x.shape
    b, depth = blocksize, int(c) // blocksize**2
    return x.reshape((n, b, b, depth, h, w)).permute(0, 3, 4, 1, 5, 2).reshape((n, depth, h * b, w * b))


@onnx_op("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode != "DCR":
        return ws.pixel_unshuffle(x, blocksize)
    n, c, h, w = x.shape
    b = blocksize
    blocks = x.reshape((n, c, int(h) // b, b, int(w) // b, b))
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape((n, c * b * b, int(h) // b, int(w) // b))


@onnx_op("Trilu", static=("k",))
def trilu(x: Tensor, k: Array | None = None, *, upper: int = 1) -> Tensor:
    diagonal = 0 if k is None else int(number(k))
    return (ws.triu if upper else ws.tril)(x, diagonal)


@onnx_op("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    rows, columns = (ws.iota(x.shape, d) for d in (0, 1))
    return (columns - rows == k).astype(x.dtype if dtype is None else dtype_name(dtype))


@onnx_op("Constant")
def constant(
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
) -> Array:
    if value is not None:
        return value
    if value_float is not None or value_floats is not None:
        return np.asarray(value_floats if value_float is None else value_float, np.float32)
    if value_int is not None or value_ints is not None:
        return np.asarray(value_ints if value_int is None else value_int, np.int64)
    raise UsageError("a Constant of strings or sparse numbers is not imported.")


@onnx_op("ConstantOfShape", static=("shape",))
def constant_of_shape(shape: Array, *, value: Array | None = None) -> Tensor | Array:
    one = np.zeros(1, np.float32) if value is None else value
    sizes = extents(shape)
    if math.prod(e for e in sizes if isinstance(e, int)) == 0:
        return np.full([0 if isinstance(e, Dim) else e for e in sizes], one.reshape(-1)[0], one.dtype)
    return ws.full(tuple(sizes), one.reshape(-1)[0], one.dtype)


@onnx_op("Range", static=("start", "limit", "delta"))
def range_(start: Array, limit: Array, delta: Array) -> Tensor | Array:
    if start.dtype == object or limit.dtype == object:
        first, last = start.reshape(-1)[0], limit.reshape(-1)[0]
        if number(delta) != 1:
            raise ShapeError(f"Range up to the symbolic dimension {last} has the step {number(delta)}; supported is 1.")
        whole = ws.iota((last - first,), 0, "int64")
        return whole if first == 0 else whole + as_tensor(np.int64(first))
    first, last, step = (number(v) for v in (start, limit, delta))
    if step == 0:
        raise ShapeError(f"Range from {first} to {last} with a step of 0.")
    need_room([max(0.0, (last - first) / step)], start.dtype.itemsize)
    return np.arange(first, last, step, dtype=start.dtype)


@onnx_op("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    place = ws.iota(x.shape, time_axis, "int64")
    wide = lengths.astype("int64").reshape(tuple(x.shape[d] if d == batch_axis else 1 for d in range(x.ndim)))
    index = ws.where(place < wide, wide - 1 - place, place)
    return ws.take_along_axis(x, index, time_axis)
