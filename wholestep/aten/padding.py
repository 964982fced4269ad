"""Padding, and images as columns of their windows."""

from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.aten.movement import before
from wholestep.aten.record import Recorder
from wholestep.aten.table import row
from wholestep.compiler.frontend.tensor import Tensor


def _amounts(rank: int, pads: Any) -> tuple[list[int], list[int]]:
    """Before and behind each axis; torch names the last axis first."""
    low, high = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return low, high


@row("constant_pad_nd", refuses="amounts that depend on a symbolic dimension")
def _constant_pad(r: Recorder, x: Any, pads: Any, value: Any = 0.0) -> Tensor:
    t = r.tensor(x)
    low, high = _amounts(t.ndim, [r.fixed(p, "an amount") for p in pads])
    if min([0, *low, *high]) < 0:
        cuts = [slice(max(0, -a), -max(0, -b) or None) for a, b in zip(low, high)]
        t = t[tuple(slice(None) if c == slice(0, None) else c for c in cuts)]
        low, high = [max(a, 0) for a in low], [max(b, 0) for b in high]
    if not any(low + high):
        return t
    amounts = list(zip(low, high))
    if t.dtype.is_float:
        return ws.pad(t, amounts, float(value))
    wide = ws.pad(t.astype("float64"), amounts, float(value))  # whole numbers up to 2**53 stay what they are
    return wide != 0.0 if t.dtype.name == "bool" else wide.astype(t.dtype)


@row("pad", whole=False)
def _pad(r: Recorder, x: Any, pads: Any, mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "constant":
        return _constant_pad(r, x, pads, 0.0 if value is None else value)
    t = r.tensor(x)
    return ws.pad(t, list(zip(*_amounts(t.ndim, pads))), mode=mode)


@row("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection(r: Recorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "reflect")


@row("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication(r: Recorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "replicate")


@row("_pad_circular")
def _circular(r: Recorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "circular")


def _with_cuts(r: Recorder, t: Tensor, pads: Any, mode: str) -> Tensor:
    low, high = _amounts(t.ndim, pads)
    if min([*low, *high]) < 0:
        t = t[tuple(slice(max(0, -a), -max(0, -b) or None) for a, b in zip(low, high))]
    return ws.pad(t, [(max(a, 0), max(b, 0)) for a, b in zip(low, high)], mode=mode)


def _counts(size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> list[int]:
    return [(e + 2 * p - d * (k - 1) - 1) // s + 1 for e, k, d, p, s in zip(size, kernel, dilation, padding, stride)]


@row("im2col")
def _im2col(r: Recorder, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    t = r.tensor(x)
    if any(padding):
        t = ws.pad(t, [(0, 0)] * (t.ndim - 2) + [(p, p) for p in padding])
    size = [r.fixed(e, "height or width") - 2 * p for e, p in zip(t.shape[-2:], padding)]
    rows, columns = _counts(size, kernel, dilation, padding, stride)
    parts = []
    for u, v in cartesian(range(kernel[0]), range(kernel[1])):
        a, b = u * dilation[0], v * dilation[1]
        down = slice(a, a + (rows - 1) * stride[0] + 1, stride[0])
        across = slice(b, b + (columns - 1) * stride[1] + 1, stride[1])
        parts.append(t[(..., down, across)])
    return ws.stack(parts, t.ndim - 2).reshape(r.shape)


@row("col2im")
def _col2im(r: Recorder, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    """Each window's pixels added where they came from: a product with the windows of the pixels' numbers."""
    t = r.tensor(x)
    lead = r.shape[:-2]
    rows, columns = _counts(size, kernel, dilation, padding, stride)
    h, w = (e + 2 * p for e, p in zip(size, padding))
    u, v = np.meshgrid(np.arange(kernel[0]) * dilation[0], np.arange(kernel[1]) * dilation[1], indexing="ij")
    i, j = np.meshgrid(np.arange(rows) * stride[0], np.arange(columns) * stride[1], indexing="ij")
    places = (u.reshape(-1, 1) + i.reshape(1, -1)) * w + (v.reshape(-1, 1) + j.reshape(1, -1))
    flat = t.reshape((*lead, kernel[0] * kernel[1] * rows * columns))
    out = ws.scatter_add(flat, r.graph.constant(places.reshape(-1).astype(np.int32)), h * w, flat.ndim - 1)
    out = out.reshape((*lead, h, w))
    inside = tuple(slice(p, p + e) for p, e in zip(padding, size))
    return out[(*before(len(lead)), *inside)]
