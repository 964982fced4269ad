"""Every op, random graphs and the fuzzer's cases on the reference backend, and plans of the CPU: it runs any plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.compiler.ir.random_graphs import LARGEST_VALUE, example_values, graphs
from tests.compiler.targets import HERE
from tests.fuzz import graphs as fuzzed_graphs
from tests.fuzz import networks
from tests.ops.compiled_ops import group_graph
from tests.ops.table import GROUPS
from tests.support.oracles import assert_close
from wholestep.compiler.backend import LoadContext
from wholestep.compiler.backends.common.numpy_program import LaunchMemory
from wholestep.compiler.backends.reference.program import ReferenceProgram
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import float32, float64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.target import Target
from wholestep.options import CompileOptions
from wholestep.session.building.arguments import SessionArguments
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]

PHASES = (Phase.explicit, Phase.generate)  # a failing graph is printed whole
CAPACITY = {"batch": 40, "time": 5}
SIZES = st.fixed_dictionaries({"batch": st.sampled_from([1, 5, 17, 33]), "time": st.integers(1, 5)})
STEP = 3


class InArena(ReferenceProgram):
    """Intermediates lie where the plan says: over one another, where they are never alive together."""

    def run(self, memory: LaunchMemory) -> None:
        arena = np.full(self.plan.arena_bytes, 255, np.uint8)
        placed = {b.id: arena[b.offset : b.offset + b.bytes].view(b.type.dtype.numpy) for b in self.plan.buffers
                  if b.space is Space.ARENA}  # fmt: skip
        super().run(replace(memory, arrays={**memory.arrays, **placed}))


def run(
    plan: Plan, inputs: Mapping[str, Array], values: Mapping[str, Array], sizes: Mapping[str, int], seed: int
) -> dict[str, Array]:
    """Outputs and states after one launch."""
    state, where = State(), SessionArguments(device="reference", threads=1, seed=seed).placement()
    types = {name: plan.buffers[id].type for name, id in plan.states}
    state.add(types, lambda name: values[name], memory=where.device.memory)
    state.step = STEP
    made = InArena if plan.target == REFERENCE.name else ReferenceProgram  # the CPU's write over what they read
    program = made(plan, LoadContext(where, state, where.device.scratch()))
    for name, _ in plan.inputs:
        program.bind(name, np.ascontiguousarray(inputs[name]))
    ticket = program.launch(sizes)
    return {**{name: ticket.read(name) for name in program.outputs}, **{n: state.get(n) for n in state.names}}


def check(graph: IRGraph, target: Target, sizes: dict[str, int], seed: int, fused: bool) -> None:
    plan, _ = Compiler(CompileOptions(egraph=False, fuse=fused)).plan(graph, CAPACITY, target)
    inputs, values = example_values(graph, sizes, np.random.default_rng(seed))
    want = interpret(graph, inputs=inputs, state=values, sizes=sizes, seed=seed, step=STEP)
    found = run(plan, inputs, values, sizes, seed)
    expected = {**want.outputs, **{name: want.state[name] for name, _ in plan.states}}
    for name, value in expected.items():
        try:
            assert_close(found[name], value, found[name].dtype.name, scale=LARGEST_VALUE)
        except AssertionError as error:
            raise AssertionError(f"{name} of\n{print_graph(graph)}\n{error}") from None


@settings(max_examples=30, phases=PHASES)
@given(graphs(max_nodes=16), SIZES, st.integers(0, 2**31), st.booleans())
def test_graphs_in_float32(graph: IRGraph, sizes: dict[str, int], seed: int, fused: bool) -> None:
    check(graph, REFERENCE, sizes, seed, fused)


@settings(max_examples=15, phases=PHASES)
@given(graphs(max_nodes=16, dtype=float64), SIZES, st.integers(0, 2**31), st.booleans())
def test_graphs_in_float64(graph: IRGraph, sizes: dict[str, int], seed: int, fused: bool) -> None:
    check(graph, REFERENCE, sizes, seed, fused)


@settings(max_examples=15, phases=PHASES)
@given(graphs(max_nodes=16, dtype=float32), SIZES, st.integers(0, 2**31))
def test_plans_of_the_cpu(graph: IRGraph, sizes: dict[str, int], seed: int) -> None:
    """What the CPU computes follows from its plan's data: panels, splits and blocks only say how."""
    check(graph, HERE, sizes, seed, fused=True)


@pytest.mark.parametrize("group", GROUPS)
def test_every_op_and_its_gradient(group: str) -> None:
    g, inputs = group_graph(group, "float64")
    traced = train_graph(g, ws.SGD(lr=0.0))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(traced, {}, REFERENCE)
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    meant = strip_stop_gradients(expand_gradients(inline_calls(traced)))
    found = run(plan, inputs, state, {}, seed=0)
    for name, value in interpret(meant, inputs=inputs, state=state, step=STEP).outputs.items():
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("index", range(8))
def test_networks_of_the_fuzzer(index: int) -> None:
    network = networks.draw(Random(f"reference {index}"), 3)
    try:
        networks.check(replace(network, device="reference"))
    except Exception as error:
        error.add_note(networks.text(network))
        raise


def test_expressions_of_the_fuzzer() -> None:
    sizes = {"batch": 5, "time": 3}
    drawn = {f"g{i}": fuzzed_graphs.draw(Random(f"reference {i}"), sizes, 5) for i in range(12)}
    on_reference = [replace(p, device="reference") for p in drawn.values()]
    assert fuzzed_graphs.failures(on_reference, list(drawn)) == {}
