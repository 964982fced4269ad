"""Sizes that torch computes from symbols, as extents: sums of products with whole coefficients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.compiler.ir.types import Dim, Extent, divide, product


def extent_of(expression: Any, symbols: Mapping[str, Extent]) -> Extent | None:
    """An expression of SymPy as an extent; None where it is none."""
    if expression.is_Integer:
        return int(expression)
    if expression.is_Symbol:
        return symbols.get(str(expression), Dim.symbol(str(expression)))
    kind = type(expression).__name__
    parts = [extent_of(a, symbols) for a in expression.args]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return _cancel_fraction(expression, symbols) if kind == "Mul" else None
    if kind == "Add":
        total: Extent = 0
        for part in known:
            total = total + part
        return total
    if kind == "Mul":
        return product(known)
    if kind == "Pow":
        return product([known[0]] * known[1]) if isinstance(known[1], int) and known[1] >= 0 else None
    if kind in ("FloorDiv", "CleanDiv", "IntTrueDiv", "CeilDiv"):
        return divide(known[0], known[1])
    if kind in ("Mod", "PythonMod") and divide(known[0], known[1]) is not None:
        return 0
    return None


def _cancel_fraction(expression: Any, symbols: Mapping[str, Extent]) -> Extent | None:
    """A product with a fraction in it: 1/2 of 2·n."""
    numerator, denominator = expression.as_numer_denom()
    above, below = extent_of(numerator, symbols), extent_of(denominator, symbols)
    return None if above is None or below is None or numerator == expression else divide(above, below)
