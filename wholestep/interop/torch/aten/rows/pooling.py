"""Pools."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.convolution import numbers
from wholestep.interop.torch.aten.rows.shape import along
from wholestep.interop.torch.aten.table import row


def _axes(r: AtenRecorder) -> int:
    """Over how many axes a pool goes, by its name."""
    name = str(r.node.target)
    return next(n for n in (1, 2, 3) if f"{n}d" in name)


def _needs_indices(r: AtenRecorder) -> bool:
    return isinstance(r.meta, tuple | list) and any(u.args[1] == 1 for u in r.node.users)


def _add_batch_axis(t: Tensor, axes: int) -> Tensor:
    return t.reshape((1, *t.shape)) if t.ndim == axes + 1 else t


def _windows(r: AtenRecorder, t: Tensor, size: Any, stride: Any, padding: Any, dilation: Any, fill: float) -> Tensor:
    """Every window's elements along a new last axis, for what is not computed as a pool: (..., *out, taps)."""
    outs, axes = r.shape[-len(size) :], len(size)
    first = t.ndim - axes
    behind = []
    for j, out in enumerate(outs):
        needs = (int(out) - 1) * stride[j] + dilation[j] * (size[j] - 1) + 1
        behind.append(max(0, needs - r.fixed(t.shape[first + j], "a size") - padding[j]))
    t = ws.pad(t, [(0, 0)] * first + list(zip(padding, behind)), fill)
    for j, out in enumerate(outs):  # (..., out, taps, ...) for each axis in turn, the taps moved to the end
        places = np.arange(int(out))[:, None] * stride[j] + np.arange(size[j]) * dilation[j]
        t = along(t, places, first + j)
        t = t.permute([*(d for d in range(t.ndim) if d != first + j + 1), first + j + 1])
    return t.reshape((*t.shape[: first + axes], math.prod(size)))


@row("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool1d",
     "max_pool3d")  # fmt: skip
