"""CUDA C++ as tables: types, literals, and one expression per op."""

from __future__ import annotations

from wholestep.compiler.backends.common.cstyle import language as cstyle
from wholestep.compiler.backends.common.cstyle.language import (
    HALF_SUFFIX,
    INTEGER_SUFFIX,
    Language,
    Row,
    by_kind,
    float_literal,
    infix,
    shared_ops,
)
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
    zero = "0.f" if dtype == float32 else "0.0"
    return float_literal(float(dtype.numpy.type(value)), dtype, f"ws_nan({zero})", f"ws_inf({zero})")


def extent_text(extent: Extent, symbols: tuple[str, ...]) -> str:
    """A size at run time, in parentheses unless it is one symbol or number: it may follow % and /."""
    text = cstyle.extent_text(extent, symbols)
    return f"({text})" if isinstance(extent, Dim) and not (text.isalnum() or text.startswith("(")) else text


def _call(name: str) -> Row:
    return lambda t, x: f"ws_{name}({', '.join(x)})"


OPS: dict[str, Row] = {
    **shared_ops(_call, literal),
    **{n: _call(n) for n in ("abs", "sign", "mod", "neg", "floor_divide", "left_shift", "right_shift")},
    "add": by_kind(infix("+"), _call("add")),
    "sub": by_kind(infix("-"), _call("sub")),
    "mul": by_kind(infix("*"), _call("mul")),
    "maximum": _call("max"),
    "minimum": _call("min"),
    "bitwise_and": lambda t, x: f"({STORED[t]})({x[0]} & {x[1]})",
    "bitwise_or": lambda t, x: f"({STORED[t]})({x[0]} | {x[1]})",
    "bitwise_xor": lambda t, x: f"({STORED[t]})({x[0]} ^ {x[1]})",
    "logical_and": infix("&&"),
    "logical_or": infix("||"),
}


def cast_text(value: str, of: DType, to: DType) -> str:
    """Conversion; float to integer saturates, NaN becomes 0."""
    if of == to:
        return value
    if of.is_half:
        value, of = f"ws_from_{HALF_SUFFIX[of]}({value})", float32
    if to.is_half:
        return f"ws_to_{HALF_SUFFIX[to]}({value if of == float32 else f'(float){value}'})"
    if to == boolean:
        return f"({value} != 0)"
    if of.is_float and to.is_integer:
        return f"ws_to_{INTEGER_SUFFIX[to]}({value})"
    return f"({LOCAL[to]}){value}"


CUDA = Language(STORED, LOCAL, OPS, literal, cast_text)


def widen_operand(value: str, of: DType, to: DType) -> str:
    """An operand in the accumulation dtype of products."""
    return cast_text(value, of, to) if of.is_half else value
