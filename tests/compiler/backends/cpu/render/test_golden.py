"""The C of a small fixed step, for people to read in reviews, and the integers of the benchmark's plans.

After an intended change run this file with `--update-golden`, then read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.native import Loaded
from tests.compiler.step_graphs import example, mlp_step
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.plan.model.kernel import Plan

GOLDEN = Path(__file__).parents[4] / "golden"
SOURCE, COUNTS = GOLDEN / "mlp_adam.c", GOLDEN / "mlp_plan.json"
ROWS, INPUTS, CLASSES = 8, 20, 3
CASES = {
    f"{name} {batch}": (optimizer, batch)
    for name, optimizer in (("sgd", ws.SGD(lr=0.01)), ("adam", ws.Adam(lr=1e-3)))
    for batch in (32, 128)
}


@pytest.fixture
def updating(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


def small_plan() -> Plan:
    return make_plan(mlp_step(INPUTS, 16, CLASSES), {"batch": ROWS})


def test_the_source_is_the_golden_one(updating: bool) -> None:
    source = render(small_plan())
    if updating:
        SOURCE.write_text(source)
    assert SOURCE.read_text() == source, "the generated C has changed: --update-golden, and read the diff"


@pytest.mark.parametrize("rows", [ROWS, 5])
def test_the_golden_source_compiles_and_runs(rows: int) -> None:
    graph = mlp_step(INPUTS, 16, CLASSES)
    rng, inputs = np.random.default_rng(1), example(rows, INPUTS, CLASSES)
    shapes = {name: node.type.shape for name, node in graph.states().items()}
    state = {name: rng.uniform(0.1, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}
    ran = Loaded(small_plan(), SOURCE.read_text()).run(inputs, state, {"batch": rows}, threads=2)
    expected = interpret(graph, inputs=inputs, state=state, sizes={"batch": rows})
    for name, value in (expected.outputs | expected.state).items():
        assert_close((ran.outputs | ran.state)[name], value)


def counts(plan: Plan) -> dict[str, int]:
    names = ("arena_bytes", "copy_bytes", "work_bytes", "regions", "bytes_moved", "flops")
    return {**{n: getattr(plan, n) for n in names}, "kernels": len(plan.kernels)}


def test_the_benchmark_needs_no_more_than_it_did(updating: bool) -> None:
    plans = {c: counts(make_plan(mlp_step(784, 128, 10, optimizer=o), {"batch": n})) for c, (o, n) in CASES.items()}
    if updating:
        COUNTS.write_text(json.dumps(plans, indent=2) + "\n")
    golden = json.loads(COUNTS.read_text())
    assert golden.keys() == plans.keys()
    grown = {(c, n): v for c, found in plans.items() for n, v in found.items() if v > golden[c][n]}
    assert grown == {}, "more than the golden file allows; if that is intended: --update-golden"