def _max_pool(
    r: AtenRecorder, x: Any, size: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    axes, t = _axes(r), r.tensor(x)
    size = numbers(size, axes)
    steps = numbers(stride, axes) if isinstance(stride, int) or stride else size
    around, apart = numbers(padding, axes), numbers(dilation, axes)
    several = isinstance(r.meta, tuple | list)
    t = _add_batch_axis(t, axes)
    if max(apart) > 1 or _needs_indices(r):
        out, index = _with_indices(r, t, size, steps, around, apart)
        return (out.reshape(r.shape), index.reshape(r.shape)) if several else out.reshape(r.shape)
    if axes == 1:
        out = ws.max_pool1d(t, size[0], steps[0], around[0], ceil_mode)
    elif axes == 2:
        out = ws.max_pool2d(t, size, steps, around, ceil_mode)
    else:
        out = ws.max_pool3d(t, size, steps, around, ceil_mode)
    out = out.reshape(r.shape)
    return (out, None) if several else out


def _with_indices(
    r: AtenRecorder, t: Tensor, size: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[Tensor, Tensor]:
    """The maximum of each window and its place in the image, numbered row by row."""
    space = tuple(r.fixed(e, "a size") for e in t.shape[2:])
    taps = _windows(r, t, size, stride, padding, dilation, -math.inf)
    best = taps.argmax(-1, keepdims=True)
    value = ws.take_along_axis(taps, best, -1)
    place = np.arange(math.prod(space)).reshape((1, 1, *space))
    outs = tuple(int(e) for e in r.shape[-len(size) :])
    number = np.pad(
        place, [(0, 0), (0, 0), *((p, p + d * k + s) for p, d, k, s in zip(padding, dilation, size, stride))]
    )
    for j, out in enumerate(outs):
        number = np.take(number, np.arange(out)[:, None] * stride[j] + np.arange(size[j]) * dilation[j], axis=2 + j)
        number = np.moveaxis(number, 3 + j, -1)
    table = r.graph.constant(number.reshape((1, 1, *outs, -1)).astype(np.int64))
    index = ws.where(ws.iota(taps.shape, taps.ndim - 1) == best, table.expand(*taps.shape), 0).sum(-1)
    return value.reshape(value.shape[:-1]), index


@row("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _avg_pool(
    r: AtenRecorder, x: Any, size: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: Any = None,
) -> Tensor:  # fmt: skip
    axes, t = _axes(r), r.tensor(x)
    size = numbers(size, axes)
    steps = numbers(stride, axes) if isinstance(stride, int) or stride else size
    around = numbers(padding, axes)
    t = _add_batch_axis(t, axes)
    if divisor_override is not None:
        taps = _windows(r, t, size, steps, around, (1,) * axes, 0.0)
        return (taps.sum(-1) / float(divisor_override)).reshape(r.shape)
    if not any(around) and all(e == 1 for e in r.shape[-axes:]) and _covers(size, t):
        return t.mean(tuple(range(2, t.ndim)), True).reshape(r.shape)  # a window beyond the image counts what is in it
    if axes == 1:
        out = ws.avg_pool1d(t, size[0], steps[0], around[0], ceil_mode, count_include_pad)
    elif axes == 2:
        out = ws.avg_pool2d(t, size, steps, around, ceil_mode, count_include_pad)
    else:
        out = ws.avg_pool3d(t, size, steps, around, ceil_mode, count_include_pad)
    return out.reshape(r.shape)


def _covers(size: Any, t: Tensor) -> bool:
    return all(isinstance(e, int) and n >= e for n, e in zip(size, t.shape[2:]))


def _spans(given: int, wanted: int) -> list[tuple[int, int]]:
    return [(i * given // wanted, -((-(i + 1) * given) // wanted)) for i in range(wanted)]


@row("_adaptive_avg_pool1d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d", "adaptive_avg_pool2d",
     "_adaptive_avg_pool3d", "adaptive_avg_pool3d")  # fmt: skip
def _adaptive_avg_pool(r: AtenRecorder, x: Any, size: Any) -> Tensor:
    t, axes = r.tensor(x), _axes(r)
    wanted = r.shape[-axes:]
    first = t.ndim - axes
    if all(n == 1 for n in wanted):
        return t.mean(tuple(range(first, t.ndim)), True)
    for j, n in enumerate(wanted):
        at, given = first + j, r.fixed(t.shape[first + j], "a size")
        n = r.fixed(n, "a size")
        if given == n:
            continue
        shares = np.zeros((given, n), t.dtype.numpy)
        for i, (a, b) in enumerate(_spans(given, n)):
            shares[a:b, i] = 1.0 / (b - a)
        order = [*(d for d in range(t.ndim) if d != at), at]
        t = ws.matmul(t.permute(order), r.graph.constant(shares)).permute([order.index(d) for d in range(t.ndim)])
    return t


@row("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", refuses="indices")
def _adaptive_max_pool(r: AtenRecorder, x: Any, size: Any) -> tuple[Tensor, Any]:
    t, axes = r.tensor(x), _axes(r)
    if _needs_indices(r):
        r.refuse("gives indices, which are not computed here")
    for j, n in enumerate(r.shape[-axes:]):
        at = t.ndim - axes + j
        spans = _spans(r.fixed(t.shape[at], "a size"), r.fixed(n, "a size"))
        parts = [t[(*(slice(None),) * at, slice(a, b))].max(at, True) for a, b in spans]
        t = parts[0] if len(parts) == 1 else ws.concat(parts, at)
    return t, None


@row("max_unpool2d", "max_unpool3d")
def _max_unpool(r: AtenRecorder, x: Any, indices: Any, size: Any, *_: Any) -> Tensor:
    t, i, axes = r.tensor(x), r.tensor(indices, "int64"), _axes(r)
    rows, count = product(t.shape[: t.ndim - axes]), product(t.shape[-axes:])
    values, places = t.reshape((rows, count)), i.reshape((rows, count))
    room = ws.zeros_like(values[:, :1]).expand(rows, product(r.shape[-axes:]))
    # One of several windows with the same maximum writes it; all of them have its gradient.
    added = ws.put_along_axis(room, places, values, 1, "sum")
    written = ws.put_along_axis(room, places, values, 1, "replace")
    return (added + ws.stop_gradient(written - added)).reshape(r.shape)
