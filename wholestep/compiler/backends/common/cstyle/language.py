"""A dialect of C as data, and the table rows that all dialects share.

A dialect lists its type names, one expression per op, and its literals and casts.  Its rows call functions of its
native headers (`ws_exp`, `ws_exp_f32`), which the dialect names; operators have the same text in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wholestep.compiler.ir.types import Dim, DType, Extent, bfloat16, float16, int32, int64, uint8

Row = Callable[[DType, tuple[str, ...]], str]  # (dtype of the operands, their texts) -> expression
Literal = Callable[[float, DType], str]

HALF_SUFFIX = {bfloat16: "bf16", float16: "f16"}
INTEGER_SUFFIX = {int32: "i32", int64: "i64", uint8: "u8"}


@dataclass(frozen=True)
class Language:
    """The tables and functions of one dialect."""

    stored: Mapping[DType, str]  # types in memory: half types are stored as their bits
    local: Mapping[DType, str]  # types of local variables
    ops: Mapping[str, Row]
    literal: Literal
    cast: Callable[[str, DType, DType], str]  # (text, from, to)


def extent_text(extent: Extent, symbols: tuple[str, ...]) -> str:
    """A size as an expression: d0, d1, ... are the symbolic dimensions at run time.  A sum has parentheses."""
    if not isinstance(extent, Dim):
        return str(extent)
    parts = []
    for names, coefficient in extent.terms:
        factors = [f"d{symbols.index(s)}" for s in names]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient))
        parts.append("*".join(factors))
    return parts[0] if len(parts) == 1 else f"({'+'.join(parts)})"


def infix(symbol: str) -> Row:
    return lambda t, x: f"({x[0]} {symbol} {x[1]})"


def by_kind(floats: Row, integers: Row) -> Row:
    return lambda t, x: (floats if t.is_float else integers)(t, x)


_FUNCTIONS = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "erf", "floor", "pow", "sigmoid")
_OPERATORS = {"div": "/", "less": "<", "less_equal": "<=", "equal": "==", "not_equal": "!="}


def shared_ops(call: Callable[[str], Row], literal: Literal) -> dict[str, Row]:
    """The rows that are the same in all dialects; `call` is the row of a function of the native headers.

    A row has the dtype of its first operand (for `where`: of its second).
    """
    return {
        **{name: call(name) for name in (*_FUNCTIONS, "tanh", "atan")},
        **{name: infix(symbol) for name, symbol in _OPERATORS.items()},
        "recip": lambda t, x: f"({literal(1.0, t)} / {x[0]})",
        "relu": lambda t, x: f"({x[0]} <= 0 ? {literal(0.0, t)} : {x[0]})",  # propagates NaN
        "logical_not": lambda t, x: f"(!{x[0]})",
        "where": lambda t, x: f"({x[0]} ? {x[1]} : {x[2]})",
    }


def float_literal(value: float, dtype: DType, nan: str, infinity: str) -> str:
    """A float constant that is exact to the bit; `nan` and `infinity` are the dialect's expressions of its dtype."""
    if value != value:
        return nan
    if value in (float("inf"), float("-inf")):
        return f"({'-' if value < 0 else ''}{infinity})"
    return f"{float(value).hex()}{'f' if dtype.size == 4 else ''}"
