"""GPT-2 written from primitives becomes the program that is written with names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from tests.models.gpt2 import NAMED, PRIMITIVE, Config, Words, gpt2
from tests.support.recording import initial_state
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.io.traffic import bytes_moved, flops
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.steps.train import train_graph

TINY = Config(layers=2, width=8, heads=2, vocabulary=11, context=5)
CAPACITY = {"batch": 4}


def step(words: Words, optimizer: object = None) -> IRGraph:
    return train_graph(gpt2(TINY, words), optimizer or ws.AdamW())


def stages(words: Words, until: str, egraph: bool = True) -> Counter[str]:
    compiler = Compiler(ws.CompileOptions(egraph=egraph))
    return Counter(n.op for n in compiler.run_stages(step(words), HERE, until=until).nodes)


def integers(plan: Plan) -> tuple[int, int, int]:
    work = sum(flops(k, CAPACITY) for k in plan.kernels)
    return len(plan.kernels), work, sum(bytes_moved(k, plan.buffers, CAPACITY) for k in plan.kernels)


@pytest.mark.parametrize("stage", ["optimize_forward", "autodiff", "optimize_full", "lower"])
def test_both_are_the_same_ops_after_every_stage(stage: str) -> None:
    assert stages(PRIMITIVE, stage) == stages(NAMED, stage)


def test_every_name_is_found() -> None:
    found = stages(PRIMITIVE, "optimize_forward")
    assert (found["layer_norm"], found["attention"], found["gelu"], found["cross_entropy"]) == (5, 2, 2, 1)
    assert found["softmax"] == found["exp"] == found["max"] == 0
    compiler = Compiler(ws.CompileOptions(egraph=True))
    compiler.run_stages(step(PRIMITIVE), HERE, until="optimize_forward")
    counts = compiler.egraph_reports[0].applied
    names = ("layer_norm", "attention", "gelu", "cross_entropy")
    assert [counts[f"name-{n}"] for n in names] == [found[n] for n in names]


def test_both_have_the_same_plan_integers() -> None:
    def plan(words: Words, egraph: bool) -> tuple[int, int, int]:
        return integers(Compiler(ws.CompileOptions(egraph=egraph)).plan(step(words), CAPACITY, HERE)[0])

    named, primitive = plan(NAMED, True), plan(PRIMITIVE, True)
    assert primitive == named
    assert all(a <= b for a, b in zip(named, plan(NAMED, False), strict=True))
    assert all(a < b for a, b in zip(primitive, plan(PRIMITIVE, False), strict=True))


@pytest.mark.parametrize("words", [NAMED, PRIMITIVE], ids=["named", "primitive"])
def test_updates_are_those_of_the_plain_program(words: Words) -> None:
    graph = step(words, ws.SGD(lr=1e3))
    rng = np.random.default_rng(0)
    batch = {n: rng.integers(0, 11, (3, 5)).astype(np.int32) for n in ("tokens", "labels")}
    state = {n: v + 0.1 * rng.normal(size=v.shape) for n, v in initial_state(graph).items()}
    plain, rewritten = (
        interpret(Compiler(ws.CompileOptions(egraph=on)).run_stages(graph, HERE), inputs=batch, state=state)
        for on in (False, True)
    )
    for name, value in plain.state.items():
        change, ours = value - state[name], rewritten.state[name] - state[name]
        assert np.isfinite(change).all()
        # A gradient that is zero in exact arithmetic (the keys' bias) is rounding in both.
        np.testing.assert_allclose(ours, change, rtol=1e-5, atol=1e-5 * max(np.abs(change).max(), 1e-3), err_msg=name)
