"""Attention is one kernel forward and one backward: without scores in memory, its heads read and written in place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.attention_graphs import Shape, attention
from tests.compiler.ir.random_graphs import example_values
from tests.compiler.native import Loaded, lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from tests.models.gpt2 import NAMED, Config, gpt2
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import queries_of
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Extent, evaluate, float64
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan, Space
from wholestep.steps.train import train_graph

CAPACITY = {"batch": 20, "time": 37}
SIZES = (CAPACITY, {"batch": 5, "time": 1}, {"batch": 1, "time": 16})
GOLDEN = Path(__file__).parents[2] / "golden" / "gpt_plan.json"


def heads(count: int, time: Extent | str, width: int) -> Shape:
    return ("batch", count, time, width)


CASES: Mapping[str, IRGraph] = {
    "causal": attention(*[heads(2, 40, 16)] * 3, causal=True),
    "full": attention(*[heads(2, 33, 24)] * 3),
    "cross": attention(heads(2, 5, 8), heads(2, 50, 8), heads(2, 50, 3)),
    "causal, more keys": attention(heads(1, 20, 8), heads(1, 50, 8), heads(1, 50, 8), causal=True),
    "causal, more queries": attention(heads(1, 70, 8), heads(1, 21, 8), heads(1, 21, 8), causal=True),
    "one query": attention(*[heads(3, 1, 64)] * 3, causal=True),
    "several blocks": attention(*[heads(1, 130, 64)] * 3, causal=True),
    "several full blocks": attention(heads(1, 130, 8), heads(1, 90, 8), heads(1, 90, 8)),
    "grouped": attention(heads(6, 18, 8), heads(2, 18, 8), heads(2, 18, 8), causal=True),
    "grouped, full": attention(heads(4, 70, 8), heads(1, 18, 8), heads(1, 18, 8)),
    "mask": attention(*[heads(2, 19, 16)] * 3, mask=heads(2, 19, 19), causal=True),
    "mask of all": attention(heads(2, 19, 8), heads(2, 33, 8), heads(2, 33, 8), mask=(19, 33)),
    "of any length": attention(*[heads(2, "time", 16)] * 3, causal=True),
    "no leading axes": attention((18, 8), (20, 8), (20, 8)),
    "float64": attention(*[heads(2, 40, 24)] * 3, causal=True, dtype=float64),
    "float64, grouped, mask": attention(
        heads(4, 33, 8), heads(2, 50, 8), heads(2, 50, 16), mask=(33, 50), dtype=float64
    ),
}


def plans(name: str) -> tuple[Plan, Plan]:
    graph = lower(CASES[name])
    return make_plan(graph, CAPACITY), make_plan(graph, CAPACITY, fused=False)


@pytest.fixture(scope="module")
def compiled() -> dict[str, tuple[Loaded, Loaded]]:
    """All plans in one file: a compiler starts once."""
    found = {name: plans(name) for name in CASES}
    prefix = {name: f"a{i}" for i, name in enumerate(CASES)}
    source = "\n".join(
        render(plan, f"{prefix[n]}{suffix}")
        for n, both in found.items()
        for plan, suffix in zip(both, "fp", strict=True)
    )
    return {
        n: (Loaded(fused, source, f"{prefix[n]}f"), Loaded(plain, source, f"{prefix[n]}p"))
        for n, (fused, plain) in found.items()
    }


@pytest.mark.parametrize("name", CASES)
def test_plans_are_sound_and_survive_a_file(name: str) -> None:
    fused, plain = plans(name)
    for plan in (fused, plain):
        check(plan)
        assert load(dump(plan)) == plan
        assert violations(plan, {"batch": 3, "time": 1}, 2) == []
    assert violations(fused, {"batch": 17, "time": 19}, 3) == []


@pytest.mark.parametrize("name", CASES)
def test_values_and_all_gradients(name: str, compiled: Mapping[str, tuple[Loaded, Loaded]]) -> None:
    """Against the interpreter; the same bits for 1, 2 and 3 threads, fused or not, at the capacity or below it."""
    graph, (fused, plain) = CASES[name], compiled[name]
    for sizes in ({s: c[s] for s in graph.symbols} for c in SIZES):
        inputs, _ = example_values(graph, sizes, np.random.default_rng(3))
        expected = interpret(graph, inputs=inputs, sizes=sizes).outputs
        got = fused.run(inputs, {}, sizes, threads=1).outputs
        for key, value in expected.items():
            assert_close(got[key], value, got[key].dtype.name)
        for loaded, threads in ((fused, 2), (fused, 3), (plain, 2)):
            other = loaded.run(inputs, {}, sizes, threads=threads).outputs
            assert {n: v.tobytes() for n, v in got.items()} == {n: v.tobytes() for n, v in other.items()}


def test_a_row_of_a_batch_does_not_depend_on_the_others(compiled: Mapping[str, tuple[Loaded, Loaded]]) -> None:
    graph, (loaded, _) = CASES["grouped"], compiled["grouped"]
    inputs, _ = example_values(graph, CAPACITY, np.random.default_rng(3))
    whole = loaded.run(inputs, {}, {"batch": 20}, threads=2).outputs
    part = loaded.run({n: v[7:10] for n, v in inputs.items()}, {}, {"batch": 3}, threads=2).outputs
    for name, value in part.items():
        assert value.tobytes() == whole[name][7:10].tobytes()


# -- what is in memory ---------------------------------------------------------------------------------------------


def gpt_plan(layers: int, width: int = 64, context: int = 96, batch: int = 16, relief: int = Settings.relief) -> Plan:
    graph = gpt2(Config(layers, width, 4, 65, context), NAMED)
    return make_plan(lower(train_graph(graph, ws.AdamW())), {"batch": batch}, settings=Settings(relief=relief))


def calls(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.CALL]


def test_a_layer_has_one_kernel_forward_and_one_backward_and_no_scores() -> None:
    plan = gpt_plan(layers=2)
    assert [k.body.routine for k in calls(plan)] == ["attention"] * 2 + ["attention_grad"] * 2
    scores = 16 * 4 * 96 * 96
    for buffer in plan.buffers:
        assert 96 * 96 not in buffer.type.shape
        assert list(buffer.type.shape).count(96) < 2, f"{buffer} has an element per query and key"
        if buffer.space is Space.WORK:
            assert buffer.bytes <= 2 * Settings.scores
        elif buffer.space is Space.ARENA:
            assert evaluate(buffer.type.elements, plan.sizes) < scores


def test_heads_are_read_and_written_in_place() -> None:
    """Queries, keys and values are columns of one product, their gradients columns of one: nothing is copied."""
    plan = gpt_plan(layers=1, relief=1 << 60)  # only necessary barriers, none that free bytes
    forward, backward = (k.body for k in calls(plan))
    assert forward is not None
    assert backward is not None
    read = {o.name: o.load.buffer for o in forward.operands}
    assert read["q"] == read["k"] == read["v"]
    written = {o.name: o.load.buffer for o in backward.results}
    assert written["dq"] == written["dk"] == written["dv"]
    assert plan.buffers[written["dq"]].layout == PANELS  # the weight's gradient reads it by columns
    (out,) = (o.load.buffer for o in forward.results if o.name == "out")
    readers = [k for k in plan.kernels if isinstance(k.body, Dot) and out in (k.body.a.buffer, k.body.b.buffer)]
    assert len(readers) == 2  # the projection, and the gradient of its weight
    assert not [k for k in plan.kernels if set(k.origin) & {"cast", "gradient of slice", "gradient of permute"}]
    assert plan.regions == 2  # no barrier around attention


def test_the_block_of_queries_shrinks_with_the_number_of_keys() -> None:
    short, long = (attention(*[heads(1, t, 16)] * 3) for t in (64, 4096))
    blocks = [queries_of(k).block for g in (short, long) for k in calls(make_plan(lower(g), {"batch": 2}))]
    assert blocks == [64, 64, 16, 16]


def test_flops_count_what_a_causal_query_sees() -> None:
    plan = make_plan(lower(attention(heads(2, 5, 8), heads(2, 3, 8), heads(2, 3, 4), causal=True)), {"batch": 7})
    pairs = 7 * 2 * (1 + 2 + 3 + 3 + 3)
    forward, backward = calls(plan)
    assert forward.flops == pairs * (2 * 8 + 2 * 4 + 5)
    assert backward.flops == pairs * (2 * 8 + 2 * 4 + 7 + 2 * 8 + 2 * 8 + 2 * 4)


def test_gradients_that_nobody_reads_are_not_computed() -> None:
    graph = CASES["full"]
    some = IRGraph(graph.outputs[:3], (), graph.inputs)  # the result, the statistic and the queries' gradient
    _, backward = calls(make_plan(lower(some), CAPACITY))
    assert [o.name for o in backward.body.results] == ["dq"]


def test_a_small_gpt_needs_no_more_than_it_did(request: pytest.FixtureRequest) -> None:
    found = {}
    for layers in (1, 3):
        plan = gpt_plan(layers, context=64)
        names = ("arena_bytes", "work_bytes", "regions", "bytes_moved", "flops")
        found[f"{layers} layers"] = {**{n: getattr(plan, n) for n in names}, "kernels": len(plan.kernels)}
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
    golden = json.loads(GOLDEN.read_text())
    grown = {(c, n): v for c, numbers in found.items() for n, v in numbers.items() if v > golden[c][n]}
    assert grown == {}, "more than the golden file allows; if that is intended: --update-golden"
