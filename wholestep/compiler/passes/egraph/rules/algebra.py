"""Laws of algebra, strength reduction and constant folding.

Canonicalization rules, which only create the form that another rule matches, are here too: constants are collected at
the right of a product, so that x/√2, 0.5·x·y and (x·a)·b match the definitions of gelu and of scaled attention.

Invariant: no bitwise or reassociating rule leaves the range of the dtype unless the program does.  A constant that a
law computes is a normal number; factors that move past other tensors are bounded, also over chains of rules; and if
only the magnitudes of unknown tensors decide (x·y + x·z = x·(y + z), where y + z may overflow), the law is approximate.
"""

from __future__ import annotations

from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, RuleScope

B, R, A = Exactness.BITWISE, Exactness.REASSOCIATING, Exactness.APPROXIMATE
ANY = RuleScope.ANYWHERE

rows = FamilyRows("algebra")
rule = rows.rule

# -- commutativity -----------------------------------------------------------------------------------------------
rule("add-commutes", "x + y = y + x", "IEEE addition commutes", B, scope=ANY)
rule("mul-commutes", "x * y = y * x", "IEEE multiplication commutes", B, scope=ANY)

rule("equal-commutes", "equal(x, y) = equal(y, x)", "equality is symmetric", B, scope=ANY)

# -- signs -------------------------------------------------------------------------------------------------------
rule("neg-neg", "-(-x) = x", "a sign flipped twice", B, scope=ANY, simplifies=True)
rule("add-neg", "x + -y = x - y", "subtraction is addition of the negative, bit for bit", B, scope=ANY)
rule("sub-neg", "x - -y = x + y", "subtraction is addition of the negative, bit for bit", B, scope=ANY)
rule("mul-neg", "x * -y = -(x * y)", "the sign of a product is the product of the signs", B, scope=ANY)
rule(
    "neg-scaled",
    "-(x * const(c)) = x * const(-c)",
    "the sign moves into the constant",
    B,
    guard="c != 0.0",
    refused=({"c": 0.0},),
    scope=ANY,
    samples=({"c": 0.3},),
)
rule(
    "neg-const",
    "-const(c, T) = const(-c, T)",
    "the sign moves into the constant",
    B,
    guard="c != 0.0",
    refused=({"c": 0.0},),
    scope=ANY,
    samples=({"c": 0.3, "T": (3, 4)},),
    simplifies=True,
)
rule("neg-as-scale", "x * -1 = -x", "a product with -1 flips the sign", B, scope=ANY, simplifies=True)
rule("neg-sub", "-(x - y) = y - x", "the negative of a difference", R, scope=ANY)  # 0 - 0: the sign of zero
rule(
    "neg-scale",
    "-x * const(c) = x * const(-c)",
    "the sign moves into the constant",
    B,
    guard="c != 0.0",
    refused=({"c": 0.0},),
    scope=ANY,
    samples=({"c": 0.3},),
)

rule("abs-neg", "abs(-x) = abs(x)", "the sign is dropped", B, scope=ANY, simplifies=True)
rule("abs-squared", "abs(x) * abs(x) = x * x", "the signs cancel", B, scope=ANY)
rule("abs-abs", "abs(abs(x)) = abs(x)", "the sign is dropped already", B, scope=ANY, simplifies=True)

# -- ones and zeros ----------------------------------------------------------------------------------------------
rule("mul-one", "x * 1 = x", "1 is neutral", B, scope=ANY, simplifies=True)
rule("div-one", "x / 1 = x", "1 is neutral", B, scope=ANY, simplifies=True)
rule("add-zero", "x + 0 = x", "0 is neutral, except for the sign of -0 + 0", R, scope=ANY, simplifies=True)
rule("sub-zero", "x - 0 = x", "0 is neutral", B, scope=ANY, simplifies=True)
rule("max-self", "maximum(x, x) = x", "the larger of equal values", B, simplifies=True)
rule("min-self", "minimum(x, x) = x", "the smaller of equal values", B, simplifies=True)
rule("where-same", "where(c, x, x) = x", "both branches are equal", B, scope=ANY, simplifies=True)
rule("sub-self", "x - x = const(0.0)", "0, except for infinities", A)
rule("mul-zero", "x * 0 = const(0.0)", "0, except for infinities and the sign of 0", A)
rule("add-self", "x + x = x * 2", "doubling is exact", B)

