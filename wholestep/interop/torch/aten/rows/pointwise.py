"""Elementwise ops of one tensor and activations that `functions.py` cannot express as one Wholestep function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def _register_step(name: str, function: Callable[[Tensor], Tensor]) -> None:
    """Register a rounding function, whose gradient is 0; integers are unchanged."""

    @row(name)
    def record(r: AtenRecorder, x: Any, **_: Any) -> Tensor:
        t = r.tensor(x, r.dtype)
        if not t.dtype.is_float and function is not ws.sign:
            return t
        return ws.stop_gradient(function(t))


for _name, _function in {
    "sign": ws.sign, "sgn": ws.sign, "floor": ws.floor, "ceil": ws.ceil, "trunc": ws.trunc, "fix": ws.trunc,
}.items():  # fmt: skip
    _register_step(_name, _function)


@row("round")
def _round(r: AtenRecorder, x: Any, decimals: int = 0) -> Tensor:
    t = r.tensor(x)
    if not t.dtype.is_float:
        return t
    scale = 10.0**decimals
    return ws.stop_gradient(ws.round(t) if decimals == 0 else ws.round(t * scale) / scale)


@row("_to_copy", "to", "type_as", "_cast_Float", "_cast_Double", "_cast_Int", "_cast_Long")
def _cast(r: AtenRecorder, x: Any, *_: Any, **__: Any) -> Tensor:
    t = r.tensor(x)
    if t.dtype.is_float and r.dtype == "bool":
        return t != 0.0
    return t.astype(r.dtype)


@row("copy")
def _copy(r: AtenRecorder, _: Any, source: Any, *__: Any) -> Tensor:
    t = r.tensor(source, r.dtype)
    return t.expand(*r.shape) if r.shape else t


@row("special_entr")
def _entropy(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    inside = t > 0.0
    return ws.where(inside, -t * ws.log(ws.where(inside, t, 1.0)), ws.where(t == 0.0, 0.0, -math.inf))


# -- activations ------------------------------------------------------------------------------------------------------


@row("elu")
def _elu(r: AtenRecorder, x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    t = r.tensor(x)
    above = t > 0.0
    below = ws.expm1(ws.where(above, 0.0, t if input_scale == 1 else t * float(input_scale)))
    out = ws.where(above, t, below if alpha == 1 else below * float(alpha))
    return out if scale == 1 else out * float(scale)


@row("hardsigmoid")
def _hardsigmoid(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    inner = t * (1.0 / 6.0) + 0.5
    if t.dtype.name == "float64":  # torch's slope is 1/6 rounded to float32
        slope = t * float(np.float32(1.0) / np.float32(6.0))
        inner = slope + ws.stop_gradient(inner - slope)
    return ws.where(t <= -3.0, 0.0, ws.where(t >= 3.0, 1.0, inner))


@row("_softmax", "softmax", "_safe_softmax")
def _softmax(r: AtenRecorder, x: Any, dim: int, *_: Any, **__: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    if t.ndim == 0:
        return ws.ones_like(t)
    if "_safe_softmax" not in str(r.node.target):
        return ws.softmax(t, dim)
    sees = t.max(dim, keepdims=True) > -math.inf  # rows without a visible key are 0
    return ws.where(sees, ws.softmax(ws.where(sees, t, 0.0), dim), 0.0)
