"""Pools: windows of images and signals, their means, maxima and norms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import product
from wholestep.errors import ShapeError, UsageError
from wholestep.interop.onnx.ops.indexing import put
from wholestep.interop.onnx.ops.windows import Ints, WindowSpec, pad_spatial, spatial, window_of
from wholestep.interop.onnx.read.sizes import extents
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op

LARGEST = 2**14  # elements of a window, each of which is a node


def counts_of(x: Tensor, w: WindowSpec, ceil_mode: int) -> list[int]:
    """How many windows there are along each axis; none begins behind the image and its first margin."""
    found = []
    for n, k, s, d, low, high in zip(spatial(x), w.size, w.stride, w.dilation, w.low, w.high, strict=True):
        free = n + low + high - d * (k - 1) - 1
        count = (-(-free // s) if ceil_mode else free // s) + 1
        if ceil_mode and (count - 1) * s >= n + low:
            count -= 1
        found.append(count)
    return found


def _pad_for_windows(x: Tensor, w: WindowSpec, counts: Sequence[int], value: float) -> Tensor:
    """x with its margins, as far as the last window reaches."""
    reach = [(c - 1) * s + d * (k - 1) + 1 for c, s, d, k in zip(counts, w.stride, w.dilation, w.size)]
    behind = [r - n - low for r, n, low in zip(reach, spatial(x), w.low)]
    return pad_spatial(x, w.low, [max(b, 0) for b in behind], value)


def _taps(frame: Tensor, w: WindowSpec, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """For each place in the window, the element that every window has there."""
    if math.prod(w.size) > LARGEST:
        raise ShapeError(f"windows of {' x '.join(map(str, w.size))} elements are more than are recorded one by one.")
    for place in itertools.product(*map(range, w.size)):
        key = [
            slice(p * d, p * d + (c - 1) * s + 1, s)
            for p, d, c, s in zip(place, w.dilation, counts, w.stride, strict=True)
        ]
        yield place, frame[(slice(None), slice(None), *key)]


def _positions(x: Tensor, w: WindowSpec, counts: Sequence[int], axis: int, place: int) -> Array:
    """Where in the image a place of every window lies, along one axis."""
    found: Array = np.arange(counts[axis]) * w.stride[axis] + place * w.dilation[axis] - w.low[axis]
    return found


def _along(values: Array, axis: int, axes: int) -> Array:
    """One number for each window of an axis, to be broadcast over the others."""
    return values.reshape([-1 if d == axis else 1 for d in range(axes)])


@onnx_op("MaxPool")
def max_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    storage_order: int = 0,
    strides: Ints | None = None,
    node: NodeContext,
) -> tuple[Tensor, ...]:
    kind, y = x.dtype, x if x.dtype.is_float else x.astype("float32")
    w = window_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    counts = counts_of(x, w, ceil_mode)
    if node.outputs > 1:
        return _with_indices(x, y, w, counts, storage_order)
    half = all(max(a, b) <= k // 2 for a, b, k in zip(w.low, w.high, w.size))
    if len(w.size) == 2 and max(w.dilation) == 1 and not ceil_mode and half and min((*w.low, *w.high)) >= 0:
        attrs = at.PoolAttrs(w.size, w.stride, w.low, w.high, False)
        return (Tensor(record("max_pool2d", [y.node], attrs), y.graph).astype(kind),)
    frame = _pad_for_windows(y, w, counts, -math.inf)
    if len(w.size) <= 2 and max(w.dilation) == 1:
        pool = (
            ws.max_pool1d(frame, w.size[0], w.stride[0]) if len(w.size) == 1 else ws.max_pool2d(frame, w.size, w.stride)
        )
        return (pool.astype(kind),)
    return (reduce(ws.maximum, (tap for _, tap in _taps(frame, w, counts))).astype(kind),)


def _with_indices(x: Tensor, y: Tensor, w: WindowSpec, counts: Sequence[int], columns: int) -> tuple[Tensor, Tensor]:
    """The maxima, and the number of each in the whole tensor, the first of equal ones."""
    sizes = spatial(x)
    strides = [math.prod(sizes[:d]) if columns else math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    best = found = None
    for place, tap in _taps(_pad_for_windows(y, w, counts, -math.inf), w, counts):
        number = np.zeros(counts, np.int64)
        for d, p in enumerate(place):
            number = number + _along(_positions(x, w, counts, d, p), d, len(counts)) * strides[d]
        here = as_tensor(number).expand(*tap.shape)
        if best is None or found is None:
            best, found = tap, here
        else:
            larger = tap > best
            best, found = ws.where(larger, tap, best), ws.where(larger, here, found)
    assert best is not None
    assert found is not None
    image = ws.iota(best.shape, 0, "int64") * int(x.shape[1]) + ws.iota(best.shape, 1, "int64")
    return best.astype(x.dtype), found + image * math.prod(sizes)


@onnx_op("AveragePool")
def average_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    w = window_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    whole = not any((*w.low, *w.high)) or (count_include_pad and w.low == w.high)
    if len(w.size) == 2 and max(w.dilation) == 1 and not ceil_mode and whole:
        return ws.avg_pool2d(x, w.size, w.stride, w.low)
    counts = counts_of(x, w, ceil_mode)
    total = _sum_of_taps(x, w, counts)
    share: Array = np.ones((1,) * len(counts))
    for d, (n, k) in enumerate(zip(spatial(x), w.size)):
        places = np.stack([_positions(x, w, counts, d, p) for p in range(k)], 1)
        low, high = (w.low[d], w.high[d]) if count_include_pad else (0, 0)
        inside = ((places >= -low) & (places < n + high)).sum(1)
        share = share / _along(inside, d, len(counts))
    return total * as_tensor(share.astype(x.dtype.numpy))


def _sum_of_taps(x: Tensor, w: WindowSpec, counts: Sequence[int]) -> Tensor:
    return reduce(add, (tap for _, tap in _taps(_pad_for_windows(x, w, counts, 0.0), w, counts)))


@onnx_op("LpPool")
def lp_pool(
    x: Tensor,
    *,
    kernel_shape: Ints,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Ints | None = None,
    p: int = 2,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    w = window_of(x, kernel_shape, strides, dilations, pads, auto_pad)
    powers = ws.abs(x) ** float(p)
    return _sum_of_taps(powers, w, counts_of(x, w, ceil_mode)) ** (1.0 / p)


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(x: Tensor, *, p: int = 2, node: NodeContext) -> Tensor:
    behind = tuple(range(2, x.ndim))
    if node.op == "GlobalAveragePool":
        return x.mean(behind, True)
    if node.op == "GlobalMaxPool":
        return x.max(behind, True)
    return (ws.abs(x) ** float(p)).sum(behind, True) ** (1.0 / p)


@onnx_op("MaxUnpool", static=("output_shape",))
def max_unpool(
    x: Tensor,
    index: Tensor,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    n, stride, around = len(kernel_shape), strides or [1] * len(kernel_shape), pads or [0] * 2 * len(kernel_shape)
    own = [
        (e - 1) * s + k - around[d] - around[d + n] for d, (e, s, k) in enumerate(zip(spatial(x), stride, kernel_shape))
    ]
    inner = (*x.shape[:2], *own)
    wanted = inner if output_shape is None else tuple(extents(output_shape))
    count = product(x.shape)
    # The indices are those of a tensor of the pool's own size: the rest is 0.
    flat = put(
        ws.zeros((product(inner),), dtype=x.dtype), index.reshape((count,)), x.reshape((count,)), "none"
    ).reshape(inner)
    more = [b - a for a, b in zip(own, wanted[2:])]
    if any(not isinstance(m, int) or m < 0 for m in more):
        raise UsageError(f"MaxUnpool to {wanted}, which is smaller than the {inner} that its windows cover.")
    return pad_spatial(flat, [0] * n, [int(m) for m in more])
