"""Gradients of gathers: tables for few rows, sorted indices for many, whatever the lengths of the rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from tests.compiler.backends.cuda.kernels.test_machine_code import compiled
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.options import CompileOptions
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]


def gathered(rows: int, width: int, positions: int) -> IRGraph:
    g = ws.Graph()
    at, y = g.input("at", ("batch", positions), dtype="int32"), g.input("y", ("batch", positions, width))
    g.set_outputs({"loss": (ws.take(g.parameter("table", (rows, width)), at) * y).sum()})
    return train_graph(g, ws.SGD(lr=0.1))


def gathered_along_columns(rows: int, width: int, positions: int) -> IRGraph:
    """Each sample has its own table, which the same indices select from: the rows of the target are not static."""
    g = ws.Graph()
    at, y = g.input("at", (positions,), dtype="int32"), g.input("y", ("batch", positions, width))
    x = g.input("x", ("batch", rows, width)) * g.parameter("scale", (rows, width))
    g.set_outputs({"loss": (ws.take(x, at, axis=1) * y).sum()})
    return train_graph(g, ws.SGD(lr=0.1))


def planned(graph: IRGraph, capacity: int) -> Plan:
    return Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": capacity}, TARGET)[0]


def forms(plan: Plan) -> list[str]:
    return [k.schedule.form for k in plan.kernels if k.kind.value == "scatter"]  # type: ignore[attr-defined]


def check(graph: IRGraph, inputs: dict[str, Array], capacities: tuple[int, ...], form: str) -> None:
    """The values are the interpreter's; the bits do not depend on the order of threads, nor on the capacity."""
    plans = [planned(graph, capacity) for capacity in capacities]
    assert [forms(plan) for plan in plans] == [[form]] * len(plans)
    state = {name: first_values(plans[0], seed=0)(name) for name, _ in plans[0].states}
    meant, sizes = strip_stop_gradients(expand_gradients(inline_calls(graph))), {"batch": len(inputs["y"])}
    want = interpret(meant, inputs=inputs, state=state, sizes=sizes, step=STEP)
    results = [run(e, inputs, state, sizes, 0, orders) for e in together(plans) for orders in ORDERS[:2]]
    for name, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(results[0][name], value, rtol=1e-4, atol=1e-4)
        for other in results[1:]:
            np.testing.assert_array_equal(results[0][name], other[name])


def example(rows: int, width: int, batch: int, positions: int, skewed: bool = False) -> dict[str, Array]:
    """Uniform indices; or skewed, half of all being the same."""
    rng = np.random.default_rng(rows)
    at = rng.integers(0, rows, (batch, positions))
    if skewed:
        at[rng.random(at.shape) < 0.5] = rows // 2
    y = rng.standard_normal((batch, positions, width), np.float32)
    return {"at": at.astype(np.int32), "y": y}


@pytest.mark.parametrize(("rows", "width"), [(2, 48), (5, 7), (3, 1), (40, 260)])
def test_few_rows_are_tables_of_partial_sums(rows: int, width: int) -> None:
    check(gathered(rows, width, 9), example(rows, width, 60, 9), (60, 95), "scatter table")


@pytest.mark.parametrize(
    ("rows", "width", "most_ranked"), [(37, 1200, 1 << 13), (300, 42, 1 << 13), (70000, 1, 1), (90, 24, 1)]
)
def test_many_rows_are_segments_of_sorted_indices(
    rows: int, width: int, most_ranked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also rows that nothing is added to; indices that one block ranks, and others of several blocks and digits."""
    set_costs(monkeypatch, "scatter", sorted_work=1, scanned_work=1, shared_bytes=1, most_ranked=most_ranked)
    batch = 25 if most_ranked > 1 else 270
    check(gathered(rows, width, 9), example(rows, width, batch, 9, skewed=True), (batch, batch + 40), "scatter sorted")


def test_rows_of_every_sample_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    set_costs(monkeypatch, "scatter", scanned_work=1)
    inputs = example(11, 24, 3, 70)
    inputs |= {"at": inputs["at"][0], "x": np.random.default_rng(1).standard_normal((3, 11, 24), np.float32)}
    check(gathered_along_columns(11, 24, 70), inputs, (3, 5), "scatter sorted")


@pytest.mark.parametrize(
    ("rows", "width", "form"),
    [
        (2, 768, "scatter table"),
        (1000, 768, "scatter sorted"),
        (50257, 768, "scatter sorted"),
        (32000, 4096, "scatter sorted"),
    ],
)
def test_forms_of_4096_tokens(rows: int, width: int, form: str) -> None:
    """Token types, small and large vocabularies; rows wider than shared memory are no loop over all indices."""
    plan = planned(gathered(rows, width, 512), 8)
    assert forms(plan) == [form]
    assert forms(planned(gathered(100, 64, 128), 8)) == ["scatter rows"], "few indices share a launch"


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_scatters_compile_without_spills(architecture: str) -> None:
    for rows, width in ((2, 768), (40, 3), (50257, 768)):
        plan = planned(gathered(rows, width, 512), 128)
        scatters = [used for used in compiled(plan, architecture) if used.stores or used.loads]
        assert not scatters, scatters
