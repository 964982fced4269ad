"""A compiled step has the same bits on AVX2 and AVX-512; products and functions have tests of their own."""

from __future__ import annotations

import native
import numpy as np
import pytest
from oracles import assert_close
from step_graphs import attention_step, example, mlp_step, tiles_step

from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.compiler import compile_c, find_compiler
from wholestep.compiler.backends.cpu.library import Library, build_library
from wholestep.compiler.backends.cpu.target import AVX2, AVX512, PORTABLE, available_targets
from wholestep.compiler.ir.interpret import interpret
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.cache import Cache
from wholestep.compiler.target import Target

STEPS = {"mlp": (lambda: mlp_step(49, 70, 10), 49), "attention": (attention_step, 320), "tiles": (tiles_step, 672)}


def run_on(
    target: Target, plan: Plan, inputs: int, state: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> native.Ran:
    library = Library(build_library(Cache(), find_compiler(), target.name))
    monkeypatch.setattr(native, "load_library", lambda: library)
    monkeypatch.setattr(native, "compile_c", lambda source: compile_c(source, target=target.name))
    return native.run_plan(plan, example(21, inputs, 10), state, {"batch": 21}, step=3)


@pytest.mark.skipif(AVX512 not in available_targets(), reason="needs a processor with AVX-512")
@pytest.mark.parametrize("name", STEPS)
def test_avx2_and_avx512_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = STEPS[name]
    plan = make_plan(make(), {"batch": 21})
    rng = np.random.default_rng(0)
    shapes = {name: plan.buffers[i].type.shape for name, i in plan.states}
    state = {name: np.abs(rng.normal(scale=0.1, size=shape)).astype(np.float32) for name, shape in shapes.items()}
    narrow, wide = (run_on(target, plan, inputs, state, monkeypatch) for target in (AVX2, AVX512))
    for name, value in (narrow.state | narrow.outputs).items():
        assert np.array_equal(value, (wide.state | wide.outputs)[name]), name
    assert not np.array_equal(narrow.state["w0"], state["w0"])  # it trained


@pytest.mark.parametrize("name", ["attention", "tiles"])
def test_steps_on_any_processor(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, inputs = STEPS[name]
    graph = make()
    plan = make_plan(graph, {"batch": 21})
    rng = np.random.default_rng(0)
    shapes = {name: plan.buffers[i].type.shape for name, i in plan.states}
    state = {name: np.abs(rng.normal(scale=0.1, size=shape)).astype(np.float32) for name, shape in shapes.items()}
    ran = run_on(PORTABLE, plan, inputs, state, monkeypatch)
    expected = interpret(graph, inputs=example(21, inputs, 10), state=state, sizes={"batch": 21}, step=3)
    for name, value in (expected.state | expected.outputs).items():
        assert_close((ran.state | ran.outputs)[name], value)
