"""Convolutions, pooling and unpooling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.layers.adaptive_pooling import spans
from wholestep.compiler.frontend.layers.window import SlidingWindow
from wholestep.compiler.frontend.shape.index_math import multiply_axis
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.shape import along
from wholestep.interop.torch.aten.table import row

_PLAIN: dict[int, Any] = {1: ws.conv1d, 2: ws.conv2d, 3: ws.conv3d}
_TRANSPOSED: dict[int, Any] = {1: ws.conv_transpose1d, 2: ws.conv_transpose2d, 3: ws.conv_transpose3d}
_MAX_POOLS: dict[int, Any] = {1: ws.max_pool1d, 2: ws.max_pool2d, 3: ws.max_pool3d}
_AVG_POOLS: dict[int, Any] = {1: ws.avg_pool1d, 2: ws.avg_pool2d, 3: ws.avg_pool3d}


def axis_values(value: Any, axes: int) -> tuple[int, ...]:
    """One integer for each axis; ATen passes a single one, or a list of one, for all axes."""
    values = [value] if isinstance(value, int) else list(value)
    return tuple(values * axes if len(values) == 1 else values)


@row("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", refuses="more than three axes")
def _convolution(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, *_: Any,
) -> Tensor:  # fmt: skip
    t, w, b = r.tensor(x), r.tensor(weight), r.optional(bias)
    axes = w.ndim - 2
    if axes not in _PLAIN:
        r.refuse(f"convolves over {axes} axes; 1, 2 and 3 are possible")
    unbatched = t.ndim == axes + 1
    t = t.reshape((1, *t.shape)) if unbatched else t
    arguments = (stride, padding, output_padding, dilation) if transposed else (stride, padding, dilation)
    by_axis: list[Any] = [axis_values(value, axes) for value in arguments]
    options = [values[0] for values in by_axis] if axes == 1 else by_axis
    out = (_TRANSPOSED if transposed else _PLAIN)[axes](t, w, b, *options, groups)
    return out.reshape(out.shape[1:]) if unbatched else out


def _axes(r: AtenRecorder) -> int:
    """The number of spatial axes of a pool, from its name."""
    name = str(r.node.target)
    return next(n for n in (1, 2, 3) if f"{n}d" in name)


def _needs_indices(r: AtenRecorder) -> bool:
    return isinstance(r.meta, tuple | list) and any(u.args[1] == 1 for u in r.node.users)


def _add_batch_axis(t: Tensor, axes: int) -> Tensor:
    return t.reshape((1, *t.shape)) if t.ndim == axes + 1 else t


def _window(size: Any, stride: Any, padding: Any, dilation: Any, axes: int) -> SlidingWindow:
    """The window for ATen's arguments; the stride defaults to the size."""
    sizes, around = axis_values(size, axes), axis_values(padding, axes)
    strides = axis_values(stride, axes) if isinstance(stride, int) or stride else sizes
    return SlidingWindow(sizes, strides, axis_values(dilation, axes), around, around)


def _pool(pools: dict[int, Any], t: Tensor, w: SlidingWindow, *options: bool) -> Tensor:
    arguments: list[Any] = [w.size, w.stride, w.low]
    return pools[len(w.size)](t, *(a[0] if len(a) == 1 else a for a in arguments), *options)


def _elements(r: AtenRecorder, t: Tensor, w: SlidingWindow, fill: float) -> Tensor:
    """The elements of all windows along a new last axis, (..., *out, taps), for pools that we have no op for."""
    outs, axes = [int(n) for n in r.shape[-len(w.size) :]], len(w.size)
    first = t.ndim - axes
    image = [r.fixed(n, "a size") for n in t.shape[first:]]
    after = [max(0, c - n - low) for c, n, low in zip(w.span(outs), image, w.low, strict=True)]
    t = ws.pad(t, [(0, 0)] * first + list(zip(w.low, after)), fill)
    for j, indices in enumerate(_indices(w, outs)):  # (..., out, taps, ...) for each axis, with the taps last
        t = along(t, indices, first + j)
        t = t.permute([*(d for d in range(t.ndim) if d != first + j + 1), first + j + 1])
    return t.reshape((*t.shape[: first + axes], math.prod(w.size)))


def _indices(w: SlidingWindow, outs: Sequence[int]) -> list[Any]:
    """For each axis, the indices of the elements of all windows in the padded image: (out, size)."""
    axes = zip(outs, w.size, w.stride, w.dilation, strict=True)
    return [np.arange(n)[:, None] * s + np.arange(k) * d for n, k, s, d in axes]


@row("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool1d",
     "max_pool3d")  # fmt: skip
