"""Random graphs through every stage: what the compiled step computes is what the interpreter computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import LARGEST_VALUE, example_values, graphs
from tests.compiler.native import Loaded, fenced, lower
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import TensorType, float32, float64

# An example is a run of the compiler: a failing graph is printed whole instead of being shrunk for minutes.
PHASES = (Phase.explicit, Phase.generate)
CAPACITY = {"batch": 40, "time": 5}


def check(many: list[IRGraph], sizes: dict[str, int], seed: int, fused: bool = True) -> None:
    """All graphs in one C file: one run of the compiler."""
    lowered = [lower(g) for g in many]
    plans = [fenced(make_plan(g, CAPACITY, fused=fused)) for g in lowered]
    source = "\n".join(render(p, f"g{i}") for i, p in enumerate(plans))
    for i, (graph, plan) in enumerate(zip(many, plans, strict=True)):
        rng = np.random.default_rng(seed)
        inputs, state = example_values(graph, sizes, rng)
        expected = interpret(graph, inputs=inputs, state=state, sizes=sizes, seed=seed, step=3)
        loaded = Loaded(plan, source, f"g{i}")
        one, three = (loaded.run(inputs, state, sizes, seed=seed, step=3, threads=t) for t in (1, 3))
        for got, want in ((one.outputs, expected.outputs), (one.state, {n: expected.state[n] for n, _ in plan.states})):
            for name, value in want.items():
                with explained(graph, name):
                    assert_close(got[name], value, got[name].dtype.name, scale=LARGEST_VALUE)
        for name, value in (one.outputs | one.state).items():
            np.testing.assert_array_equal(value, (three.outputs | three.state)[name], err_msg="bits depend on threads")


@contextmanager
def explained(graph: IRGraph, name: str) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{name} of\n{print_graph(graph)}\n{error}") from None


SIZES = st.fixed_dictionaries({"batch": st.sampled_from([1, 5, 17, 33]), "time": st.integers(1, 5)})


@settings(max_examples=6, phases=PHASES)
@given(st.lists(graphs(max_nodes=14), min_size=10, max_size=10), SIZES, st.integers(0, 2**31))
def test_random_graphs_float32(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed)


@settings(max_examples=3, phases=PHASES)
@given(st.lists(graphs(max_nodes=14, dtype=float64), min_size=10, max_size=10), SIZES, st.integers(0, 2**31))
def test_random_graphs_float64(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed)


@settings(max_examples=2, phases=PHASES)
@given(st.lists(graphs(max_nodes=14), min_size=10, max_size=10), SIZES, st.integers(0, 2**31))
def test_random_graphs_unfused(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed, fused=False)


@pytest.mark.parametrize("axis", [0, 1])
def test_argmax_finds_the_first_nan_as_numpy_does(axis: int) -> None:
    x = Node("input", (), at.InputAttrs("x", TensorType((40, 40), float32)))
    plan = make_plan(IRGraph((Output("at", Node("argmax", (x,), at.ArgmaxAttrs(axis))),), inputs=(x,)), {})
    values = np.random.default_rng(0).standard_normal((40, 40), dtype=np.float32)
    values[[3, 20, 21, 39], [5, 33, 33, 0]] = np.nan
    values[7, [2, 30]] = np.inf
    got = Loaded(plan).run({"x": values}, {}, {}).outputs["at"]
    np.testing.assert_array_equal(got, values.argmax(axis))


@pytest.mark.long
@settings(max_examples=100, phases=PHASES)
@given(st.lists(graphs(max_nodes=30), min_size=10, max_size=10), SIZES, st.integers(0, 2**31))
def test_many_random_graphs(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed)
