"""C as data: types, literals, and one table row per op."""

from __future__ import annotations

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
    DType,
    bfloat16,
    boolean,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)

# Types in memory, and as local variables (a comparison is an int, so that it has the width of the values it selects).
# Half types are stored as their bits, and are only moved or cast from and to float (half.h).
STORED = {
    float32: "float",
    float64: "double",
    int32: "int32_t",
    int64: "int64_t",
    uint8: "uint8_t",
    boolean: "uint8_t",
    bfloat16: "uint16_t",
    float16: "uint16_t",
}
LOCAL = {**STORED, boolean: "int"}
SUFFIX = {float32: "f32", float64: "f64", **HALF_SUFFIX}
LOWEST = {
    float32: "-__builtin_inff()",
    float64: "-__builtin_inf()",
    int32: "INT32_MIN",
    int64: "INT64_MIN",
    uint8: "0",
}


def literal(value: float, dtype: DType) -> str:
    """A constant as a C literal that is exact to the bit."""
    if not dtype.is_float:
        lowest = dtype == int64 and int(value) == -(2**63)  # C has no negative literals, and 2**63 exceeds int64
        return "INT64_MIN" if lowest else f"{int(value)}{'ll' if dtype == int64 else ''}"
    if dtype.is_half:
        return f"{int(dtype.numpy.type(value).view('uint16')):#06x}"
    f = "f" if dtype == float32 else ""
    return float_literal(value, dtype, f'__builtin_nan{f}("")', f"__builtin_inf{f}()")


def _call(name: str) -> Row:
    return lambda t, x: f"ws_{name}_{SUFFIX[t]}({', '.join(x)})"


# Signed overflow is undefined in C but wraps in NumPy, and here: integer arithmetic is done on unsigned types.
_UNSIGNED = {int32: "uint32_t", int64: "uint64_t", uint8: "uint8_t"}


def _wraparound_op(symbol: str) -> Row:
    def row(t: DType, x: tuple[str, ...]) -> str:
        if t.is_float:
            return f"({x[0]} {symbol} {x[1]})"
        word = _UNSIGNED[t]
        return f"({STORED[t]})(({word})({x[0]}) {symbol} ({word})({x[1]}))"

    return row


def _negative(t: DType, x: str) -> str:
    return f"(-{x})" if t.is_float else f"({STORED[t]})(0 - ({_UNSIGNED[t]}){x})"


def _integer_call(name: str) -> Row:
    return lambda t, x: f"ws_{name}_{INTEGER_SUFFIX[t]}({', '.join(x)})"


OPS: dict[str, Row] = {
    **shared_ops(_call, literal),
    "neg": lambda t, x: _negative(t, x[0]),
    "abs": by_kind(_call("abs"), lambda t, x: f"({x[0]} < 0 ? {_negative(t, x[0])} : {x[0]})"),
    "sign": by_kind(_call("sign"), lambda t, x: f"(({x[0]} > 0) - ({x[0]} < 0))"),
    "add": _wraparound_op("+"),
    "sub": _wraparound_op("-"),
    "mul": _wraparound_op("*"),
    "maximum": by_kind(_call("max"), lambda t, x: f"({x[0]} > {x[1]} ? {x[0]} : {x[1]})"),
    "minimum": by_kind(_call("min"), lambda t, x: f"({x[0]} < {x[1]} ? {x[0]} : {x[1]})"),
    "mod": by_kind(_call("mod"), _integer_call("mod")),
    **{n: _integer_call(n) for n in ("floor_divide", "left_shift", "right_shift")},
    "bitwise_and": infix("&"),
    "bitwise_or": infix("|"),
    "bitwise_xor": infix("^"),
    "logical_and": infix("&"),
    "logical_or": infix("|"),
}


def cast_text(value: str, of: DType, to: DType) -> str:
    """A cast; out-of-range floats saturate to the integer type's limits, and NaN becomes 0."""
    if of == to and of.is_half:
        return value
    if of.is_half:
        value, of = f"ws_f32_{SUFFIX[of]}({value})", float32
    if to.is_half:
        return f"ws_{SUFFIX[to]}_f32({value})"
    if to == boolean:
        return f"({value} != 0)"
    if of.is_float and to.is_integer:
        return f"ws_{INTEGER_SUFFIX[to]}_{SUFFIX[of]}({value})"
    return f"({LOCAL[to]}){value}"


C = Language(STORED, LOCAL, OPS, literal, cast_text)

# The scalar prologue computes in double; {0}, {1}, {2} are the arguments.  Its functions are our own (math_f64.h,
# math_prologue.h): C libraries differ in their last bits, and an exported step has no C library.
_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "erf", "tanh", "atan", "sigmoid")
_OF_PROLOGUE = ("sin", "cos", "floor")
_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "ratio": "/"}
_COMPARE = {"less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}
HOST: dict[str, str] = {
    **{name: f"ws_{name}_f64({{0}})" for name in _FUNCTIONS},
    **{name: f"ws_prologue_{name}({{0}})" for name in _OF_PROLOGUE},
    **{name: f"({{0}} {symbol} {{1}})" for name, symbol in _INFIX.items()},
    **{name: f"(double)({{0}} {symbol} {{1}})" for name, symbol in _COMPARE.items()},
    "neg": "(-{0})",
    "abs": "__builtin_fabs({0})",
    "sign": "ws_sign_f64({0})",
    "recip": "(1.0 / {0})",
    "relu": "({0} <= 0 ? 0.0 : {0})",
    "pow": "ws_prologue_pow({0}, {1})",
    "maximum": "ws_max_f64({0}, {1})",
    "minimum": "ws_min_f64({0}, {1})",
    "mod": "ws_prologue_mod({0}, {1})",
    "floor_divide": "({1} == 0 ? 0.0 : ws_prologue_floor({0} / {1}))",
    **{
        f"bitwise_{n}": f"(double)((int64_t){{0}} {s} (int64_t){{1}})"
        for n, s in (("and", "&"), ("or", "|"), ("xor", "^"))
    },
    "left_shift": "(double)ws_left_shift_i64((int64_t){0}, (int64_t){1})",
    "right_shift": "(double)ws_right_shift_i64((int64_t){0}, (int64_t){1})",
    "logical_and": "(double)({0} != 0 && {1} != 0)",
    "logical_or": "(double)({0} != 0 || {1} != 0)",
    "logical_not": "(double)({0} == 0)",
    "where": "({0} != 0 ? {1} : {2})",
}