def _max_pool(
    r: AtenRecorder, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    axes = _axes(r)
    t, w = _add_batch_axis(r.tensor(x), axes), _window(size, stride, padding, dilation, axes)
    several = isinstance(r.meta, tuple | list)
    if max(w.dilation) > 1 or _needs_indices(r):
        out, index = _with_indices(r, t, w)
        return (out.reshape(r.shape), index.reshape(r.shape)) if several else out.reshape(r.shape)
    out = _pool(_MAX_POOLS, t, w, ceil_mode).reshape(r.shape)
    return (out, None) if several else out


def _with_indices(r: AtenRecorder, t: Tensor, w: SlidingWindow) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its flat index in the image."""
    image = tuple(r.fixed(e, "a size") for e in t.shape[2:])
    taps = _elements(r, t, w, -math.inf)
    best = taps.argmax(-1, keepdims=True)
    value = ws.take_along_axis(taps, best, -1)
    outs = tuple(int(e) for e in r.shape[-len(w.size) :])
    edges = [(p, p + d * k + s) for p, d, k, s in zip(w.low, w.dilation, w.size, w.stride)]
    number = np.pad(np.arange(math.prod(image)).reshape((1, 1, *image)), [(0, 0), (0, 0), *edges])
    for j, indices in enumerate(_indices(w, outs)):
        number = np.take(number, indices, axis=2 + j)
        number = np.moveaxis(number, 3 + j, -1)
    table = r.graph.constant(number.reshape((1, 1, *outs, -1)).astype(np.int64))
    index = ws.where(ws.iota(taps.shape, taps.ndim - 1) == best, table.expand(*taps.shape), 0).sum(-1)
    return value.reshape(value.shape[:-1]), index


@row("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    r: AtenRecorder, x: Any, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    axes = _axes(r)
    t, w = _add_batch_axis(r.tensor(x), axes), _window(size, stride, padding, 1, axes)
    if divisor_override is not None:
        taps = _elements(r, t, w, 0.0)
        return (taps.sum(-1) / float(divisor_override)).reshape(r.shape)
    if (
        not any(w.low)
        and all(e == 1 for e in r.shape[-axes:])
        and all(isinstance(e, int) and k >= e for k, e in zip(w.size, t.shape[2:]))
    ):
        # a window that exceeds the image averages the part inside
        return t.mean(tuple(range(2, t.ndim)), True).reshape(r.shape)
    return _pool(_AVG_POOLS, t, w, ceil_mode, count_include_pad).reshape(r.shape)


@row("_adaptive_avg_pool1d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d",
     "_adaptive_avg_pool3d", "adaptive_avg_pool3d")  # fmt: skip
def _adaptive_avg_pool(r: AtenRecorder, x: Any, size: Any) -> Tensor:
    t, axes = r.tensor(x), _axes(r)
    target = r.shape[-axes:]
    first = t.ndim - axes
    if all(n == 1 for n in target):
        return t.mean(tuple(range(first, t.ndim)), True)
    for j, n in enumerate(target):
        at, current = first + j, r.fixed(t.shape[first + j], "a size")
        n = r.fixed(n, "a size")
        if current == n:
            continue
        shares = np.zeros((current, n), t.dtype.numpy)
        for i, (a, b) in enumerate(spans(current, n)):
            shares[a:b, i] = 1.0 / (b - a)
        t = multiply_axis(t, at, shares)
    return t


@row("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", refuses="indices")
def _adaptive_max_pool(r: AtenRecorder, x: Any, size: Any) -> tuple[Tensor, Any]:
    t, axes = r.tensor(x), _axes(r)
    if _needs_indices(r):
        r.refuse("gives indices, which are not computed here")
    for j, n in enumerate(r.shape[-axes:]):
        at = t.ndim - axes + j
        windows = spans(r.fixed(t.shape[at], "a size"), r.fixed(n, "a size"))
        parts = [t[(*(slice(None),) * at, slice(a, b))].max(at, True) for a, b in windows]
        t = parts[0] if len(parts) == 1 else ws.concat(parts, at)
    return t, None


@row("max_unpool2d", "max_unpool3d")
def _max_unpool(r: AtenRecorder, x: Any, indices: Any, size: Any, *_: Any) -> Tensor:
    t, i, axes = r.tensor(x), r.tensor(indices, "int64"), _axes(r)
    rows, count = product(t.shape[: t.ndim - axes]), product(t.shape[-axes:])
    values, places = t.reshape((rows, count)), i.reshape((rows, count))
    room = ws.zeros_like(values[:, :1]).expand(rows, product(r.shape[-axes:]))
    # Of several windows with the same maximum one writes it; all of them get its gradient.
    added = ws.put_along_axis(room, places, values, 1, "sum")
    written = ws.put_along_axis(room, places, values, 1, "replace")
    return (added + ws.stop_gradient(written - added)).reshape(r.shape)
