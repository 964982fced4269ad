"""Laws of views: chains of views are composed, and transposes become flags of a product."""

from __future__ import annotations

from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, RuleScope, Sample
from wholestep.compiler.passes.egraph.terms import pack_axes, pack_order

B, R = Exactness.BITWISE, Exactness.REASSOCIATING
ANY = RuleScope.ANYWHERE

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
rule("reshape-identity", "reshape(x, T) = x", "the shape stays", B, scope=ANY, samples=({"T": (3, 4)},))
# -- reshapes sink below elementwise ops, until they cancel with their inverse -------------------------------------
_RESHAPED: tuple[dict[str, Sample], ...] = ({"x": (3, 4), "y": (3, 4), "S": (3, 4, 1), "c": 1.5},)
for _op in ("exp", "log", "log1p", "sqrt", "recip", "neg", "abs", "sigmoid", "tanh"):
    rule(
        f"{_op}-of-reshape",
        f"{_op}(reshape(x, S)) = reshape({_op}(x), S)",
        "the op is elementwise",
        B,
        scope=ANY,
        samples=_RESHAPED,
        positive=("x",),
    )
for _op in ("add", "sub", "mul", "div", "ratio", "maximum"):
    rule(
        f"{_op}-of-reshape-and-const",
        f"{_op}(reshape(x, S), const(c)) = reshape({_op}(x, const(c)), S)",
        "the op is elementwise",
        B,
        scope=ANY,
        samples=_RESHAPED,
    )
    rule(
        f"{_op}-of-reshapes",
        f"{_op}(reshape(x, S), reshape(y, S)) = reshape({_op}(x, y), S)",
        "the op is elementwise",
        B,
        scope=ANY,
        samples=_RESHAPED,
        positive=("y",),
    )
rule(
    "expanded-iota",
    "expand(iota(A, S), P, T) = iota(P >> 4 * A & 15, T)",
    "the index along the axis that its own is mapped to",
    B,
    scope=ANY,
    samples=(
        {"A": 0, "S": (4,), "P": pack_axes((1,)), "T": (3, 4)},
        {"A": 1, "S": (2, 4), "P": pack_axes((0, 2)), "T": (2, 3, 4)},
    ),
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

rule(
    "concat-concat-left",
    "concat(concat(x, y, A), z, A) = concat(x, y, z, A)",
    "joined once",
    B,
    scope=ANY,
    samples=({"x": (3, 4), "y": (3, 2), "z": (3, 5), "A": 1},),
)
rule(
    "concat-concat-right",
    "concat(x, concat(y, z, A), A) = concat(x, y, z, A)",
    "joined once",
    B,
    scope=ANY,
    samples=({"x": (3, 4), "y": (2, 4), "z": (5, 4), "A": 0},),
)

# -- transposes into flags: the sum along k runs in the same order either way -------------------------------------
_SHAPES = tuple(((*lead, 4, 6), (*lead, 6, 5)) for lead in ((), (2,), (2, 3)))
# A permutation is packed into one integer, a digit per axis.  At rank 4, (0, 2, 1, 3) exchanges inner axes and is no
# transpose, although its first three digits spell the transpose of rank 3.
_REFUSED: tuple[dict[str, Sample], ...] = (
    {"P": pack_order((0, 2, 1, 3)), "T": (2, 3, 4, 5)},
    {"P": pack_order((1, 0, 2)), "T": (2, 3, 4)},
)


def _transposes(samples: tuple[dict[str, Sample], ...], operand: str) -> tuple[dict[str, Sample], ...]:
    """The samples with P, the exchange of the last two axes, and T, the type of its result."""
    out: list[dict[str, Sample]] = []
    for s in samples:
        shape = s[operand]
        assert isinstance(shape, tuple)
        swap = pack_order((*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        out.append({**s, "P": swap, "T": (*shape[:-2], shape[-1], shape[-2])})
    return tuple(out)


rule(
    "transpose-left",
    "matmul(permute(a, P, T), b, F, G) = matmul(a, b, 1 - F, G)",
    "the left operand is read transposed",
    B,
    guard="swaps_last(P, T)",
    samples=tuple(s for a, b in _SHAPES for s in _transposes(_products(a, b, swapped="a"), "a")),
    refused=_REFUSED,
)
rule(
    "transpose-right",
    "matmul(a, permute(b, P, T), F, G) = matmul(a, b, F, 1 - G)",
    "the right operand is read transposed",
    B,
    guard="swaps_last(P, T)",
    samples=tuple(s for a, b in _SHAPES for s in _transposes(_products(a, b, swapped="b"), "b")),
    refused=_REFUSED,
)
# -- factors of a product are applied to its result, in the epilogue -------------------------------------------------
_SCALED = tuple({**s, "c": 0.3} for s in _products((2, 4, 6), (2, 6, 5)))
rule(
    "product-of-scaled-left",
    "matmul(a * const(c), b, F, G) = matmul(a, b, F, G) * const(c)",
    "a factor of an operand is a factor of the product",
    R,
    scaled=("matmul(a, b, F, G)", "matmul(a * const(c), b, F, G)", "1.0 / c"),
    refused=({"c": 1e-3}, {"c": 3.0}, {"c": 0.0}),
    scope=ANY,
    samples=_SCALED,
)
rule(
    "product-of-scaled-right",
    "matmul(a, b * const(c), F, G) = matmul(a, b, F, G) * const(c)",
    "a factor of an operand is a factor of the product",
    R,
    scaled=("matmul(a, b, F, G)", "matmul(a, b * const(c), F, G)", "1.0 / c"),
    refused=({"c": 1e-3}, {"c": 3.0}, {"c": 0.0}),
    scope=ANY,
    samples=_SCALED,
)
rule(
    "transpose-product",
    "permute(matmul(a, b, F, G), P, T) = matmul(b, a, 1 - G, 1 - F, T)",
    "(AB)' = B'A'",
    B,
    guard="swaps_last(P, T)",
    samples=tuple(
        {**s, "P": pack_order((*range(len(a) - 2), len(a) - 1, len(a) - 2)), "T": (*a[:-2], b[-1], a[-2])}
        for a, b in _SHAPES
        for s in _products(a, b)
    ),
    refused=_REFUSED,
)

RULES = tuple(rows.rows)
