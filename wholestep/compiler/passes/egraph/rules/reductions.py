"""Reductions: what does not depend on the reduced axes leaves the sum."""

from __future__ import annotations

from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, Sample, Scope
from wholestep.compiler.passes.egraph.terms import pack_axes

B, R = Exactness.BITWISE, Exactness.REASSOCIATING

rows = FamilyRows("reductions")
rule = rows.rule

_ROWS: dict[str, Sample] = {"x": (3, 4), "y": (3,), "A": 0b10, "P": pack_axes((0,)), "T": (3, 4)}

rule(
    "sum-scaled",
    "sum(x * const(c), A) = sum(x, A) * const(c)",
    "one product instead of one per term",
    R,
    samples=({"x": (3, 4), "A": 0b10, "c": 0.3},),
)
rule(
    "sum-neg",
    "sum(-x, A) = -sum(x, A)",
    "rounding does not see the sign; a sum of zeros does",
    R,
    samples=({"x": (3, 4), "A": 0b01},),
)
rule(
    "neg-sum",
    "-sum(x, A) = sum(-x, A)",
    "rounding does not see the sign; a sum of zeros does",
    R,
    scope=Scope.ANYWHERE,
    samples=({"x": (3, 4), "A": 0b01},),
)
rule("neg-ratio", "-ratio(x, y) = ratio(-x, y)", "the sign of a quotient", B, scope=Scope.ANYWHERE, positive=("y",))
rule(
    "sum-factor",
    "sum(x * expand(y, P, T), A, R) = sum(x, A, R) * y",
    "a factor that every term has leaves the sum",
    R,
    guard="repeats(A, P, T)",
    refused=({"A": 0b01, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 0b10, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    samples=(_ROWS,),
)

RULES = tuple(rows.rows)