# -- strength reduction ------------------------------------------------------------------------------------------
rule("square", "x ** 2 = x * x", "one product instead of a power", R, scope=ANY)
rule("cube", "x ** 3 = (x * x) * x", "two products instead of a power", R, scope=ANY)
rule("root", "x ** 0.5 = sqrt(x)", "equal except for -0 and -inf", R, scope=ANY, positive=("x",))
rule("reciprocal-power", "x ** -1 = recip(x)", "one division instead of a power", R, scope=ANY, positive=("x",))
rule("reciprocal-root", "x ** -0.5 = recip(sqrt(x))", "no power", R, scope=ANY, positive=("x",))
rule("reciprocal-square", "x ** -2 = recip(x * x)", "no power", R, scope=ANY, positive=("x",))
rule("fourth-power", "x ** 4 = (x * x) * (x * x)", "two products instead of a power", R, scope=ANY)
rule("first-power", "x ** 1 = x", "the first power is the identity", B, scope=ANY, simplifies=True)
rule("root-of-square", "sqrt(x * x) = abs(x)", "no overflow of an intermediate", R)
rule("recip-recip", "recip(recip(x)) = x", "the reciprocal of a reciprocal", R, positive=("x",))
rule("recip-exp", "recip(exp(x)) = exp(-x)", "a sign instead of a division", R)
rule("one-over", "1 / x = recip(x)", "the same division", B, scope=ANY)
rule(
    "div-const",
    "x / const(c) = x * const(1.0 / c)",
    "a product is cheaper than a division",
    R,
    guard="is_normal(1.0 / c)",
    refused=({"c": 0.0}, {"c": 3e38}, {"c": 1e-39}),
    scope=ANY,
    samples=({"c": 1.7},),
)
rule("mul-recip", "x * recip(y) = x / y", "one rounding instead of two", R, scope=ANY, positive=("y",))
rule(
    "div-as-recip",
    "x / expand(y, A, T) = x * expand(recip(y), A, T)",
    "one division per row instead of one per element",
    R,
    scope=ANY,
    positive=("y",),
    samples=({"x": (3, 4), "y": (3,), "A": 0x888888880, "T": (3, 4)},),
)
rule("flipped-sigmoid", "recip(exp(x) + 1) = sigmoid(-x)", "one over 1 + eˣ", R, scope=ANY)
rule("sigmoid-quotient", "x / (exp(-y) + 1) = x * sigmoid(y)", "the quotient by 1 + e⁻ʸ", R, scope=ANY)
rule("div-recip", "x / recip(y) = x * y", "a product instead of two divisions", R, scope=ANY, positive=("y",))
rule("swiglu-left", "(x * y) * sigmoid(x) = silu(x) * y", "the gate of SwiGLU", R, scope=ANY)
rule("swiglu-right", "x * (y * sigmoid(x)) = silu(x) * y", "the gate of SwiGLU", R, scope=ANY)
rule("common-factor", "x * y + x * z = x * (y + z)", "one product instead of two; y + z may overflow", A)
rule(
    "common-factor-of-difference",
    "x * y - x * z = x * (y - z)",
    "one product instead of two; y - z may overflow",
    A,
    scope=ANY,
)
rule(
    "common-factor-of-rows",
    "x * y - x * expand(z, P, T) = x * (y - expand(z, P, T))",
    "the gradient of a softmax: without this rule, attention written as primitives is not recognized",
    R,
    scope=ANY,
    samples=({"x": (3, 4), "y": (3, 4), "z": (3,), "P": 0x888888880, "T": (3, 4)},),
)
rule("exp-product", "exp(x) * exp(y) = exp(x + y)", "one exponential instead of two", A)

rule(
    "ratio-by-const",
    "ratio(x, const(c)) = x / const(c)",
    "a mean over a known number of elements",
    B,
    scope=ANY,
    samples=({"c": 5.0},),
)

# -- conditions --------------------------------------------------------------------------------------------------
rule(
    "cast-of-equal",
    "cast(equal(x, y, U), T) = where(equal(x, y, U), const(1.0, T), const(0.0, T))",
    "a condition as 0 or 1",
    B,
    guard="is_float(T)",
    refused=({"T": 3},),
    scope=ANY,
    samples=({"T": (3, 4)},),
)
rule("where-not", "where(logical_not(c), x, y) = where(c, y, x)", "the branches are exchanged", B, scope=ANY)

# -- constants are collected -------------------------------------------------------------------------------------
rule(
    "scale-scale",
    "(x * const(c)) * const(d) = x * const(c * d)",
    "two factors become one; x·c·(1/c) is excluded: as x, it would generate x·c·c·(1/c) from x·c without end",
    R,
    guard="(c * d - 1.0) * (c * d - 1.0) > 1e-12 and is_normal(c * d)",
    refused=({"c": 3.0, "d": 1 / 3.0}, {"c": 1e-20, "d": 1e-20}, {"c": 1e20, "d": -1e20}),
    scope=ANY,
    samples=({"c": 0.3, "d": -1.7},),
)
rule(
    "scale-left",
    "(x * const(c)) * y = (x * y) * const(c)",
    "a constant factor comes last",
    R,
    scaled=("x * y", "(x * const(c)) * y", "1.0 / c"),
    refused=({"c": 1e-3}, {"c": 3.0}, {"c": 0.0}),
    scope=ANY,
    samples=({"c": 0.3},),
)
rule(
    "scale-inside",
    "(x * y) * const(c) = (x * const(c)) * y",
    "a constant factor moves inside, to another one",
    R,
    scaled=("x * const(c)", "x", "c"),
    refused=({"c": 0.4}, {"c": 200.0}, {"c": 0.0}),
    scope=ANY,
    samples=({"c": 1.7},),
)
rule(
    "shift-shift",
    "(x + const(c)) + const(d) = x + const(c + d)",
    "two terms become one",
    R,
    guard="(c + d) * (c + d) < 1e76",
    refused=({"c": 3e38, "d": 3e38},),
    scope=ANY,
    samples=({"c": 0.3, "d": -1.7},),
)
rule(
    "sub-const",
    "x - const(c) = x + const(-c)",
    "subtraction is addition of the negative, bit for bit",
    B,
    guard="c != 0.0",
    refused=({"c": 0.0},),
    scope=ANY,
    samples=({"c": 0.3},),
)
rule(
    "scaled-sum",
    "x * const(c) + y * const(c) = (x + y) * const(c)",
    "one product instead of two; a factor below 1 may be needed to keep the sum in range",
    R,
    guard="c * c >= 1.0",
    refused=({"c": 0.5},),
    samples=({"c": -1.7},),
)
rule(
    "scaled-difference",
    "x * const(c) - y * const(c) = (x - y) * const(c)",
    "one product instead of two; a factor below 1 may be needed to keep the sum in range",
    R,
    guard="c * c >= 1.0",
    refused=({"c": 0.5},),
    samples=({"c": -1.7},),
)

RULES = tuple(rows.rows)
