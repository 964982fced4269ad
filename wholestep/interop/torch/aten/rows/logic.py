"""Comparisons, conditions, and bits of whole numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import REFUSED, row


def _register(names: tuple[str, ...], function: Callable[[Any, Any], Tensor]) -> None:
    @row(*names)
    def record(r: AtenRecorder, a: Any, b: Any) -> Tensor:
        kind = r.common(*r.node.args[:2])
        if kind == "bool":
            kind = "int32"
        x, y = r.operand(a, kind), r.operand(b, kind)
        return function(as_tensor(x) if not isinstance(y, Tensor) else x, y)


_register(("eq",), lambda a, b: as_tensor(a) == b)
_register(("ne", "not_equal"), lambda a, b: as_tensor(a) != b)
_register(("lt", "less"), lambda a, b: as_tensor(a) < b)
_register(("le", "less_equal"), lambda a, b: as_tensor(a) <= b)
_register(("gt", "greater"), lambda a, b: as_tensor(a) > b)
_register(("ge", "greater_equal"), lambda a, b: as_tensor(a) >= b)


def truth(r: AtenRecorder, x: Any) -> Tensor:
    """Is it not 0?"""
    t = r.tensor(x)
    return t if t.dtype.name == "bool" else t != 0


@row("logical_and")
def _and(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    return truth(r, a) & truth(r, b)


@row("logical_or")
def _or(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    return truth(r, a) | truth(r, b)


@row("logical_xor")
def _xor(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    return ws.logical_xor(truth(r, a), truth(r, b))


@row("logical_not")
def _not(r: AtenRecorder, a: Any) -> Tensor:
    return ~truth(r, a)


@row("isnan")
def _isnan(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return ws.isnan(t) if t.dtype.is_float else t != t


@row("isinf")
def _isinf(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return ws.isinf(t) if t.dtype.is_float else t != t


@row("isfinite")
def _isfinite(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return ws.isfinite(t) if t.dtype.is_float else t == t


@row("isposinf")
def _isposinf(r: AtenRecorder, x: Any) -> Tensor:
    return r.tensor(x) == math.inf


@row("isneginf")
def _isneginf(r: AtenRecorder, x: Any) -> Tensor:
    return r.tensor(x) == -math.inf


@row("signbit")
def _signbit(r: AtenRecorder, x: Any) -> Tensor:
    return r.tensor(x) < 0


@row("where.default", refuses="all uses: its shape depends on the data")
def _places(r: AtenRecorder, condition: Any) -> Tensor:
    r.refuse(REFUSED["nonzero"])


@row("where")
def _where(r: AtenRecorder, condition: Any, a: Any, b: Any) -> Tensor:
    return ws.where(truth(r, condition), r.operand(a), r.operand(b))


@row("masked_fill")
def _masked_fill(r: AtenRecorder, x: Any, mask: Any, value: Any) -> Tensor:
    return ws.where(truth(r, mask), r.operand(value), r.tensor(x, r.dtype))


# -- bits --------------------------------------------------------------------------------------------------------


def _register_bits(
    names: tuple[str, ...], conditions: Callable[..., Tensor], numbers: Callable[[Any, Any], Tensor]
) -> None:
    @row(*names)
    def record(r: AtenRecorder, a: Any, b: Any) -> Tensor:
        return conditions(r, a, b) if r.dtype == "bool" else numbers(r.tensor(a, r.dtype), r.operand(b))


_register_bits(("bitwise_and", "__and__"), _and, ws.bitwise_and)
_register_bits(("bitwise_or", "__or__"), _or, ws.bitwise_or)
_register_bits(("bitwise_xor", "__xor__"), _xor, ws.bitwise_xor)
_register_bits(("bitwise_left_shift", "__lshift__"), _and, ws.left_shift)
_register_bits(("bitwise_right_shift", "__rshift__"), _and, ws.right_shift)


@row("bitwise_not")
def _bitwise_not(r: AtenRecorder, a: Any) -> Tensor:
    return ~truth(r, a) if r.dtype == "bool" else ws.bitwise_not(r.tensor(a, r.dtype))
