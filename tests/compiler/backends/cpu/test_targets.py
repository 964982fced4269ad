"""A step has the same bits on all CPUs with fused multiply-adds; products and functions have separate tests."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler import native
from tests.compiler.step_graphs import attention_step, example, mlp_step, tiles_step
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.backends.cpu.target import AVX2, AVX512, AVX512BF16, PORTABLE, TARGETS, available_targets
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.target import Target

STEPS = {"mlp": (lambda: mlp_step(49, 70, 10), 49), "attention": (attention_step, 320), "tiles": (tiles_step, 672)}


def numbers(plan: Plan) -> dict[str, np.ndarray]:
    """Something for every state of a plan."""
    rng = np.random.default_rng(0)
    shapes = {name: plan.buffers[i].type.shape for name, i in plan.states}
    return {name: np.abs(rng.normal(scale=0.1, size=shape)).astype(np.float32) for name, shape in shapes.items()}


def run_on(target: Target, graph: IRGraph, inputs: int) -> native.Ran:
    plan = make_plan(graph, {"batch": 21}, target=target)
    return native.run_plan(plan, example(21, inputs, 10), numbers(plan), {"batch": 21}, step=3)


@pytest.mark.parametrize("name", STEPS)
def test_all_cpus_have_the_same_text(name: str) -> None:
    graph = STEPS[name][0]()
    assert len({render(make_plan(graph, {"batch": 21}, target=target)) for target in TARGETS.values()}) == 1


@pytest.mark.parametrize("wide", [AVX512, AVX512BF16], ids=str)
@pytest.mark.parametrize("name", STEPS)
def test_wide_vectors_give_the_bits_of_avx2(name: str, wide: Target) -> None:
    if wide not in available_targets():
        pytest.skip(f"needs a processor that is {wide}")
    make, inputs = STEPS[name]
    graph = make()
    narrow, ran = (run_on(target, graph, inputs) for target in (AVX2, wide))
    for name, value in (narrow.state | narrow.outputs).items():
        assert np.array_equal(value, (ran.state | ran.outputs)[name]), name
    first = numbers(make_plan(graph, {"batch": 21}, target=AVX2))
    assert not np.array_equal(narrow.state["w0"], first["w0"])  # it trained


@pytest.mark.parametrize("name", ["attention", "tiles"])
def test_steps_on_any_processor(name: str) -> None:
    make, inputs = STEPS[name]
    graph = make()
    ran = run_on(PORTABLE, graph, inputs)
    state = numbers(make_plan(graph, {"batch": 21}, target=PORTABLE))
    expected = interpret(graph, inputs=example(21, inputs, 10), state=state, sizes={"batch": 21}, step=3)
    for name, value in (expected.state | expected.outputs).items():
        assert_close((ran.state | ran.outputs)[name], value)
