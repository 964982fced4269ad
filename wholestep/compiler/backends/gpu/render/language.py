"""CUDA C++ as tables: types, literals, and one expression per op."""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)

# Types in memory, and of local variables.  Half types are stored as bits and cast from and to float.
STORED = {
    float32: "float",
    float64: "double",
    int32: "int",
    int64: "long long",
    uint8: "ws_byte",
    boolean: "ws_byte",
    bfloat16: "ws_half",
    float16: "ws_half",
}
LOCAL = {**STORED, boolean: "bool"}
_HALF = {bfloat16: "bf16", float16: "f16"}
_INTEGER = {int32: "i32", int64: "i64", uint8: "u8"}


def literal(value: float, dtype: DType) -> str:
    """A constant, exact to the bit."""
    if dtype == boolean:
        return "true" if value else "false"
    if not dtype.is_float:
        lowest = int(value) in (-(2**63), -(2**31))  # C++ has no negative literals
        text = f"({int(value) + 1}ll - 1)" if lowest else f"{int(value)}{'ll' if dtype == int64 else ''}"
        return f"({STORED[dtype]}){text}" if lowest or dtype == uint8 else text
    if dtype.is_half:
        return f"(ws_half){int(dtype.numpy.type(value).view('uint16')):#06x}"
    f, zero = ("f", "0.f") if dtype == float32 else ("", "0.0")
    if value != value:
        return f"ws_nan({zero})"
    if value in (float("inf"), float("-inf")):
        return f"({'-' if value < 0 else ''}ws_inf({zero}))"
    return f"{float(dtype.numpy.type(value)).hex()}{f}"


def extent_text(extent: Extent, symbols: tuple[str, ...]) -> str:
    """A size at run time; d0, d1, ... are the symbolic dimensions."""
    if not isinstance(extent, Dim):
        return str(extent)
    parts = []
    for names, coefficient in extent.terms:
        factors = [f"d{symbols.index(s)}" for s in names]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append("*".join(factors))
    text = "+".join(parts)
    return text if text.isalnum() else f"({text})"  # it may follow % and /


Row = Callable[[DType, tuple[str, ...]], str]


def _call(name: str) -> Row:
    return lambda t, x: f"ws_{name}({', '.join(x)})"


def _infix(symbol: str) -> Row:
    return lambda t, x: f"({x[0]} {symbol} {x[1]})"


def _by_kind(floats: Row, integers: Row) -> Row:
    return lambda t, x: (floats if t.is_float else integers)(t, x)


_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "erf", "floor", "pow", "sigmoid")

# The text of each op; `t` is the dtype of its first argument (for `where`: of the second).
OPS: dict[str, Row] = {
    **{n: _call(n) for n in (*_FUNCTIONS, "tanh", "atan", "abs", "sign", "mod", "neg")},
    "recip": lambda t, x: f"({literal(1.0, t)} / {x[0]})",
    "relu": lambda t, x: f"({x[0]} <= 0 ? {literal(0.0, t)} : {x[0]})",  # propagates NaN
    "add": _by_kind(_infix("+"), _call("add")),
    "sub": _by_kind(_infix("-"), _call("sub")),
    "mul": _by_kind(_infix("*"), _call("mul")),
    "div": _infix("/"),
    "maximum": _call("max"),
    "minimum": _call("min"),
    **{n: _call(n) for n in ("floor_divide", "left_shift", "right_shift")},
    "bitwise_and": lambda t, x: f"({STORED[t]})({x[0]} & {x[1]})",
    "bitwise_or": lambda t, x: f"({STORED[t]})({x[0]} | {x[1]})",
    "bitwise_xor": lambda t, x: f"({STORED[t]})({x[0]} ^ {x[1]})",
    "less": _infix("<"),
    "less_equal": _infix("<="),
    "equal": _infix("=="),
    "not_equal": _infix("!="),
    "logical_and": _infix("&&"),
    "logical_or": _infix("||"),
    "logical_not": lambda t, x: f"(!{x[0]})",
    "where": lambda t, x: f"({x[0]} ? {x[1]} : {x[2]})",
}


def cast_text(value: str, of: DType, to: DType) -> str:
    """Conversion; float to integer saturates, NaN becomes 0."""
    if of == to:
        return value
    if of.is_half:
        value, of = f"ws_from_{_HALF[of]}({value})", float32
    if to.is_half:
        return f"ws_to_{_HALF[to]}({value if of == float32 else f'(float){value}'})"
    if to == boolean:
        return f"({value} != 0)"
    if of.is_float and to.is_integer:
        return f"ws_to_{_INTEGER[to]}({value})"
    return f"({LOCAL[to]}){value}"


def widen_operand(value: str, of: DType, to: DType) -> str:
    """An operand in the accumulation dtype of products."""
    return cast_text(value, of, to) if of.is_half else value
