"""What holds of the C of every plan."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.compiler.ir.random_graphs import example_values, graphs
from tests.compiler.native import Loaded, lower
from tests.compiler.step_graphs import mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph

CAPACITY = {"batch": 20, "time": 5}


@settings(max_examples=40)
@given(graphs(max_nodes=12))
def test_no_name_of_the_users_is_in_the_source(graph: IRGraph) -> None:
    """Names and file names of random graphs hold quotes, newlines, backslashes and Greek."""
    source = render(make_plan(lower(graph), CAPACITY))
    assert source.isascii()
    for text in ("layer.0", 'quo"te', "model.py", "odd"):
        assert text not in source


def test_barriers_stand_between_regions_only() -> None:
    plan = make_plan(mlp_step(20, 24, 5), CAPACITY)
    source = render(plan)
    assert source.count("call->api->barrier();") == plan.regions - 1


def test_equal_kernels_are_emitted_once() -> None:
    """Compile time grows with distinct layers, not with depth."""

    def functions(depth: int) -> int:
        plan = make_plan(mlp_step(*[32] * depth, 32, optimizer=ws.SGD(lr=0.1)), CAPACITY)
        return len(re.findall(r"^static void ws_k", render(plan), re.MULTILINE))

    assert functions(12) == functions(6)


@settings(max_examples=3)
@given(st.lists(graphs(max_nodes=14), min_size=8, max_size=8), st.integers(0, 2**31))
def test_fused_and_unfused_plans_give_the_same_bits(many: list[IRGraph], seed: int) -> None:
    plans = [[make_plan(lower(g), CAPACITY, fused=f) for f in (True, False)] for g in many]
    texts = [render(p, f"g{i}_{j}") for i, pair in enumerate(plans) for j, p in enumerate(pair)]
    source, sizes = "\n".join(texts), {"batch": 13, "time": 3}
    for i, (graph, pair) in enumerate(zip(many, plans, strict=True)):
        inputs, state = example_values(graph, sizes, np.random.default_rng(seed))
        fused, plain = (Loaded(p, source, f"g{i}_{j}").run(inputs, state, sizes, threads=2) for j, p in enumerate(pair))
        for name, value in (fused.outputs | fused.state).items():
            assert value.tobytes() == (plain.outputs | plain.state)[name].tobytes(), name
