"""Saturation against the definition of it, its budgets, and its independence of process and order."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.compiler.ir.random_graphs import graphs
from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.common import BY_HAND, example, saturated
from tests.compiler.passes.egraph.support.plain_saturation import plainly_saturated
from tests.compiler.targets import optimize
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.passes.egraph.applicable_rules import reachable_rules
from wholestep.compiler.passes.egraph.encode import encode
from wholestep.compiler.passes.egraph.rules.composites import composites_with_definition
from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for
from wholestep.compiler.passes.egraph.saturate import Budget, SaturationError, saturate
from wholestep.compiler.passes.egraph.tables import ENodeTables

GRAPH = graph_of(example("gelu"), example("softmax"))
EXACTNESS = Exactness.REASSOCIATING


# -- the definition ----------------------------------------------------------------------------------------------------


def assert_as_defined(graph: IRGraph) -> None:
    """The same e-classes and certificates as by matching every rule against everything in every round."""
    encoded = encode(graph, composites_with_definition(EXACTNESS))
    rules = rules_for(graph, EXACTNESS, encoded.tables, before_autodiff=False)
    rules = reachable_rules(rules, encoded.terms, encoded.definitions)
    assert saturate(encoded, rules, Budget(rounds=3)).egraph == plainly_saturated(encoded, rules, rounds=3)


@pytest.mark.parametrize("name", BY_HAND)
def test_saturation_finds_what_its_definition_does(name: str) -> None:
    assert_as_defined(graph_of(example(name)))


@given(graphs(max_nodes=6))
@settings(max_examples=10)
def test_so_it_does_for_random_programs(graph: IRGraph) -> None:
    assert_as_defined(graph)


# -- tables ------------------------------------------------------------------------------------------------------------


def test_equal_operands_make_equal_readers() -> None:
    """f(g(x)) and f(g(y)) become one e-node each once x = y, and their subsumption and facts are those of both."""
    tables = ENodeTables({"x": 0, "y": 0, "f": 1, "g": 1})
    x, y = tables.add("x", (7,)), tables.add("y", (7,))
    readers = [tables.add("f", (tables.add("g", (operand, 7)), 7)) for operand in (x, y)]
    tables.limit(readers[0], 8.0, 1.0)
    tables.limit(readers[1], 2.0, 4.0)
    tables.set_type(readers[1], 7)
    next(row for row in tables.rows["g"].values() if row.arguments[0] == y).subsumed = True
    assert tables.size == 6
    tables.union(x, y)
    tables.rebuild()
    assert tables.find(readers[0]) == tables.find(readers[1])
    assert {head: len(rows) for head, rows in tables.rows.items()} == {"x": 1, "y": 1, "f": 1, "g": 1}
    assert all(row.subsumed for row in tables.rows["g"].values())
    merged = tables.find(readers[0])
    assert (tables.most_above[merged], tables.most_below[merged], tables.type_of[merged]) == (2.0, 1.0, 7)


def test_an_e_node_may_come_to_contain_its_own_class() -> None:
    """x = f(x), as x + 0 = x makes it."""
    tables = ENodeTables({"x": 0, "f": 1})
    x = tables.add("x", (7,))
    f = tables.add("f", (x, 7))
    tables.union(x, f)
    tables.rebuild()
    assert tables.rows["f"][tables.find(x), 7].eclass == tables.find(x)
    assert tables.add("f", (tables.find(x), 7)) == tables.find(f)


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_too_many_nodes_leave_the_program_as_it_was() -> None:
    rewritten, report = optimize(GRAPH, {"n": 8}, budget=Budget(nodes=20))
    assert rewritten is GRAPH
    assert "grew beyond 20 nodes" in report.failure
    assert "is unchanged" in str(report)


def test_so_does_too_much_time() -> None:
    rewritten, report = optimize(GRAPH, {"n": 8}, budget=Budget(seconds=1e-9))
    assert rewritten is GRAPH
    assert report.failure == "saturation took more than 1e-09 s"


def test_spent_rounds_are_reported_and_what_was_found_is_used() -> None:
    _, report = optimize(graph_of(example("silu")), {"n": 8}, budget=Budget(rounds=1))
    assert (report.rounds, report.stopped, report.failure) == (1, "rounds", "")


def test_where_rules_go_on_for_ever_the_busiest_are_set_aside_and_what_was_found_is_used() -> None:
    endless = FamilyRows("endless")
    for name, factor in (("twice", 2.0), ("more", 2.5)):
        law = f"x * const(c) = (x * const(c * {factor})) * const({1 / factor!r})"
        endless.rule(name, law, "for ever", Exactness.REASSOCIATING)
    encoded = encode(graph_of(b.scale(leaf("x", ("n", 5)), 0.7), example("silu")))
    rules = rules_for(GRAPH, Exactness.REASSOCIATING, encoded.tables, before_autodiff=False)
    found = saturate(encoded, [*endless.rows, *rules], Budget())
    with pytest.raises(SaturationError, match="grew beyond 900 nodes"):
        saturate(encoded, [*endless.rows, *rules], Budget(nodes=900))
    assert found.paused
    assert found.egraph.size < Budget().nodes / 4
    silu = found.egraph.classes[found.egraph.roots[1]]
    assert "silu" in {n.head for n in silu}


# -- independence ------------------------------------------------------------------------------------------------------


def test_other_programs_before_it_change_nothing() -> None:
    alone = saturated(GRAPH)[1]
    for name in ("silu", "softmax"):
        saturated(graph_of(example(name)))
        assert saturated(GRAPH)[1] == alone


UNDER_A_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # ulimit -v
import wholestep as ws
g = ws.Graph()
x, w = g.input("x", ("batch", 4)), g.parameter("w", (4, 3), init=0.5)
g.set_outputs({"loss": (ws.relu(x @ w) ** 2).mean()})
_, report = ws.build_session_with_report(g, batch_size=8, device="reference", options=ws.CompileOptions(cache=False))
print(report)
"""


def test_under_a_limit_of_the_address_space_the_step_is_optimised() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # each thread of BLAS reserves address space
    command = [sys.executable, "-c", UNDER_A_LIMIT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "is unchanged" not in done.stdout
    assert "e-graph" in done.stdout


PROGRAM = """
import wholestep as ws
from tests.compiler.targets import HERE
from tests.models.gpt2 import PRIMITIVE, Config, gpt2
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.passes.egraph.outline import outline
from wholestep.compiler.pipeline import Compiler
from wholestep.steps.train import train_graph
step = train_graph(gpt2(Config(layers=2, width=8, heads=2, vocabulary=11, context=5), PRIMITIVE), ws.AdamW())
assert outline(step) is not None
print(print_graph(Compiler(ws.CompileOptions(egraph=True)).run_stages(step, HERE, until="optimize_full")))
"""


def test_the_program_does_not_depend_on_the_order_of_sets() -> None:
    """Two interpreters that hash strings differently choose the same nodes in the same order."""
    root = str(Path(__file__).parents[4])
    texts = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert b"attention" in texts[0]
    assert texts[0] == texts[1]
