"""Movement: chains become one step, transposes become flags of a product."""

from __future__ import annotations

from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, Sample, Scope
from wholestep.compiler.passes.egraph.terms import pack_axes, pack_order

B = Exactness.BITWISE
ANY = Scope.ANYWHERE

rows = FamilyRows("movement")
rule = rows.rule

_SWAPPED: dict[str, Sample] = {"P": pack_order((0, 2, 1)), "Q": pack_order((2, 0, 1))}


def _products(a: tuple[int, ...], b: tuple[int, ...], swapped: str = "") -> tuple[dict[str, Sample], ...]:
    """Sample operands of a product for every pair of flags; `a` and `b` are the shapes without any.

    `swapped` names the operand whose last two axes the law exchanges before the product reads it.
    """
    lead, (m, k), (_, n) = a[:-2], a[-2:], b[-2:]
    samples: list[dict[str, Sample]] = []
    for f, g in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left = (*lead, k, m) if bool(f) != (swapped == "a") else a
        right = (*lead, n, k) if bool(g) != (swapped == "b") else b
        samples.append({"F": f, "G": g, "a": left, "b": right})
    return tuple(samples)


rule(
    "reshape-reshape",
    "reshape(reshape(x, S), T) = reshape(x, T)",
    "only the last shape counts",
    B,
    scope=ANY,
    samples=({"x": (4, 6), "S": (24,), "T": (2, 12)},),
)
rule(
    "permute-permute",
    "permute(permute(x, P), Q) = permute(x, place(P, Q))",
    "two orders are one",
    B,
    scope=ANY,
    samples=({"x": (2, 3, 4), **_SWAPPED},),
)
rule("permute-identity", "permute(x, IDENTITY) = x", "every axis stays", B, scope=ANY, samples=({"x": (2, 3, 4)},))
rule(
    "expand-expand",
    "expand(expand(x, A, S), B, T) = expand(x, place(B, A), T)",
    "two placements are one",
    B,
    scope=ANY,
    samples=({"x": (3,), "A": pack_axes((1,)), "S": (2, 3), "B": pack_axes((0, 2)), "T": (2, 5, 3)},),
)

# -- transposes into flags: the sum along k runs in the same order either way -------------------------------------
for _rank, _lead in ((2, ()), (3, (2,)), (4, (2, 3))):
    _swap = pack_order((*range(_rank - 2), _rank - 1, _rank - 2))
    _a, _b = (*_lead, 4, 6), (*_lead, 6, 5)
    rule(
        f"transpose-left-{_rank}",
        f"matmul(permute(a, {_swap}), b, F, G) = matmul(a, b, 1 - F, G)",
        "the left operand is read transposed",
        B,
        samples=_products(_a, _b, swapped="a"),
    )
    rule(
        f"transpose-right-{_rank}",
        f"matmul(a, permute(b, {_swap}), F, G) = matmul(a, b, F, 1 - G)",
        "the right operand is read transposed",
        B,
        samples=_products(_a, _b, swapped="b"),
    )
    rule(
        f"transpose-product-{_rank}",
        f"permute(matmul(a, b, F, G), {_swap}) = matmul(b, a, 1 - G, 1 - F)",
        "(AB)' = B'A'",
        B,
        samples=_products(_a, _b),
    )

RULES = tuple(rows.rows)
