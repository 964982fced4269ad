"""Group norms and what follows them are one kernel, and compute the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.native import Loaded, lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.layout.sink_reshapes import sink_row_reshapes
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Instr, Plan
from wholestep.errors import PlanError
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]
CAPACITY = {"batch": 5}


def normed(activation: Callable[[ws.Tensor], ws.Tensor], *size: int, groups: int = 3, channels: int = 12) -> ws.Graph:
    g = ws.Graph()
    x = g.input("x", ("batch", channels, *size))
    weight, bias = g.parameter("w", (channels,), init=1.0), g.parameter("b", (channels,))
    g.set_outputs({"y": activation(ws.group_norm(x, groups, weight, bias))})
    return g


def run(graph: IRGraph, plan: Plan, rows: int, threads: int = 2) -> tuple[dict[str, Array], dict[str, Array]]:
    """(what the plan computes, what it should)."""
    rng = np.random.default_rng(3)
    (x,) = graph.inputs
    inputs = {"x": rng.normal(size=(rows, *x.type.shape[1:])).astype(np.float32)}  # type: ignore[arg-type]
    state = {n: rng.uniform(0.5, 1.5, s.type.shape).astype(np.float32) for n, s in graph.states().items()}
    expected = interpret(graph, inputs=inputs, state=state, sizes={"batch": rows})
    ran = Loaded(plan).run(inputs, state, {"batch": rows}, threads=threads)
    return ran.outputs | ran.state, expected.outputs | expected.state


ACTIVATIONS: dict[str, Callable[[ws.Tensor], ws.Tensor]] = {
    "none": lambda y: y,
    "silu": ws.silu,
    "gelu": ws.gelu,
    "scaled": lambda y: 2.0 * ws.relu(y) - 1.0,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_group_norm_and_its_activation_are_one_kernel(name: str) -> None:
    graph = lower(normed(ACTIVATIONS[name], 5, 7).to_ir())
    plan = make_plan(graph, CAPACITY)
    check(plan)
    assert len(plan.kernels) == 1
    elements, channels = 5 * 12 * 5 * 7, 12
    assert plan.bytes_moved == 4 * (2 * elements + 2 * channels)
    for rows in (5, 2):
        found, expected = run(graph, plan, rows)
        assert found["y"].shape == (rows, 12, 5, 7)
        assert_close(found["y"], expected["y"])
    for threads in (1, 3):
        assert violations(plan, {"batch": 4}, threads) == []


@pytest.mark.parametrize("size", [(), (9,), (2, 3, 4)])
def test_any_number_of_axes_behind_the_channels(size: tuple[int, ...]) -> None:
    graph = lower(normed(ws.silu, *size).to_ir())
    plan = make_plan(graph, CAPACITY)
    assert len(plan.kernels) == 1
    found, expected = run(graph, plan, 5)
    assert_close(found["y"], expected["y"])


def test_an_input_in_another_shape_joins() -> None:
    """A residual that is in memory is read in rows."""
    g = ws.Graph()
    x = g.input("x", ("batch", 12, 5, 7))
    g.set_outputs({"y": x + ws.silu(ws.group_norm(x, 4))})
    graph = lower(g.to_ir())
    plan = make_plan(graph, CAPACITY)
    assert len(plan.kernels) == 1
    found, expected = run(graph, plan, 5)
    assert_close(found["y"], expected["y"])


def test_what_varies_within_a_channel_does_not_move() -> None:
    """One number per pixel is a remainder, not a quotient, of the place in a group."""
    g = ws.Graph()
    x, p = g.input("x", ("batch", 12, 5, 7)), g.parameter("p", (7,), init=1.0)
    g.set_outputs({"y": ws.group_norm(x, 4) * p})
    graph = lower(g.to_ir())
    plan = make_plan(graph, CAPACITY)
    assert len(plan.kernels) == 2
    found, expected = run(graph, plan, 5)
    assert_close(found["y"], expected["y"])


def test_an_op_stays_with_followers_that_need_the_parts() -> None:
    """What a sum along the last axis reads is computed in the sum's kernel."""
    g = ws.Graph()
    x = g.input("x", ("batch", 12, 5, 7))
    g.set_outputs({"y": ws.group_norm(x, 4).sum(-1)})
    graph = lower(g.to_ir())
    assert sink_row_reshapes(graph) is graph
    assert len(make_plan(graph, CAPACITY).kernels) == 2


def test_nothing_moves_without_a_norm() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 12))
    g.set_outputs({"y": ws.exp(ws.sin(x).reshape(x.shape[0], 3, 4))})
    graph = lower(g.to_ir())
    assert sink_row_reshapes(graph) is graph


def test_a_training_step_is_that_of_the_interpreter() -> None:
    g = normed(ws.silu, 5, 7)
    y = g.outputs["y"]
    g.set_outputs({"loss": (y * y * y).mean(), "y": y})
    graph = lower(train_graph(g, ws.SGD(lr=0.5)))
    plan = make_plan(graph, CAPACITY)
    found, expected = run(graph, plan, 5)
    for name, value in expected.items():
        assert_close(found[name], value)


def test_an_output_in_another_shape_is_no_copy() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 12))
    s = ws.sin(x)
    g.set_outputs({"as it is": s, "in threes": s.reshape(x.shape[0], 4, 3), "flat": ws.exp(s).reshape(-1)})
    graph = lower(g.to_ir())
    plan = make_plan(graph, CAPACITY)
    assert len(plan.kernels) == 1
    found, expected = run(graph, plan, 4)
    for name, value in expected.items():
        assert found[name].shape == value.shape
        assert_close(found[name], value)


def test_a_quotient_is_saved_and_checked() -> None:
    plan = make_plan(lower(normed(ws.silu, 5, 7).to_ir()), CAPACITY)
    assert load(dump(plan)) == plan

    def undivided(instr: Instr) -> Instr:
        if instr.load is None or all(i.over == 1 for i in instr.load.index):
            return instr
        index = tuple(replace(i, over=1) for i in instr.load.index)
        return replace(instr, load=replace(instr.load, index=index))

    (kernel,) = plan.kernels
    levels = tuple(replace(level, body=tuple(map(undivided, level.body))) for level in kernel.levels)
    assert levels != kernel.levels
    with pytest.raises(PlanError, match=r"stays inside buffer \d+: an index reaches 0..419 of 12"):
        check(replace(plan, kernels=(replace(kernel, body=replace(kernel.body, levels=levels)),)))
