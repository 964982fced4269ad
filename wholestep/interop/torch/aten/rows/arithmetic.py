"""Elementwise ops of several tensors, and conditions, that `functions.py` cannot express as one Wholestep function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import REFUSED, row
from wholestep.interop.torch.functions import fmod


def _pair(r: AtenRecorder, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands, at least one of which is a tensor."""
    x, y = r.operand(a), r.operand(b)
    return (x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else (r.tensor(a, r.dtype), y)


@row("add", "add_")
def _add(r: AtenRecorder, a: Any, b: Any, alpha: Any = 1, **_: Any) -> Tensor:
    if r.dtype == "bool":
        return r.tensor(a, "bool") | r.tensor(b, "bool")
    x, y = _pair(r, a, b)
    return x + (y if alpha == 1 else y * r.operand(alpha))


@row("sub", "subtract")
def _sub(r: AtenRecorder, a: Any, b: Any, alpha: Any = 1, **_: Any) -> Tensor:
    x, y = _pair(r, a, b)
    return x - (y if alpha == 1 else y * r.operand(alpha))


@row("rsub")
def _rsub(r: AtenRecorder, a: Any, b: Any, alpha: Any = 1) -> Tensor:
    return _sub(r, b, a, alpha)


@row("mul", "multiply")
def _mul(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    if r.dtype == "bool":
        return r.tensor(a, "bool") & r.tensor(b, "bool")
    x, y = _pair(r, a, b)
    return x * y


@row("div", "divide", "true_divide", "floor_divide")
def _div(r: AtenRecorder, a: Any, b: Any, rounding_mode: str | None = None) -> Tensor:
    if "floor_divide" in str(r.node.target):
        rounding_mode = "floor"
    if rounding_mode is None:
        x, y = _pair(r, a, b)
        return x / y
    rounded = ws.floor if rounding_mode == "floor" else ws.trunc
    if r.is_float:
        x, y = _pair(r, a, b)
        return ws.stop_gradient(rounded(x / y))
    quotient = r.tensor(a, "float64") / r.operand(b, "float64")
    return rounded(quotient).astype(r.dtype)


@row("remainder")
def _remainder(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    x, y = _pair(r, a, b)
    if not r.is_float:
        return ws.mod(x, y)
    # x - floor(x / y)·y, which has torch's gradient
    if isinstance(b, int | float):
        return x - ws.stop_gradient(as_tensor(x) - ws.mod(x, y))
    return as_tensor(x) - ws.stop_gradient(ws.floor(as_tensor(x) / y)) * y


@row("fmod")
def _fmod(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    x, y = r.tensor(a, r.dtype), r.operand(b)
    return x - ws.stop_gradient(ws.trunc(x / y)) * y if r.is_float else fmod(x, y)  # ws.mod has no gradient


def _register(names: tuple[str, ...], function: Callable[[Any, Any], Tensor]) -> None:
    @row(*names)
    def record(r: AtenRecorder, a: Any, b: Any) -> Tensor:
        x, y = _pair(r, a, b)
        return function(x, y)


def _logaddexp(x: Any, y: Any) -> Tensor:
    largest = ws.stop_gradient(ws.maximum(x, y))
    return largest + ws.log(ws.exp(x - largest) + ws.exp(y - largest))


_register(("logaddexp",), _logaddexp)
_register(("logaddexp2",), lambda x, y: _logaddexp(x * math.log(2.0), y * math.log(2.0)) * (1.0 / math.log(2.0)))
_register(("special_xlog1py",), lambda x, y: ws.where(as_tensor(x) == 0.0, 0.0, x * ws.log1p(y)))
_register(("copysign",), lambda x, y: ws.abs(x) * ws.where(as_tensor(y) < 0.0, -1.0, 1.0))
_register(("ldexp",), lambda x, y: x * ws.exp2(y))


@row("pow", "float_power")
def _pow(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    if not isinstance(b, int | float) or isinstance(a, int | float):
        return ws.pow(r.tensor(a, r.dtype), r.operand(b)) if r.is_float else _whole_power(r, a, b)
    x = r.tensor(a, r.dtype)
    if not r.is_float:
        return _whole_power(r, a, b)
    if b == 0:
        return ws.ones_like(x)
    if b == -0.5:
        return ws.rsqrt(x)
    if float(b).is_integer() and 1 <= abs(b) <= 8:
        whole = _power_by_squaring(x, abs(int(b)))
        return whole if b > 0 else ws.recip(whole)
    return x ** float(b)


def _power_by_squaring(x: Tensor, times: int) -> Tensor:
    """An integer power by repeated squaring, which is also defined for negative numbers."""
    if times == 1:
        return x
    half = _power_by_squaring(x, times // 2)
    return half * half * x if times % 2 else half * half


def _whole_power(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    if isinstance(b, int) and 0 <= b <= 62:
        x = r.tensor(a, r.dtype)
        return ws.ones_like(x) if b == 0 else _power_by_squaring(x, b)
    return ws.round(ws.pow(r.tensor(a, "float64"), r.operand(b, "float64"))).astype(r.dtype)


@row("clamp", "clip")
def _clamp(r: AtenRecorder, x: Any, min: Any = None, max: Any = None) -> Tensor:
    t = r.tensor(x, r.dtype)
    low, high = (None if v is None or _endless(v) else r.operand(v) for v in (min, max))
    return t if low is None and high is None else ws.clip(t, low, high)


def _endless(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


@row("where.default", refuses="all uses: its shape depends on the data")
def _places(r: AtenRecorder, condition: Any) -> Tensor:
    r.refuse(REFUSED["nonzero"])
