from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from tests.support.sessions import data, mlp
from wholestep.compiler import pipeline
from wholestep.compiler.ir.graph import IRGraph, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.pipeline import PLAN, STAGES, Compiler, Stage
from wholestep.compiler.runtime.cache.plan_cache import plan_key
from wholestep.errors import GraphError
from wholestep.steps.train import train_graph

NAMES = [s.name for s in STAGES]


def traced() -> IRGraph:
    return train_graph(mlp(), ws.Adam())


def test_the_stages_run_in_order_and_leave_spans() -> None:
    compiler = Compiler()
    _, report = compiler.plan(traced(), {"batch": 16}, HERE)
    assert [s.name for s in report.spans] == [*NAMES, PLAN]
    assert all(s.seconds >= 0 for s in report.spans)
    nodes = [(s.nodes_before, s.nodes_after) for s in report.spans[:-1]]
    assert all(before[1] == after[0] for before, after in pairwise(nodes))
    assert (report.nodes_before, report.nodes_after) == (nodes[0][0], nodes[-1][1])


def test_the_whole_graph_pass_can_be_left_out() -> None:
    compiler = Compiler(ws.CompileOptions(optimize=False))
    compiler.run_stages(traced(), HERE)
    assert list(compiler.spans.names()) == [n for n in NAMES if n != "optimize_full"]


@pytest.mark.parametrize(
    ("stage", "gone"),
    [
        ("autodiff", {"gradient", "item", "call", "stop_gradient", "by_mode", "custom_gradient"}),
        ("lower", {"ratio", "cross_entropy"}),
    ],
)
def test_what_is_true_after_a_stage(stage: str, gone: set[str]) -> None:
    compiler = Compiler()
    ops = {n.op for n in compiler.run_stages(traced(), HERE, until=stage).nodes}
    assert not ops & gone
    assert compiler.spans.names()[-1] == stage


@pytest.mark.parametrize("stage", NAMES[1:])
def test_every_stage_keeps_the_values(stage: str) -> None:
    batch = data(7)
    state = {n: np.random.default_rng(1).normal(size=[int(e) for e in s.shape]) for n, s in traced().states().items()}
    state = {n: np.abs(v) for n, v in state.items()}  # Adam's second moment is not negative
    results = [
        interpret(Compiler().run_stages(traced(), HERE, until=name), inputs=batch, state=state, scalars={"step": 3.0})
        for name in ("autodiff", stage)
    ]
    for name, value in results[0].outputs.items():
        np.testing.assert_allclose(results[1].outputs[name], value, rtol=1e-9)
    for name, value in results[0].state.items():
        np.testing.assert_allclose(results[1].state[name], value, rtol=1e-9)


def test_a_pass_that_breaks_the_graph_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_outputs(graph: IRGraph) -> IRGraph:
        return IRGraph(
            (*graph.outputs, Output(graph.outputs[0].name, graph.outputs[0].node)), graph.updates, graph.inputs
        )

    monkeypatch.setattr(pipeline, "STAGES", (Stage("broken", (break_outputs,)),))
    with pytest.raises(GraphError):
        Compiler().run_stages(traced(), HERE)
    Compiler(ws.CompileOptions(check_passes=False)).run_stages(traced(), HERE)  # the check is what found it


def test_plans_depend_on_nothing_but_their_key() -> None:
    plans = [Compiler().plan(traced(), {"batch": 16}, HERE)[0] for _ in range(2)]
    assert plans[0] == plans[1]
    keys = {
        plan_key(traced(), {"batch": 16}, ws.CompileOptions(), HERE),
        plan_key(
            traced(),
            {"batch": 16},
            ws.CompileOptions(cache=False, compiler="cc", verify=False, check_passes=False),
            HERE,
        ),
    }
    assert len(keys) == 1
    others = {
        plan_key(traced(), {"batch": 17}, ws.CompileOptions(), HERE),
        plan_key(traced(), {"batch": 16}, ws.CompileOptions(fuse=False), HERE),
        plan_key(traced(), {"batch": 16}, ws.CompileOptions(optimize=False), HERE),
        plan_key(traced(), {"batch": 16}, ws.CompileOptions(), replace(HERE, name="other")),
        plan_key(train_graph(mlp(), ws.SGD()), {"batch": 16}, ws.CompileOptions(), HERE),
    }
    assert len(keys | others) == 6


def test_hyperparameters_are_not_structure() -> None:
    """Only their defaults differ: the plan records the value to start from, so the key differs and the C does not."""
    from wholestep.compiler.backends.cpu.render.source import render

    a, b = (Compiler().plan(train_graph(mlp(), ws.Adam(lr=lr)), {"batch": 16}, HERE)[0] for lr in (0.1, 0.2))
    assert a != b
    assert render(a) == render(b)


def test_bounds_come_from_what_the_user_wrote() -> None:
    plan, _ = Compiler().plan(traced(), {"batch": 16}, HERE)
    assert [(b.input, b.size) for b in plan.bounds] == [("labels", 5)]
