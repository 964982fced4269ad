"""Expressions over attributes and constants in laws and guards: parsed once, evaluated with the bindings of a match."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

from wholestep.compiler.passes.egraph.terms import IDENTITY, NOWHERE, RANK

Value = int | float


class Expression:
    """A Python expression over variables; compared and hashed by its text."""

    def __init__(self, source: ast.expr | str) -> None:
        self._tree = ast.parse(source, mode="eval").body if isinstance(source, str) else source
        self._text = ast.unparse(self._tree)

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Expression) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    @cached_property
    def variable(self) -> str | None:
        """The name, if the expression is a single variable."""
        return self._tree.id if isinstance(self._tree, ast.Name) and self._tree.id not in CONSTANTS else None

    @cached_property
    def literal(self) -> Value | None:
        """The value, if the expression has no variables."""
        return None if list(self.variables()) else self.evaluate({})

    def variables(self) -> Iterator[str]:
        called = {id(n.func) for n in ast.walk(self._tree) if isinstance(n, ast.Call)}
        for n in ast.walk(self._tree):
            if isinstance(n, ast.Name) and id(n) not in called and n.id not in CONSTANTS:
                yield n.id

    def evaluate(self, bindings: Mapping[str, Value]) -> Any:
        return _evaluate(self._tree, bindings)


@lru_cache(maxsize=4096, typed=True)
def constant(value: Value) -> Expression:
    """A constant expression; -0 is the same as 0."""
    return Expression(ast.Constant(value))


CONSTANTS: dict[str, int] = {"IDENTITY": IDENTITY, "NOWHERE": NOWHERE}


def place(outer: int, inner: int) -> int:
    """Composition of packed axis maps: dimension d is mapped to outer[inner[d]]."""
    return sum((outer >> 4 * (inner >> 4 * d & 15) & 15) << 4 * d for d in range(RANK + 1))


def image(axes: int) -> int:
    """The bit set of output axes that an expand's input axes are mapped to."""
    return sum(1 << axis for d in range(RANK) if (axis := axes >> 4 * d & 15) != NOWHERE)


def repeats(axes: int, placed: int, type: int) -> bool:
    """Does an expand to `type` repeat along exactly these axes?  Bit sets that add up to all ones are complements."""
    return axes + image(placed) == (1 << (type >> 4 & 15)) - 1


def swaps_last(order: int, type: int) -> bool:
    """Does a permutation exchange just the last two axes?  In packed form two digits differ from the identity."""
    rank = type >> 4 & 15
    return rank >= 2 and order == IDENTITY ^ _exchange(rank)


def _exchange(rank: int) -> int:
    return (rank - 1 ^ rank - 2) * 17 << 4 * (rank - 2)


# A constant that a law computes, or moves past other tensors, must not leave the range of the dtype.  The range is that
# of float32 for all dtypes: rejecting a few rewrites in float64 needlessly had no measurable cost.
SMALLEST_NORMAL, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
# An intermediate that only a rewrite creates is at most this many times larger, or smaller, than some value of the
# program: enough for the mean of an 8x8 image after a product, for the scale of attention and for gelu.
MOST_ABOVE, MOST_BELOW = 128.0, 2.0


def is_normal(number: float) -> bool:
    """Is the value a normal number of float32?"""
    return number != 0 and SMALLEST_NORMAL <= abs(number) <= LARGEST


def is_moderate(number: float) -> bool:
    """May a rewrite scale a value of the program by this factor?"""
    return 1 / MOST_BELOW <= abs(number) <= MOST_ABOVE


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "place": place,
    "swaps_last": swaps_last,
    "repeats": repeats,
    "is_single": lambda s: s & (s - 1) == 0,
    "axis": lambda s: s.bit_length() - 1,
    "sqrt": math.sqrt,
    "is_normal": is_normal,
    "is_moderate": is_moderate,
    "is_float": lambda t: t & 15 < 2,
}
_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda x, y: x / y if y else math.inf,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _evaluate(e: ast.expr, bindings: Mapping[str, Value]) -> Any:
    match e:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return CONSTANTS[name] if name in CONSTANTS else bindings[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            return -_evaluate(x, bindings)
        case ast.BinOp(left=x, op=op, right=y) | ast.Compare(left=x, ops=[op], comparators=[y]):
            return _BINARY[type(op)](_evaluate(x, bindings), _evaluate(y, bindings))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_evaluate(v, bindings) for v in values)
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*(_evaluate(a, bindings) for a in args))
    raise AssertionError(f"expected an expression over attributes and constants in a law; received {ast.unparse(e)}")
