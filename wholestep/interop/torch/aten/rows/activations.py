"""Activations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


@row("relu")
def _relu(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return ws.relu(t) if t.dtype.is_float else ws.maximum(t, 0)


@row("sigmoid", "special_expit")
def _sigmoid(r: AtenRecorder, x: Any) -> Tensor:
    return ws.sigmoid(r.tensor(x, r.dtype))


@row("silu")
def _silu(r: AtenRecorder, x: Any) -> Tensor:
    return ws.silu(r.tensor(x))


@row("mish")
def _mish(r: AtenRecorder, x: Any) -> Tensor:
    return ws.mish(r.tensor(x))


@row("gelu")
def _gelu(r: AtenRecorder, x: Any, approximate: str = "none") -> Tensor:
    return ws.gelu(r.tensor(x), approximate)


@row("softplus")
def _softplus(r: AtenRecorder, x: Any, beta: float = 1, threshold: float = 20) -> Tensor:
    t = r.tensor(x)
    scaled = t if beta == 1 else t * float(beta)
    soft = ws.softplus(scaled) if beta == 1 else ws.softplus(scaled) * (1.0 / beta)
    return ws.where(scaled > float(threshold), t, soft)


@row("log_sigmoid", "log_sigmoid_forward")
def _log_sigmoid(r: AtenRecorder, x: Any) -> Any:
    out = -ws.softplus(-r.tensor(x))
    return (out, None) if isinstance(r.meta, tuple | list) else out


@row("leaky_relu")
def _leaky_relu(r: AtenRecorder, x: Any, slope: float = 0.01) -> Tensor:
    return ws.leaky_relu(r.tensor(x), float(slope))


@row("_prelu_kernel", "prelu")
def _prelu(r: AtenRecorder, x: Any, weight: Any) -> Tensor:
    t, w = r.tensor(x), r.tensor(weight)
    if w.ndim == 1 and t.ndim > 1:  # one slope for each channel
        w = w.reshape((w.shape[0], *[1] * (t.ndim - 2)))
    return ws.where(t > 0.0, t, t * w)


@row("elu")
def _elu(r: AtenRecorder, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    t = r.tensor(x)
    above = t > 0.0
    below = ws.expm1(ws.where(above, 0.0, t if input_scale == 1 else t * float(input_scale)))
    out = ws.where(above, t, below if alpha == 1 else below * float(alpha))
    return out if scale == 1 else out * float(scale)


@row("celu")
def _celu(r: AtenRecorder, x: Any, alpha: float = 1.0) -> Tensor:
    return _elu(r, x, alpha, 1, 1.0 / alpha)


@row("selu")
def _selu(r: AtenRecorder, x: Any) -> Tensor:
    return _elu(r, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@row("hardtanh")
def _hardtanh(r: AtenRecorder, x: Any, low: float = -1.0, high: float = 1.0) -> Tensor:
    """At an end itself the gradient is 0, unlike that of `clamp`."""
    t = r.tensor(x)
    return ws.where(t <= r.operand(low), r.operand(low), ws.where(t >= r.operand(high), r.operand(high), t))


@row("relu6")
def _relu6(r: AtenRecorder, x: Any) -> Tensor:
    return _hardtanh(r, x, 0.0, 6.0)


@row("hardsigmoid")
def _hardsigmoid(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    inner = t * (1.0 / 6.0) + 0.5
    if t.dtype.name == "float64":  # the slope that torch multiplies with is 1/6 in float32
        slope = t * float(np.float32(1.0) / np.float32(6.0))
        inner = slope + ws.stop_gradient(inner - slope)
    return ws.where(t <= -3.0, 0.0, ws.where(t >= 3.0, 1.0, inner))


@row("hardswish")
def _hardswish(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return ws.where(t <= -3.0, 0.0, ws.where(t >= 3.0, t, t * (t + 3.0) * (1.0 / 6.0)))


@row("hardshrink")
def _hardshrink(r: AtenRecorder, x: Any, lambd: float = 0.5) -> Tensor:
    t = r.tensor(x)
    return ws.where(ws.abs(t) <= float(lambd), 0.0, t)


@row("softshrink")
def _softshrink(r: AtenRecorder, x: Any, lambd: float = 0.5) -> Tensor:
    t, edge = r.tensor(x), float(lambd)
    return ws.where(t > edge, t - edge, ws.where(t < -edge, t + edge, 0.0))


@row("threshold")
def _threshold(r: AtenRecorder, x: Any, threshold: float, value: float) -> Tensor:
    t = r.tensor(x)
    return ws.where(t <= r.operand(threshold), r.operand(value), t)


@row("glu")
def _glu(r: AtenRecorder, x: Any, dim: int = -1) -> Tensor:
    t = r.tensor(x)
    a, b = ws.chunk(t, 2, dim)
    return a * ws.sigmoid(b)


@row("_softmax", "softmax", "_safe_softmax")
def _softmax(r: AtenRecorder, x: Any, dim: int, *_: Any, **__: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    if t.ndim == 0:
        return ws.ones_like(t)
    if "_safe_softmax" not in str(r.node.target):
        return ws.softmax(t, dim)
    sees = t.max(dim, keepdims=True) > -math.inf  # rows that see nothing are 0
    return ws.where(sees, ws.softmax(ws.where(sees, t, 0.0), dim), 0.0)


@row("_log_softmax", "log_softmax")
def _log_softmax(r: AtenRecorder, x: Any, dim: int, *_: Any, **__: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    return ws.zeros_like(t) if t.ndim == 0 else ws.log_softmax(t, dim)
