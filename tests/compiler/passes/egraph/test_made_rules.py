"""Rules that are made from a program: they hold, they are classed right, and every composite has its own."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.passes.egraph.support.made_rules import EVERYTHING, MADE_INSTANCES, MADE_NAMES, names
from tests.compiler.passes.egraph.support.rule_cases import run_in_own_dtype
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import TupleType, float32, float64
from wholestep.compiler.passes.egraph.encode import Tables, encode
from wholestep.compiler.passes.egraph.rules.compile import compile_rule
from wholestep.compiler.passes.egraph.rules.composites import INSTANCES, UNNAMED, recognition_rules, rules_of_instance
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.rules.rule_set import INSTANCE_LAWS, LAWS
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decompose

MADE = {m.rule.name: m for m in (*MADE_INSTANCES, *MADE_NAMES)}


@pytest.mark.parametrize("name", MADE)
def test_both_sides_are_equal(name: str) -> None:
    assert all(MADE[name].holds(seed=seed) for seed in range(3))


BITWISE = {
    m.rule.name: m for m in (*MADE_INSTANCES, *names(Exactness.BITWISE)) if m.rule.exactness is Exactness.BITWISE
}


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise_rules_keep_bits(name: str) -> None:
    """In float32, of what is computed in the end: composites are what they are lowered to."""
    case = BITWISE[name].case(dtype=float64 if "dropout" in name else float32)  # its rate is a float64
    sides = [_lowered(n) for n in (case.left, case.right)]
    values = case.values(np.random.default_rng(1))
    left, right = (run_in_own_dtype(side, values) for side in sides)
    assert left.dtype == right.dtype
    assert left.tobytes() == right.tobytes()


def _lowered(node: Node) -> Node:
    keep = frozenset({"relu", "sigmoid", "tanh"})
    return decompose(IRGraph((Output("y", node),)), keep).outputs[0].node


def test_every_composite_has_its_definition_both_ways() -> None:
    """definition -> name is a rule, name -> definition an equality that the encoder gives."""
    composites = {n for n, op in OPS.items() if op.family is Family.COMPOSITE}
    assert composites == set(DECOMPOSITIONS)
    assert set(INSTANCES) | UNNAMED == composites
    assert not set(INSTANCES) & UNNAMED
    named = {m.rule.name.split("@")[0] for m in MADE_NAMES}
    assert named == {f"name-{op}" for op in INSTANCES}


@pytest.mark.parametrize("op", INSTANCES)
def test_the_encoder_gives_the_definition(op: str) -> None:
    node = next(iter(INSTANCES[op](EVERYTHING))).node
    result = b.make("item", (node,), at.ItemAttrs(0)) if isinstance(node.result, TupleType) else node
    encoded = encode(IRGraph((Output("y", result),)), frozenset({op}))
    assert [e.name for e in encoded.definitions if e.left == encoded.roots[0]] == [f"define-{op}"]


def test_rules_have_different_names_families_and_reasons() -> None:
    rows = [*LAWS, *INSTANCE_LAWS]
    assert len({r.name for r in rows}) == len(rows)
    assert all(r.reason and r.family and r.law for r in rows)


def test_no_law_stands_twice() -> None:
    sides = [(r.left, r.right) for r in LAWS]
    assert len(set(sides)) == len(sides)


def test_equal_pairs_make_one_rule() -> None:
    made = [(m.rule.left, m.rule.right, m.rule.name.split("@")[0]) for m in MADE_INSTANCES]
    assert len(set(made)) == len(made)


def test_a_made_rule_is_for_its_types_alone() -> None:
    for made in MADE_INSTANCES:
        told = dict(made.rule.types)
        assert set(made.types) <= set(told), made.rule.name


def test_rules_that_are_kept_are_those_that_a_program_would_write() -> None:
    kept = 0
    for op, instances in INSTANCES.items():
        for instance in instances(EVERYTHING):
            tables = Tables()
            rules = [list(recognition_rules(op, instance, Exactness.REASSOCIATING, Tables())) for _ in range(2)]
            written = list(rules_of_instance(op, instance, Exactness.REASSOCIATING, tables))
            laws = [
                [(str(compile_rule(r).atoms), r.law, r.exactness, r.replaces, r.scope) for r in some]
                for some in (*rules, written)
            ]
            assert laws[0] == laws[1] == laws[2]
            kept += bool(rules[0]) and all(a is b for a, b in zip(*rules, strict=True))
    assert kept > 10
