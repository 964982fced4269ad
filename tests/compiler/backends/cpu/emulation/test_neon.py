"""Steps on ARM64, under qemu: the bits of AVX2, for any number of threads; functions of doubles and NaN excepted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import wholestep as ws
from tests.compiler import native
from tests.compiler.backends.cpu.compiler_suite import EXAMPLES, OPTIONS, mlp
from tests.compiler.backends.cpu.emulation.emulated import ARM64, Emulated, emulated_cpu
from tests.compiler.backends.cpu.test_targets import STEPS, numbers, run_on
from tests.compiler.ir.random_graphs import LARGEST_VALUE, example_values, graphs
from tests.compiler.step_graphs import example
from tests.compiler.targets import make_plan
from tests.compiler.test_through_every_stage import CAPACITY, PHASES, SIZES, explained
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.target import AVX2, NEON, PORTABLE, available_targets
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.target import Target

pytestmark = ARM64.needed
SAME = [pytest.param(AVX2, NEON, id="neon"), pytest.param(PORTABLE, PORTABLE, id="portable", marks=pytest.mark.long)]


def assert_same_bits(one: native.Ran, other: native.Ran) -> None:
    for name, value in (one.state | one.outputs).items():
        np.testing.assert_array_equal(value, (other.state | other.outputs)[name], err_msg=name)


@pytest.mark.parametrize("name", [n if n == "tiles" else pytest.param(n, marks=pytest.mark.long) for n in STEPS])
@pytest.mark.parametrize(("here", "there"), SAME)
def test_a_step_has_the_bits_of_x86(name: str, here: Target, there: Target) -> None:
    if here not in available_targets():
        pytest.skip(f"needs a processor that is {here}")
    make, inputs = STEPS[name]
    graph = make()
    expected = run_on(here, graph, inputs)
    plan = make_plan(graph, {"batch": 21}, target=there)
    step = Emulated(plan)
    for threads in (1, 3):
        ran = step.run(example(21, inputs, 10), numbers(plan), {"batch": 21}, step=3, threads=threads)
        assert_same_bits(expected, ran)
    assert not np.array_equal(expected.state["w0"], numbers(plan)["w0"])  # it trained


@pytest.mark.long
@pytest.mark.parametrize("name", EXAMPLES)
def test_networks_train_to_the_bits_of_x86_for_any_number_of_threads(name: str) -> None:
    """And, up to rounding, to what the interpreter computes."""
    if AVX2 not in available_targets():
        pytest.skip(f"needs a processor that is {AVX2}")
    with emulated_cpu(NEON) as device:
        there, on_one = (EXAMPLES[name].results(device, threads) for threads in (2, 1))
    assert_equal_bytes(there, on_one)
    assert_equal_bytes(there, EXAMPLES[name].results(AVX2.name))
    assert_losses_match(name, there)


def assert_equal_bytes(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    assert [key for key in one if one[key].tobytes() != other[key].tobytes()] == []


def assert_losses_match(name: str, results: dict[str, np.ndarray]) -> None:
    """Against the interpreter, in float64."""
    expected = EXAMPLES[name].results("reference")
    np.testing.assert_allclose(results["losses"], expected["losses"], rtol=5e-3 if "16" in name else 1e-5)


@pytest.mark.long
def test_a_cached_plan_trains_to_the_same_bits_and_is_not_planned_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = replace(EXAMPLES["lenet"], options=ws.CompileOptions(cache_dir=str(tmp_path)))
    with emulated_cpu(NEON) as device:
        first = example.results(device)
        monkeypatch.setattr(Compiler, "plan", None)  # planning would fail
        assert_equal_bytes(first, example.results(device))


@pytest.mark.long
def test_a_run_is_resumed_to_the_same_bits(tmp_path: Path) -> None:
    """On ARM64, and on x86-64 from its file: moments and the numbers of dropout continue."""
    if AVX2 not in available_targets():
        pytest.skip(f"needs a processor that is {AVX2}")
    x, y = EXAMPLES["mlp"].rows()

    def session(device: str) -> ws.Session:
        return ws.build_session(
            mlp(), inputs=ws.Spec(("batch", *x.shape[1:])), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
            optimizer="adamw", batch_size=len(x), seed=3, device=device, options=OPTIONS,
        )  # fmt: skip

    def losses(of: ws.Session) -> list[float]:
        return [of.step(x=x, labels=y).loss for _ in range(3)]

    whole = session(AVX2.name)
    expected = [losses(whole), losses(whole)]
    with emulated_cpu(NEON) as device:
        first, resumed = session(device), session(device)
        assert losses(first) == expected[0]
        save_file(first.state_dict(), tmp_path / "state.safetensors")
        for other in (resumed, session(AVX2.name)):
            other.load_state_dict(load_file(tmp_path / "state.safetensors"))
            assert losses(other) == expected[1]
            found, wanted = other.state_dict(), whole.state_dict()
            assert [name for name in wanted if found[name].tobytes() != wanted[name].tobytes()] == []


@pytest.mark.long
@settings(max_examples=4, phases=PHASES)
@given(st.lists(graphs(max_nodes=14), min_size=6, max_size=6), SIZES, st.integers(0, 2**31))
def test_random_graphs_give_what_the_interpreter_gives(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    for graph in many:
        plan = native.fenced(make_plan(native.lower(graph), CAPACITY, target=NEON))
        inputs, state = example_values(graph, sizes, np.random.default_rng(seed))
        expected = interpret(graph, inputs=inputs, state=state, sizes=sizes, seed=seed, step=3)
        step = Emulated(plan)
        one, three = (step.run(inputs, state, sizes, seed=seed, step=3, threads=t) for t in (1, 3))
        assert_same_bits(one, three)
        wanted = expected.outputs | {name: expected.state[name] for name, _ in plan.states}
        for name, value in wanted.items():
            with explained(graph, name):
                got = (one.outputs | one.state)[name]
                assert_close(got, value, got.dtype.name, scale=LARGEST_VALUE)
