"""Every rule holds numerically; its test is generated from its row."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.passes.egraph.support.rule_cases import Case, run_in_own_dtype
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import TensorType, float32, float64
from wholestep.compiler.passes.egraph.encode import Tables
from wholestep.compiler.passes.egraph.rules.compile import compile_rule
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule, RuleScope
from wholestep.compiler.passes.egraph.rules.rule_set import LAWS, rules_for
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Variable, parse

SAMPLES = [(rule, dict(sample)) for rule in LAWS for sample in rule.samples]
IDS = [f"{rule.name}-{i}" for rule in LAWS for i, _ in enumerate(rule.samples)]
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e30])


def sides_agree(rule: Rule, sample: dict, seed: int = 0) -> bool:
    case = Case(rule, sample, float64)
    if case.left.result != case.right.result:
        return False
    got = interpret(case.graph(), inputs=case.values(np.random.default_rng(seed))).outputs
    return bool(np.allclose(got["left"], got["right"], rtol=1e-12, atol=1e-12, equal_nan=True))


@pytest.mark.parametrize(("rule", "sample"), SAMPLES, ids=IDS)
def test_both_sides_are_equal(rule: Rule, sample: dict) -> None:
    case = Case(rule, sample, float64)
    assert rule.guard is None or rule.guard.evaluate(case.numbers()), "the sample breaks the rule's guard"
    assert all(sides_agree(rule, sample, seed) for seed in range(3))


@pytest.mark.parametrize(
    ("rule", "sample"),
    [pair for pair in SAMPLES if pair[0].exactness is Exactness.BITWISE],
    ids=[i for i, (rule, _) in zip(IDS, SAMPLES, strict=True) if rule.exactness is Exactness.BITWISE],
)
def test_bitwise_rules_keep_bits_of_special_values_too(rule: Rule, sample: dict) -> None:
    case = Case(rule, sample, float32)
    rng = np.random.default_rng(1)
    for _ in range(4):
        values = case.values(rng)
        for array in (a for a in values.values() if a.dtype == np.float32):
            array.flat[:: max(1, array.size // 6)] = rng.choice(SPECIAL, len(array.flat[:: max(1, array.size // 6)]))
        left, right = (run_in_own_dtype(side, values) for side in (case.left, case.right))
        assert left.dtype == right.dtype
        numbers = ~(np.isnan(left) & np.isnan(right))  # which NaN comes out is not told apart
        assert left[numbers].tobytes() == right[numbers].tobytes()


@pytest.mark.parametrize("rule", [r for r in LAWS if r.guard], ids=lambda r: r.name)
def test_guards_refuse_what_they_must(rule: Rule) -> None:
    assert rule.refused, "a guard that nothing tests"
    for sample in rule.refused:
        tables = Tables()
        bindings = {n: tables.type_id(TensorType(v, float64)) if isinstance(v, tuple) else v for n, v in sample.items()}
        assert rule.guard is not None
        assert not rule.guard.evaluate(bindings)


def test_names_are_unique_and_reasons_given() -> None:
    assert len({r.name for r in LAWS}) == len(LAWS)
    assert all(r.reason and r.family for r in LAWS)
    assert all(isinstance(r.left, Apply) for r in LAWS)


# -- the rules as a program ----------------------------------------------------------------------------------------


def test_exactness_selects_the_rules() -> None:
    from tests.compiler.passes.common import graph_of, leaf

    graph = graph_of(leaf("x", (2, 3)))
    counts = [len(rules_for(graph, level, Tables(), before_autodiff=False)) for level in Exactness]
    assert counts == sorted(counts)
    assert len(set(counts)) == 3
    assert all(
        r.scope is RuleScope.ANYWHERE for r in rules_for(graph, Exactness.APPROXIMATE, Tables(), before_autodiff=True)
    )


def test_a_right_side_of_unknown_type_is_refused() -> None:
    unknown = Rule("r", "f", parse("sum(x, A)"), parse("sum(max(x, A), B)"), "none", Exactness.BITWISE)
    with pytest.raises(AssertionError, match=r"not bound|does not determine"):
        compile_rule(unknown)


def test_a_law_reads_as_written() -> None:
    tree = parse("x * const(c) + 1")
    assert tree == Apply(
        "add",
        (
            Apply("mul", (Variable("x"), Number(Expression("c")))),
            Number(Expression("1.0")),
        ),
    )
    rule = Rule("r", "f", tree, Variable("x"), "none", Exactness.BITWISE, Expression("c > 0.0"))
    assert rule.law == "add(mul(x, c), 1.0) = x  where c > 0.0"
