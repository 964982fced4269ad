"""Pools of images and signals: maxima, means and norms of windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.layers.window import SlidingWindow
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import product
from wholestep.errors import ShapeError, UsageError
from wholestep.interop.onnx.ops.indexing import put
from wholestep.interop.onnx.ops.windows import Ints, pad_spatial, spatial, split_pads, window_of
from wholestep.interop.onnx.read.sizes import extents
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op

LARGEST = 2**14  # most elements of a window: each becomes a node


def _pad_for_windows(x: Tensor, w: SlidingWindow, counts: Sequence[int], value: float) -> Tensor:
    """x with its padding, extended to the end of the last window."""
    after = [covered - n - low for covered, n, low in zip(w.span(counts), spatial(x), w.low)]
    return pad_spatial(x, w.low, [max(a, 0) for a in after], value)


def _taps(padded: Tensor, w: SlidingWindow, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    """For each position in the window, the elements at it in all windows."""
    if math.prod(w.size) > LARGEST:
        raise ShapeError(f"windows of {' x '.join(map(str, w.size))} elements; at most {LARGEST} are supported.")
    return w.taps(padded, counts)


def _positions(w: SlidingWindow, counts: Sequence[int], axis: int, position: int) -> Array:
    """The image indices, along one axis, of one position in all windows."""
    indices: Array = np.arange(counts[axis]) * w.stride[axis] + position * w.dilation[axis] - w.low[axis]
    return indices


def _along(values: Array, axis: int, axes: int) -> Array:
    """One number per window along an axis, shaped to broadcast over the other axes."""
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
    counts = w.counts(spatial(x), bool(ceil_mode))
    if node.outputs > 1:
        return _with_indices(x, y, w, counts, storage_order)
    half = all(max(a, b) <= k // 2 for a, b, k in zip(w.low, w.high, w.size))
    if len(w.size) == 2 and max(w.dilation) == 1 and not ceil_mode and half and min((*w.low, *w.high)) >= 0:
        attrs = at.PoolAttrs(w.size, w.stride, w.low, w.high, False)
        return (Tensor(record("max_pool2d", [y.node], attrs), y.graph).astype(kind),)
    padded = _pad_for_windows(y, w, counts, -math.inf)
    if len(w.size) <= 2 and max(w.dilation) == 1:
        pool = (
            ws.max_pool1d(padded, w.size[0], w.stride[0])
            if len(w.size) == 1
            else ws.max_pool2d(padded, w.size, w.stride)
        )
        return (pool.astype(kind),)
    return (reduce(ws.maximum, (tap for _, tap in _taps(padded, w, counts))).astype(kind),)


def _with_indices(x: Tensor, y: Tensor, w: SlidingWindow, counts: Sequence[int], columns: int) -> tuple[Tensor, Tensor]:
    """The maxima, and the flat index of each in the whole tensor; of equal maxima the first."""
    sizes = spatial(x)
    strides = [math.prod(sizes[:d]) if columns else math.prod(sizes[d + 1 :]) for d in range(len(sizes))]
    best = index = None
    for position, tap in _taps(_pad_for_windows(y, w, counts, -math.inf), w, counts):
        number = np.zeros(counts, np.int64)
        for d, p in enumerate(position):
            number = number + _along(_positions(w, counts, d, p), d, len(counts)) * strides[d]
        here = as_tensor(number).expand(*tap.shape)
        if best is None or index is None:
            best, index = tap, here
        else:
            larger = tap > best
            best, index = ws.where(larger, tap, best), ws.where(larger, here, index)
    assert best is not None
    assert index is not None
    image = ws.iota(best.shape, 0, "int64") * int(x.shape[1]) + ws.iota(best.shape, 1, "int64")
    return best.astype(x.dtype), index + image * math.prod(sizes)


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
    counts = w.counts(spatial(x), bool(ceil_mode))
    total = _sum_of_taps(x, w, counts)
    share: Array = np.ones((1,) * len(counts))
    for d, (n, k) in enumerate(zip(spatial(x), w.size)):
        places = np.stack([_positions(w, counts, d, p) for p in range(k)], 1)
        low, high = (w.low[d], w.high[d]) if count_include_pad else (0, 0)
        inside = ((places >= -low) & (places < n + high)).sum(1)
        share = share / _along(inside, d, len(counts))
    return total * as_tensor(share.astype(x.dtype.numpy))


def _sum_of_taps(x: Tensor, w: SlidingWindow, counts: Sequence[int]) -> Tensor:
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
    return _sum_of_taps(powers, w, w.counts(spatial(x), bool(ceil_mode))) ** (1.0 / p)


@onnx_op("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def global_pool(x: Tensor, *, p: int = 2, node: NodeContext) -> Tensor:
    axes = tuple(range(2, x.ndim))
    if node.op == "GlobalAveragePool":
        return x.mean(axes, True)
    if node.op == "GlobalMaxPool":
        return x.max(axes, True)
    return (ws.abs(x) ** float(p)).sum(axes, True) ** (1.0 / p)


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
    n = len(kernel_shape)
    low, high = split_pads(pads, n)
    window = SlidingWindow(tuple(kernel_shape), tuple(strides or [1] * n), (1,) * n, low, high)
    image = [c - a - b for c, a, b in zip(window.span(spatial(x)), low, high)]
    inner = (*x.shape[:2], *image)
    shape = inner if output_shape is None else tuple(extents(output_shape))
    count = product(x.shape)
    # The indices refer to a tensor of the pool's input size; other elements are 0.
    flat = put(
        ws.zeros((product(inner),), dtype=x.dtype), index.reshape((count,)), x.reshape((count,)), "none"
    ).reshape(inner)
    more = [b - a for a, b in zip(image, shape[2:])]
    if any(not isinstance(m, int) or m < 0 for m in more):
        raise UsageError(f"MaxUnpool to {shape}, which is smaller than the {inner} that its windows cover.")
    return pad_spatial(flat, [0] * n, [int(m) for m in more])
