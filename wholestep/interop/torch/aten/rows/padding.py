"""Padding, and images as columns of their windows."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def _amounts(rank: int, pads: Any) -> tuple[list[int], list[int]]:
    """Before and behind each axis; torch names the last axis first."""
    low, high = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        low[rank - 1 - i], high[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    return low, high


@row("constant_pad_nd", refuses="amounts that depend on a symbolic dimension")
def _constant_pad(r: AtenRecorder, x: Any, pads: Any, value: Any = 0.0) -> Tensor:
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
def _pad(r: AtenRecorder, x: Any, pads: Any, mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "constant":
        return _constant_pad(r, x, pads, 0.0 if value is None else value)
    t = r.tensor(x)
    return ws.pad(t, list(zip(*_amounts(t.ndim, pads))), mode=mode)


@row("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection(r: AtenRecorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "reflect")


@row("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication(r: AtenRecorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "replicate")


@row("_pad_circular")
def _circular(r: AtenRecorder, x: Any, pads: Any) -> Tensor:
    return _with_cuts(r, r.tensor(x), pads, "circular")


def _with_cuts(r: AtenRecorder, t: Tensor, pads: Any, mode: str) -> Tensor:
    low, high = _amounts(t.ndim, pads)
    if min([*low, *high]) < 0:
        t = t[tuple(slice(max(0, -a), -max(0, -b) or None) for a, b in zip(low, high))]
    return ws.pad(t, [(max(a, 0), max(b, 0)) for a, b in zip(low, high)], mode=mode)


@row("im2col")
def _im2col(r: AtenRecorder, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    t = r.tensor(x)
    many = t if t.ndim == 4 else t.reshape((1, *t.shape))
    return ws.unfold(many, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).reshape(r.shape)


@row("col2im")
def _col2im(r: AtenRecorder, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    t = r.tensor(x)
    many = t if t.ndim == 3 else t.reshape((1, *t.shape))
    return ws.fold(many, tuple(size), tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).reshape(r.shape)
