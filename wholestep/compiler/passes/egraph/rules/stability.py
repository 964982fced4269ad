"""Laws of numerical stability: formulas that overflow or cancel become equivalent formulas that do not."""

from __future__ import annotations

from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows, RuleScope
from wholestep.compiler.passes.egraph.terms import pack_axes

R, A = Exactness.REASSOCIATING, Exactness.APPROXIMATE
ANY = RuleScope.ANYWHERE

rows = FamilyRows("stability")
rule = rows.rule

rule(
    "log-of-softmax",
    "log(softmax(x, A)) = log_softmax(x, A)",
    "no logarithm of a probability that is rounded to 0",
    R,
    scope=ANY,
    replaces=True,
    samples=({"x": (3, 4), "A": 1}, {"x": (3, 4), "A": 0}),
)
rule(
    "exp-of-log-softmax",
    "exp(log_softmax(x, A)) = softmax(x, A)",
    "one exponential instead of two",
    R,
    samples=({"x": (3, 4), "A": 1},),
)
rule(
    "log-one-plus",
    "log(x + 1) = log1p(x)",
    "accurate for small x",
    R,
    scope=ANY,
    positive=("x",),
    replaces=True,
)
rule("exp-minus-one", "exp(x) + -1 = expm1(x)", "accurate near 0", R, scope=ANY, replaces=True)
rule("log-of-exp", "log(exp(x)) = x", "no overflow of an intermediate", R, scope=ANY, simplifies=True)
rule("softplus", "log1p(exp(x)) = softplus(x)", "no overflow", R, scope=ANY, replaces=True)
rule("softplus-flip", "softplus(x) - x = softplus(-x)", "no cancellation for large x", R, scope=ANY)
rule("log-sigmoid", "log(sigmoid(x)) = -softplus(-x)", "no logarithm of a 0", R, scope=ANY, replaces=True)
rule("log-complement", "log(1 - sigmoid(x)) = -softplus(x)", "no logarithm of a 0", R, scope=ANY, replaces=True)
rule(
    "tanh-quotient",
    "(exp(x) - exp(-x)) / (exp(x) + exp(-x)) = tanh(x)",
    "no quotient of infinities",
    R,
    scope=ANY,
    replaces=True,
)
rule("tanh-of-sigmoid", "sigmoid(x * 2) * 2 + -1 = tanh(x)", "accurate near 0", R, scope=ANY, replaces=True)

# -- sigmoid cross entropy: -y·log s - (1 - y)·log(1 - s), with s = sigmoid(x) --------------------------------------
rule("half-sum", "(x + abs(x)) * 0.5 = maximum(x, 0)", "the same slopes, at 0 too", R, scope=ANY)
rule(
    "bce-of-softplus",
    "softplus(x) - x * y = bce_with_logits(x, y)",
    "the small logarithm is not rounded away",
    R,
    scope=ANY,
    replaces=True,
)
rule(
    "bce-of-logarithms",
    "y * softplus(-x) + (1 - y) * softplus(x) = bce_with_logits(x, y)",
    "one logarithm instead of two",
    R,
    scope=ANY,
    replaces=True,
)
rule("sigmoid-complement", "1 - sigmoid(x) = sigmoid(-x)", "no cancellation if sigmoid is near 1", R)

# Softmax without the maximum overflows; Σ, max and their expands are along the same axis.
rule(
    "plain-softmax",
    "exp(x) / expand(sum(exp(x), A), P, T) = softmax(x, axis(A))",
    "the largest exponent becomes 0",
    R,
    guard="repeats(A, P, T) and is_single(A)",
    refused=({"A": 0b01, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 0b110, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    scope=ANY,
    replaces=True,
    samples=({"x": (3, 4), "A": 0b10, "P": pack_axes((0,)), "T": (3, 4)},),
)
rule(
    "plain-logsumexp",
    "log(sum(exp(x), A)) = logsumexp(x, axis(A))",
    "the largest exponent becomes 0",
    R,
    guard="is_single(A)",
    refused=({"A": 0b110},),
    scope=ANY,
    replaces=True,
    samples=({"x": (3, 4), "A": 0b01}, {"x": (3, 4), "A": 0b10}),
)
rule(
    "shifted-logsumexp",
    "y + logsumexp(x - expand(y, P, T), A) = logsumexp(x, A)",
    "a shift along the axis is added back",
    R,
    guard="repeats(1 << A, P, T)",
    refused=({"A": 0, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 1, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    scope=ANY,
    samples=({"x": (3, 4), "y": (3,), "A": 1, "P": pack_axes((0,)), "T": (3, 4)},),
)
rule(
    "log-softmax-by-logsumexp",
    "x - expand(logsumexp(x, A), P, T) = log_softmax(x, A)",
    "the logarithm of each probability",
    R,
    guard="repeats(1 << A, P, T)",
    refused=({"A": 0, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 1, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    scope=ANY,
    replaces=True,
    samples=({"x": (3, 4), "A": 0, "P": pack_axes((1,)), "T": (3, 4)},),
)

rule(
    "shifted-softmax",
    "softmax(x - expand(y, P, T), A) = softmax(x, A)",
    "softmax is invariant under a shift along its axis",
    R,
    guard="repeats(1 << A, P, T)",
    refused=({"A": 0, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 1, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    scope=ANY,
    samples=({"x": (3, 4), "y": (3,), "A": 1, "P": pack_axes((0,)), "T": (3, 4)},),
)
rule(
    "shifted-log-softmax",
    "log_softmax(x - expand(y, P, T), A) = log_softmax(x, A)",
    "log-softmax is invariant under a shift along its axis",
    R,
    guard="repeats(1 << A, P, T)",
    refused=({"A": 0, "P": pack_axes((0,)), "T": (3, 4)}, {"A": 1, "P": pack_axes((0,)), "T": (3, 4, 5)}),
    scope=ANY,
    samples=({"x": (3, 4), "y": (3,), "A": 1, "P": pack_axes((0,)), "T": (3, 4)},),
)

RULES = tuple(rows.rows)
