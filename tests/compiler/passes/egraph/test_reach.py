"""Which rules can match is told from edges: nothing that would fire is left out, and little that would not is kept."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.common import BY_HAND, example
from tests.compiler.targets import optimize
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph.applicable_rules import only_reorders, reachable_rules
from wholestep.compiler.passes.egraph.encode import Encoded, encode
from wholestep.compiler.passes.egraph.rules.composites import composites_with_definition
from wholestep.compiler.passes.egraph.rules.rule import Exactness, Rule
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for
from wholestep.compiler.passes.egraph.saturate import Budget, saturate

LEVEL = Exactness.APPROXIMATE


def rules_of(graph: IRGraph) -> tuple[Encoded, list[Rule], list[Rule]]:
    encoded = encode(graph, composites_with_definition(LEVEL))
    rules = rules_for(graph, LEVEL, encoded.tables, before_autodiff=False)
    return encoded, rules, reachable_rules(rules, encoded.terms, encoded.definitions)


def assert_nothing_is_missed(graph: IRGraph) -> None:
    encoded, rules, kept = rules_of(graph)
    fired = set(saturate(encoded, rules, Budget(rounds=5)).matches)
    assert fired <= {r.name for r in kept}


@given(graphs(max_nodes=8))
@settings(max_examples=20)
def test_every_rule_that_fires_was_kept(graph: IRGraph) -> None:
    assert_nothing_is_missed(graph)


@pytest.mark.parametrize("name", BY_HAND)
def test_so_it_is_for_what_is_written_by_hand(name: str) -> None:
    assert_nothing_is_missed(graph_of(example(name)))


def test_rules_about_other_ops_are_left_out() -> None:
    x, y = leaf("x", (3, 4)), leaf("y", (3, 4))
    _, rules, kept = rules_of(graph_of(b.unary("exp", b.mul(x, y))))
    assert {r.name for r in kept} == {"mul-commutes"}
    assert len(rules) > 50


def test_a_constant_that_is_not_there_keeps_rules_out() -> None:
    x = leaf("x", (3, 4))
    half, one = ({r.name for r in rules_of(graph_of(b.scale(x, c)))[2]} for c in (0.5, 1.0))
    assert "mul-one" in one - half


def test_exchanging_operands_is_all_that_some_rules_do() -> None:
    _, rules, _ = rules_of(graph_of(example("gelu")))
    names = {r.name for r in rules if only_reorders(r)}
    assert {"add-commutes", "mul-commutes"} <= names
    assert not names & {"neg-neg", "add-neg", "scale-inside", "neg-sub"}


def test_then_nothing_is_saturated_and_the_report_says_so() -> None:
    x, y = leaf("x", (3, 4)), leaf("y", (3, 4))
    graph = graph_of(b.unary("exp", b.mul(x, y)))
    rewritten, report = optimize(graph, {})
    assert rewritten is graph
    assert "nothing to do: no rule can match" in str(report)
    assert (report.failure, report.enodes) == ("", 0)
