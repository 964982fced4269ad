"""The story of a node: rules from certificates, which prove it again by themselves."""

from __future__ import annotations

import pytest

import wholestep as ws
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.common import BY_HAND, example, gelu, silu
from tests.compiler.targets import HERE
from tests.models.gpt2 import PRIMITIVE, Config, gpt2
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine
from wholestep.compiler.passes.egraph.explain import changes, explain, proves
from wholestep.compiler.passes.egraph.optimize import Request, Rewriting, rewrite_by_equality
from wholestep.steps.train import train_graph


def rewritten(graph: IRGraph, **request: object) -> Rewriting:
    found = rewrite_by_equality(graph, Request(dict.fromkeys(graph.symbols, 8), HERE.costs, **request), {})  # type: ignore[arg-type]
    assert found is not None
    return found


def ends(graph: IRGraph) -> list[Node]:
    return [o.node for o in graph.outputs]


@pytest.mark.parametrize("name", [n for n in BY_HAND if n != "relu"])
def test_the_named_rules_prove_what_was_written_by_hand(name: str) -> None:
    graph = graph_of(example(name))
    found = rewritten(graph)
    steps, rules = explain(found, ends(graph))
    assert rules
    assert {s.rule for s in steps} >= set(rules)  # no rule is needed that the story does not tell
    changed = changes(found, ends(graph))
    assert proves(found, changed, [r for r in found.rules if r.name in rules])
    named = [r for r in found.rules if r.name in rules]
    assert not proves(found, changed, [])
    assert any(not proves(found, changed, [r for r in named if r is not left_out]) for left_out in named)


def test_a_step_tells_law_class_and_the_users_line() -> None:
    x = leaf("x", ("n", 5))
    gate = Node("sigmoid", (x,), at.NONE, "gate", SourceLine("user.py", 6))
    graph = graph_of(b.unary("exp", Node("mul", (x, gate), at.NONE, "hidden", SourceLine("user.py", 7))))
    steps, rules = explain(rewritten(graph), ends(graph))
    assert [r.split("@")[0] for r in rules] == ["name-silu"]
    (step,) = steps
    assert (step.exactness, step.node, str(step.line)) == ("reassociating", "mul 'hidden'", "user.py:7")
    assert "silu(x)" in step.law


def test_only_what_a_node_needs_is_told() -> None:
    graph = graph_of(gelu(leaf("x", ("n", 5))), silu(leaf("y", ("n", 5))))
    found = rewritten(graph)
    stories = [{s.rule.split("@")[0] for s in explain(found, [o.node])[0]} for o in graph.outputs]
    assert "name-gelu" in stories[0] - stories[1]
    assert "name-silu" in stories[1] - stories[0]


def test_a_node_that_nothing_changed_has_no_story() -> None:
    x = leaf("x", ("n", 5))
    graph = graph_of(b.unary("exp", x), gelu(x))
    assert explain(rewritten(graph), [graph.outputs[0].node]) == ([], ())


def test_copies_are_explained_by_what_entered_for_them() -> None:
    config = Config(layers=3, width=8, heads=2, vocabulary=11, context=5)
    graph = train_graph(gpt2(config, PRIMITIVE), ws.AdamW())
    found = rewritten(graph, before_autodiff=True)
    assert found.outlined is not None
    steps, rules = explain(found, ends(graph))
    names = {r.split("@")[0] for r in rules}
    assert {"name-layer_norm", "name-attention", "name-gelu", "name-cross_entropy"} <= names
    assert len(rules) < len(found.rules)
    assert all(s.line is not None for s in steps)
