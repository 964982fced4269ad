"""A failure inside an optimisation costs the rewrite, not the build; the report says so and nothing is cached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from wholestep.compiler import pipeline
from wholestep.compiler.ir.graph import IRGraph, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.egraph import optimize
from wholestep.compiler.passes.egraph.rules import contractions, rule_set
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.pipeline import STAGES, Compiler, optional_passes
from wholestep.compiler.spans import OptimizeReport
from wholestep.errors import GraphError
from wholestep.steps.train import train_graph

CAPACITY = {"batch": 4}


def network(layers: int = 2) -> ws.Graph:
    """SiLU written out, so that there is something to rewrite, between products that can be ordered otherwise."""
    g = ws.Graph()
    h, y = g.input("x", ("batch", 3)), g.input("y", ("batch", 3))
    for i in range(layers):
        h = h @ g.parameter(f"u{i}", (3, 1)) @ g.parameter(f"v{i}", (1, 3))
        h = h / (1 + ws.exp(-h))
    g.set_outputs({"loss": ws.losses.mse_loss(h, y)})
    return g


def images() -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 2, 8, 8)), g.input("labels", ("batch",), dtype="int32")
    h = ws.relu(ws.max_pool2d(ws.conv2d(x, g.parameter("w", (4, 2, 3, 3)), g.parameter("b", (4,))), 2))
    table, rows = g.parameter("table", (5, 36)), h.reshape(x.shape[0], 36) + 1.0
    scores = (rows + ws.gather(table, labels)) @ g.parameter("v", (36, 5))
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels)})
    return g


def plan(layers: int = 2) -> OptimizeReport:
    return Compiler().plan(train_graph(network(layers), ws.SGD()), CAPACITY, HERE)[1]


def raise_assertion(*_: Any, **__: Any) -> Any:
    raise AssertionError("made to fail")


def test_without_a_failure_there_is_something_to_lose() -> None:
    report = plan()
    assert report.complete
    assert report.fusions_applied
    assert "made to fail" not in str(report)


STEPS = (
    "outline",
    "encode",
    "rules_for",
    "reachable_rules",
    "saturate",
    "find_replaced_nodes",
    "extract",
    "count_applications",
)


@pytest.mark.parametrize("step", [*STEPS, "CostModel", "rebuild"])
def test_a_step_that_fails_leaves_the_program_as_it_was(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, step, raise_assertion)
    report = plan()
    assert not report.complete
    assert report.fusions_applied == ()
    assert all("AssertionError: made to fail (test_failures.py" in r.failure for r in report.egraph)
    assert str(report).count("the program is unchanged: AssertionError: made to fail") == 2


@pytest.mark.parametrize("step", ["Replay.graph", "Replay.count_changes"])
def test_so_does_a_replay_over_the_copies_of_an_outlined_graph(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = Compiler(ws.CompileOptions(egraph=False)).run_stages(
        train_graph(network(8), ws.SGD()), HERE, until="simplify"
    )
    rewritten, report = optimize.optimize(graph, CAPACITY, costs=HERE.costs, outline_from=0)
    assert report.entered < report.nodes_before
    assert rewritten is not graph
    monkeypatch.setattr(optimize.Replay, step.split(".")[1], raise_assertion)
    rewritten, report = optimize.optimize(graph, CAPACITY, costs=HERE.costs, outline_from=0)
    assert rewritten is graph
    assert "made to fail" in report.failure


def test_a_law_that_fails_is_left_out_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    (law,) = contractions.LAWS
    monkeypatch.setattr(rule_set, "INSTANCE_LAWS", (replace(law, pairs=raise_assertion),))
    report = plan()
    assert report.fusions_applied
    assert not report.complete
    assert "not used: product-order: AssertionError: made to fail" in str(report)


def test_so_is_a_name_whose_definition_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rule_set.INSTANCES, "gelu", raise_assertion)
    report = plan()
    assert any(name.startswith("name-silu") for name in report.fusions_applied)
    assert [list(r.dropped) for r in report.egraph] == [["name-gelu"]] * 2


def test_a_guard_that_fails_in_the_saturation(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [
        replace(r, guard=Expression("nobody_knows > 0.0")) if r.name == "mul-commutes" else r for r in rule_set.LAWS
    ]
    monkeypatch.setattr(rule_set, "LAWS", tuple(broken))
    report = plan()
    assert all(r.failure for r in report.egraph)
    assert not report.complete


def test_a_rewriting_that_is_not_well_formed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def twice(graph: IRGraph, *_: object) -> IRGraph:
        return IRGraph((*graph.outputs, *graph.outputs), graph.updates, graph.inputs)

    monkeypatch.setattr(optimize, "rebuild", twice)
    report = plan()
    assert "GraphError" in report.egraph[1].failure
    assert report.egraph[1].applied == {}


def test_a_program_that_is_wrong_itself_is_an_error() -> None:
    graph = train_graph(network(), ws.SGD())
    wrong = IRGraph((*graph.outputs, Output(graph.outputs[0].name, graph.outputs[0].node)), graph.updates, graph.inputs)
    with pytest.raises(GraphError):
        Compiler().plan(wrong, CAPACITY, HERE)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_no_failure(interruption: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise interruption

    monkeypatch.setattr(optimize, "extract", interrupt)
    with pytest.raises(interruption):
        plan()


OPTIONAL = optional_passes(HERE)


# -- passes ----------------------------------------------------------------------------------------------------------


def failing(which: Callable[..., Any]) -> Callable[..., Any]:
    real = pipeline.map_over_bodies
    return lambda rewrite: raise_assertion if rewrite is which else real(rewrite)


@pytest.mark.parametrize("name", sorted(p.__name__ for p in OPTIONAL))
def test_a_pass_that_only_saves_time_may_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (which,) = (p for p in OPTIONAL if p.__name__ == name)
    graph = train_graph(images(), ws.SGD(lr=0.5))
    options = ws.CompileOptions(egraph=False)
    rng = np.random.default_rng(0)
    state = {n: rng.normal(size=[int(e) for e in s.shape]) for n, s in graph.states().items()}
    inputs = {"x": rng.normal(size=(4, 2, 8, 8)), "labels": np.array([0, 4, 2, 1], np.int32)}
    expected = interpret(Compiler(options).run_stages(graph, HERE, until="autodiff"), inputs=inputs, state=state)
    monkeypatch.setattr(pipeline, "map_over_bodies", failing(which))
    compiler = Compiler(options)
    _, report = compiler.plan(graph, CAPACITY, HERE)
    assert f"{name} was left out: AssertionError: made to fail" in str(report)
    assert not report.complete
    found = interpret(compiler.run_stages(graph, HERE), inputs=inputs, state=state)
    for key, value in expected.state.items():
        np.testing.assert_allclose(found.state[key], value, rtol=1e-7, atol=1e-9, err_msg=key)


def test_a_pass_that_a_plan_needs_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = [p for stage in STAGES for p in stage.passes_for(HERE) if p not in OPTIONAL]
    assert {p.__name__ for p in needed} >= {"expand_gradients", "decompose_for", "lower_reductions"}
    assert {p.__name__ for p in needed} >= {"channels_last", "unroll_inner_loops"}  # kernels exist for nothing else
    monkeypatch.setattr(pipeline, "map_over_bodies", failing(needed[0]))
    with pytest.raises(AssertionError, match="made to fail"):
        plan()


def test_a_session_tells_it_and_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.setattr("wholestep.session.building.plans.store_plan", lambda store, key, plan: kept.append(key))
    options = ws.CompileOptions(cache_dir=str(tmp_path), compiler="cc -O0")
    with monkeypatch.context() as broken:
        broken.setattr(optimize, "extract", raise_assertion)
        session = ws.build_session(network(), optimizer=ws.SGD(), batch_size=4, options=options)
    assert kept == []
    assert "made to fail" in str(session.optimization())
    ones = np.ones((4, 3), np.float32)
    assert np.isfinite(session.step(x=ones, y=ones).loss)
