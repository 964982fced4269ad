"""Tensors that depend on sizes alone, and triangles."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def full(r: AtenRecorder, value: Any) -> Any:
    """One number everywhere; of a known size one of torch's tensors, which may go on being computed with."""
    import torch

    if isinstance(value, Tensor):
        return r.tensor(value, r.dtype).expand(*r.shape) if r.shape else r.tensor(value, r.dtype)
    if isinstance(value, torch.Tensor):
        value = value.item()
    shape = r.shape
    if all(isinstance(e, int) for e in shape) and isinstance(value, bool | int | float):
        return torch.full(shape, value, dtype=r.result.dtype)
    return r.tensor(r.operand(value)).astype(r.dtype).expand(*shape)


@row("zeros_like", "zeros", "new_zeros", "empty_like", "empty", "new_empty", "empty_strided", "new_empty_strided",
     "empty_permuted")  # fmt: skip
def _zeros(r: AtenRecorder, *_: Any, **__: Any) -> Any:
    return full(r, 0)


@row("ones_like", "ones", "new_ones")
def _ones(r: AtenRecorder, *_: Any, **__: Any) -> Any:
    return full(r, 1)


@row("full_like", "full", "fill")
def _full(r: AtenRecorder, _: Any, value: Any, **__: Any) -> Any:
    return full(r, value)


@row("new_full")
def _new_full(r: AtenRecorder, _: Any, __: Any, value: Any, **___: Any) -> Any:
    return full(r, value)


@row("scalar_tensor")
def _scalar(r: AtenRecorder, value: Any, **_: Any) -> Tensor:
    return r.tensor(value, r.dtype)


@row("arange")
def _arange(r: AtenRecorder, *args: Any, **_: Any) -> Tensor:
    numbers = [a for a in args if not isinstance(a, str)]
    start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
    whole = ws.arange(r.shape[0], dtype="int64").astype(r.dtype)
    whole = whole if step == 1 else whole * r.operand(step)
    return whole if isinstance(start, int) and start == 0 else whole + r.operand(start)


@row("linspace")
def _linspace(r: AtenRecorder, start: Any, end: Any, *_: Any, **__: Any) -> Tensor:
    steps = r.fixed(r.shape[0], "the number of steps")
    shares = r.graph.constant(np.linspace(0.0, 1.0, steps, dtype=r.dtype))
    first = r.tensor(start, r.dtype)
    return first + (r.tensor(end, r.dtype) - first) * shares


@row("eye")
def _eye(r: AtenRecorder, *_: Any, **__: Any) -> Tensor:
    rows, columns = r.shape
    return ws.eye(rows, columns, r.dtype)


@row("tril")
def _tril(r: AtenRecorder, x: Any, diagonal: int = 0) -> Tensor:
    return _triangle(r, x, diagonal, below=True)


@row("triu")
def _triu(r: AtenRecorder, x: Any, diagonal: int = 0) -> Tensor:
    return _triangle(r, x, diagonal, below=False)


def _triangle(r: AtenRecorder, x: Any, diagonal: int, below: bool) -> Tensor:
    t = r.tensor(x)
    size = t.shape[-2:]
    distance = ws.iota(size, 1) - ws.iota(size, 0)
    kept = distance <= diagonal if below else distance >= diagonal
    return ws.where(kept, t, r.operand(0))
