"""Window kernels: what shares one, who owns what, what they cost, and that a plan with them survives a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.ir.random_graphs import example_values
from tests.compiler.native import Loaded, fenced, lower
from tests.compiler.ownership import violations
from tests.compiler.step_graphs import convolution_step
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.convolution.padding import backward_taps
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of, tiles_of
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan, Space
from wholestep.errors import PlanError
from wholestep.steps.train import train_graph

CAPACITY = {"batch": 20}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(convolution_step(), CAPACITY)


def windows(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.WINDOW]


def ops(plan: Plan) -> list[str]:
    return [k.body.op for k in windows(plan)]


def test_a_pool_stands_in_the_kernel_of_its_convolution_and_its_adjoint_in_those_of_theirs(plan: Plan) -> None:
    assert sorted(ops(plan)) == [
        *["conv2d"] * 3, "conv2d_grad_input", "conv2d_grad_weight", "pooled_grad_input", *["pooled_grad_weight"] * 2,
    ]  # fmt: skip
    assert [k.body.pooled is not None for k in windows(plan) if k.body.op == "conv2d"].count(True) == 2


def test_what_is_pooled_is_never_stored(plan: Plan) -> None:
    stored = {b.type.shape[1:] for b in plan.buffers if b.space is Space.ARENA}
    assert (11, 10, 5) not in stored
    assert (4, 4, 18) not in stored


def test_unfused_pools_have_kernels_of_their_own() -> None:
    plan = make_plan(convolution_step(), CAPACITY, fused=False)
    assert ops(plan).count("max_pool2d") == 2
    assert violations(plan, threads=2) == []


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("rows", [20, 9, 1])
def test_every_byte_has_one_owner(plan: Plan, threads: int, rows: int) -> None:
    assert violations(plan, {"batch": rows}, threads) == []


def test_gradients_of_weights_are_dealt_out_by_outputs_and_images_by_the_batch(plan: Plan) -> None:
    for k in windows(plan):
        how, of_weight = schedule_of(k), k.body.op.endswith("grad_weight")
        assert how.split == 0
        assert how.granule == (tiles_of(k).granule if of_weight else 1)


def test_flops_count_every_multiply_and_add(plan: Plan) -> None:
    (plain,) = (k for k in windows(plan) if k.body.op == "conv2d" and k.body.pooled is None)
    pixels = 20 * 5 * 5
    assert plain.flops == pixels * 5 * (2 * 9 * 5) + 2 * pixels * 5  # the residual and the relu are one each
    assert all(k.bytes > 0 for k in windows(plan))


def test_a_plan_survives_a_file(plan: Plan) -> None:
    assert load(dump(plan)) == plan


def test_an_operand_outside_of_its_buffer_is_refused(plan: Plan) -> None:
    kernel = windows(plan)[0]
    axes = (kernel.axes[0] * 2, *kernel.axes[1:])
    with pytest.raises(PlanError, match=f"kernel {kernel.id} stays inside buffer"):
        check(replace(plan, kernels=tuple(replace(k, axes=axes) if k is kernel else k for k in plan.kernels)))


@pytest.mark.parametrize("rows", [20, 7])
def test_a_step_computes_what_the_interpreter_does(plan: Plan, rows: int) -> None:
    plan, graph, sizes = fenced(plan), convolution_step(), {"batch": rows}
    inputs, state = example_values(graph, sizes, np.random.default_rng(rows))
    expected = interpret(graph, inputs=inputs, state=state, sizes=sizes, scalars={})
    got = Loaded(plan, render(plan)).run(inputs, state, sizes)
    assert_close(got.outputs["logits"], expected.outputs["logits"], "float32")
    for name in ("w0", "w1", "w2", "b0"):
        assert_close(got.state[name], expected.state[name], "float32")


def _convolution(groups: int, channels: int, outputs: int) -> IRGraph:
    """The update of a weight, and what the convolution and its adjoint in the image give."""
    g = ws.Graph()
    x, one = g.input("x", ("batch", groups * channels, 5, 6)), g.parameter("one", (groups * channels, 5, 6))
    weight = g.parameter("w", (groups * outputs, channels, 3, 3))
    y = ws.conv2d(x * one, weight, groups=groups, padding=1)
    g.set_outputs({"loss": (y * y).sum()})
    return lower(train_graph(g, ws.SGD(lr=1e-3)))


GROUPED = ((9, 1, 1), (17, 1, 1), (2, 18, 3), (2, 3, 18), (3, 1, 5), (1, 18, 9))


@pytest.fixture(scope="module")
def grouped() -> dict[tuple[int, int, int], tuple[IRGraph, Loaded]]:
    graphs = {of: _convolution(*of) for of in GROUPED}
    plans = {of: fenced(make_plan(graph, CAPACITY)) for of, graph in graphs.items()}
    source = "\n".join(render(plan, f"g{i}") for i, plan in enumerate(plans.values()))
    return {of: (graphs[of], Loaded(plan, source, f"g{i}")) for i, (of, plan) in enumerate(plans.items())}


@pytest.mark.parametrize("of", GROUPED, ids=str)
def test_convolutions_stay_within_their_workspace(grouped: dict, of: tuple[int, int, int]) -> None:
    graph, loaded = grouped[of]
    inputs, state = example_values(graph, CAPACITY, np.random.default_rng(0))
    expected = interpret(graph, inputs=inputs, state=state, sizes=CAPACITY, scalars={})
    got = loaded.run(inputs, state, CAPACITY, threads=2)
    for name in ("w", "one"):
        assert_close(got.state[name], expected.state[name], "float32")


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("dilation", [1, 2, 3])
@pytest.mark.parametrize("low", [0, 2, 5])
def test_phases_of_an_adjoint_meet_every_tap_where_it_is(stride: int, dilation: int, low: int) -> None:
    size, window = 11, 3
    windows = (size + low - dilation * (window - 1) - 1) // stride + 1
    phases, before, behind = backward_taps(size, windows, window, stride, low, dilation)
    met = {}
    for phase in phases:
        for t in range(phase.pixels):
            for i, tap in enumerate(phase.taps):
                place = t + phase.start + i * phase.step
                assert 0 <= place < before + windows + behind
                met[phase.first + t * stride, tap] = place - before
    for pixel in range(size):
        for tap in range(window):
            at, rest = divmod(pixel + low - tap * dilation, stride)
            assert met.get((pixel, tap)) == (None if rest else at)
