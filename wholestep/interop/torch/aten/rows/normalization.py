"""Norms."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.layers.composites import batch_statistics
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


@row("native_layer_norm")
def _native_layer_norm(r: AtenRecorder, x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, ...]:
    return _layer_norm(r, x, shape, weight, bias, eps), None, None


@row("layer_norm")
def _layer_norm(
    r: AtenRecorder, x: Any, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    t = r.tensor(x)
    axes = tuple(range(t.ndim - len(shape), t.ndim))
    return ws.layer_norm(t, r.optional(weight), r.optional(bias), axes, eps)


@row("rms_norm", "_fused_rms_norm")
def _rms_norm(r: AtenRecorder, x: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    t = r.tensor(x)
    axes = tuple(range(t.ndim - len(shape), t.ndim))
    out = ws.rms_norm(t, r.optional(weight), axes, eps)
    return (out, None) if isinstance(r.meta, tuple | list) else out


@row("native_group_norm")
def _native_group_norm(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, n: Any, c: Any, hw: Any, groups: int, eps: float
) -> tuple[Any, ...]:
    return _group_norm(r, x, groups, weight, bias, eps), None, None


@row("group_norm")
def _group_norm(
    r: AtenRecorder, x: Any, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any
) -> Tensor:
    return ws.group_norm(r.tensor(x), groups, r.optional(weight), r.optional(bias), eps)


@row("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional")
def _batch_norm_functional(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, mean: Any, var: Any, *more: Any
) -> tuple[Any, ...]:
    training, momentum, eps = more if len(more) == 3 else (True, *more)
    out = _normalize(r, x, weight, bias, mean, var, training, eps)
    if not training:
        return out, None, None, mean, var
    average, unbiased = batch_statistics(r.tensor(x))
    share = float(momentum)
    moved = [r.tensor(old) * (1.0 - share) + now * share for old, now in ((mean, average), (var, unbiased))]
    return out, None, None, *moved, None


def _beside(p: Tensor, x: Tensor) -> Tensor:
    return p.reshape((p.shape[0], *[1] * (x.ndim - 2)))


def _normalize(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, eps: float
) -> Tensor:
    t = r.tensor(x)
    w, b = r.optional(weight), r.optional(bias)
    if training:
        return ws.batch_norm(t, w, b, eps=eps)
    slope = 1.0 / ws.sqrt(r.tensor(var) + float(eps))
    slope = slope if w is None else slope * w
    out = (t - _beside(r.tensor(mean), t)) * _beside(slope, t)
    return out if b is None else out + _beside(b, t)


@row("_native_batch_norm_legit.no_stats")
def _batch_norm_without(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _normalize(r, x, weight, bias, None, None, True, eps), None, None


@row("_native_batch_norm_legit_no_training", "_batch_norm_no_update")
def _batch_norm_evaluated(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _normalize(r, x, weight, bias, mean, var, False, eps), None, None, None


@row("native_batch_norm", "_native_batch_norm_legit.default", "cudnn_batch_norm", "miopen_batch_norm")
def _native_batch_norm(
    r: AtenRecorder, x: Any, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    return _normalize(r, x, weight, bias, mean, var, training or mean is None, eps), None, None
