"""Functions of one tensor, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def _fraction(x: Tensor) -> Tensor:
    return x - ws.stop_gradient(ws.trunc(x))


# In the dtype of the result: torch computes sin of whole numbers as of floats.
_UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": ws.exp,
    "exp2": ws.exp2,
    "expm1": ws.expm1,
    "log": ws.log,
    "log2": ws.log2,
    "log10": ws.log10,
    "log1p": ws.log1p,
    "sin": ws.sin,
    "cos": ws.cos,
    "tan": lambda x: ws.sin(x) / ws.cos(x),
    "tanh": ws.tanh,
    "sinh": lambda x: 0.5 * (ws.expm1(x) - ws.expm1(-x)),  # exact near 0
    "cosh": lambda x: 0.5 * (ws.exp(x) + ws.exp(-x)),
    "asin": ws.asin,
    "acos": ws.acos,
    "atan": ws.atan,
    "asinh": ws.asinh,
    "acosh": ws.acosh,
    "atanh": ws.atanh,
    "erfinv": ws.erfinv,
    "lgamma": ws.lgamma,
    "digamma": ws.digamma,
    "sqrt": ws.sqrt,
    "rsqrt": ws.rsqrt,
    "reciprocal": ws.recip,
    "erf": ws.erf,
    "erfc": lambda x: 1.0 - ws.erf(x),
    "abs": ws.abs,
    "neg": lambda x: -x,
    "square": lambda x: x * x,
    "sinc": ws.sinc,
    "deg2rad": lambda x: x * (math.pi / 180.0),
    "rad2deg": lambda x: x * (180.0 / math.pi),
}
# Steps: their gradient is 0, whatever it would be here.
_STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "sign": ws.sign,
    "sgn": ws.sign,
    "floor": ws.floor,
    "ceil": ws.ceil,
    "trunc": ws.trunc,
    "fix": ws.trunc,
}


def _register(names: tuple[str, ...], function: Callable[[Tensor], Tensor]) -> None:
    @row(*names)
    def record(r: AtenRecorder, x: Any, **_: Any) -> Tensor:
        return function(r.tensor(x, r.dtype))


for _name, _function in _UNARY.items():
    _register(
        (_name, f"special_{_name}") if _name in ("exp2", "expm1", "log1p", "erf", "erfc", "sinc") else (_name,),
        _function,
    )


def _register_step(name: str, function: Callable[[Tensor], Tensor]) -> None:
    @row(name)
    def record(r: AtenRecorder, x: Any, **_: Any) -> Tensor:
        t = r.tensor(x, r.dtype)
        if not t.dtype.is_float and name not in ("sign", "sgn"):
            return t
        return ws.stop_gradient(function(t))


for _name, _function in _STEPS.items():
    _register_step(_name, _function)


@row("frac")
def _frac(r: AtenRecorder, x: Any) -> Tensor:
    return _fraction(r.tensor(x))


@row("round")
def _round(r: AtenRecorder, x: Any, decimals: int = 0) -> Tensor:
    t = r.tensor(x)
    if not t.dtype.is_float:
        return t
    scale = 10.0**decimals
    return ws.stop_gradient(ws.round(t) if decimals == 0 else ws.round(t * scale) / scale)


@row("clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "conj", "_conj", "resolve_conj",
     "resolve_neg", "conj_physical", "_conj_physical", "view_as_real_copy", "real", "detach_copy")  # fmt: skip
def _same(r: AtenRecorder, x: Any, **_: Any) -> Tensor:
    return r.tensor(x)


@row("wholestep.stop_gradient", "detach")
def _detach(r: AtenRecorder, x: Any) -> Tensor:
    return ws.stop_gradient(r.tensor(x))


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


@row("nan_to_num")
def _nan_to_num(
    r: AtenRecorder, x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    t = r.tensor(x)
    if not t.dtype.is_float:
        return t
    most = t.dtype.largest
    t = ws.where(ws.isnan(t), 0.0 if nan is None else float(nan), t)
    t = ws.where(t == math.inf, most if posinf is None else float(posinf), t)
    return ws.where(t == -math.inf, -most if neginf is None else float(neginf), t)


@row("logit", "special_logit")
def _logit(r: AtenRecorder, x: Any, eps: float | None = None) -> Tensor:
    t = r.tensor(x, r.dtype)
    if eps is not None:
        t = ws.clip(t, float(eps), 1.0 - float(eps))
    return ws.log(t) - ws.log1p(-t)


@row("special_entr")
def _entropy(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x, r.dtype)
    inside = t > 0.0
    return ws.where(inside, -t * ws.log(ws.where(inside, t, 1.0)), ws.where(t == 0.0, 0.0, -math.inf))


@row("special_ndtr")
def _ndtr(r: AtenRecorder, x: Any) -> Tensor:
    return 0.5 * (1.0 + ws.erf(r.tensor(x, r.dtype) * math.sqrt(0.5)))
