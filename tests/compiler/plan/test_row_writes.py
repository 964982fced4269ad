"""Rows written into a state: in place where nobody else reads it, at the price of the rows that come."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.compiler.native import Loaded, lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import Dim, DType, Extent, TensorType, float32, float64, int32, int64
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Index, Kernel, Level, Plan, Store
from wholestep.errors import PlanError

Array = np.ndarray[Any, Any]

BATCH, CAPACITY, LENGTH = Dim.symbol("batch"), 40, 53


def leaf(name: str, *shape: Extent, dtype: DType = float32) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(shape, dtype)), name)


def state(name: str, *shape: Extent, dtype: DType = float32) -> Node:
    return Node("state", (), at.StateAttrs(name, TensorType(shape, dtype), at.Initializer("constant", (0.0,))), name)


def step(*outputs: Node, **updates: Node) -> IRGraph:
    named = tuple(Output(f"out{i}", n) for i, n in enumerate(outputs))
    whole = IRGraph(named, tuple(Update(name, n) for name, n in updates.items()))
    return IRGraph(whole.outputs, whole.updates, tuple(n for n in whole.nodes if n.op == "input"))


def append(columns: tuple[int, ...], dtype: DType, length: int = LENGTH) -> IRGraph:
    """What a metric does: rows behind those that are there, and their number."""
    kept, seen = state("kept", length, *columns, dtype=dtype), state("seen", dtype=int64)
    rows = leaf("r", BATCH, *columns, dtype=dtype)
    return step(kept=b.write_rows(kept, b.add(rows, rows), seen), seen=b.add(seen, b.count(BATCH, int64)))


def read_by_others() -> IRGraph:
    kept, seen, rows = state("kept", LENGTH, 3), state("seen", dtype=int64), leaf("r", BATCH, 3)
    return step(b.unary("sin", kept), kept=b.write_rows(kept, rows, seen), seen=seen)


def given_to_the_caller() -> IRGraph:
    kept, seen, rows = state("kept", LENGTH, 3), state("seen", dtype=int64), leaf("r", BATCH, 3)
    written = b.write_rows(kept, rows, seen)
    return step(written, kept=written, seen=seen)


def rows_of_the_state_itself() -> IRGraph:
    kept, seen = state("kept", LENGTH, 3), state("seen", dtype=int64)
    return step(kept=b.write_rows(kept, b.slice_axes(kept, (1, 0), (9, 3)), seen), seen=seen)


def of_another_state() -> IRGraph:
    kept, other, seen = state("kept", LENGTH, 3), state("other", LENGTH, 3), state("seen", dtype=int64)
    written = b.write_rows(other, leaf("r", BATCH, 3), seen)
    return step(b.neg(kept), kept=written, other=other, seen=seen)


def behind_a_constant() -> IRGraph:
    kept, rows = state("kept", LENGTH, 17), leaf("r", BATCH, 17)
    return step(kept=b.write_rows(kept, rows, b.constant(50, int32)))


def behind_something_computed() -> IRGraph:
    kept, seen, rows = state("kept", LENGTH, 2, 5), state("seen", dtype=int64), leaf("r", BATCH, 2, 5)
    total = b.cast(b.sum_axes(b.full(1, TensorType((BATCH,), float32)), [0]), int64)
    return step(kept=b.write_rows(kept, rows, b.sub(seen, total)), seen=seen)


IN_PLACE = {
    "numbers": append((), int32),
    "panels": append((10,), float32),
    "wide panels": append((33,), float64),
    "cubes": append((2, 5), float32),
    "a constant start": behind_a_constant(),
    "a computed start": behind_something_computed(),
}
COPIED = {f.__name__: f() for f in (read_by_others, given_to_the_caller, rows_of_the_state_itself, of_another_state)}
CASES = IN_PLACE | COPIED


def plan_of(graph: IRGraph, capacity: int = CAPACITY, fused: bool = True) -> Plan:
    return make_plan(lower(graph), dict.fromkeys(graph.symbols, capacity), fused=fused)


@cache
def compiled() -> dict[str, Loaded]:
    """All cases in one C file: one run of the compiler."""
    plans = {name: plan_of(graph) for name, graph in CASES.items()}
    source = "\n".join(render(plan, f"case{i}") for i, plan in enumerate(plans.values()))
    return {name: Loaded(plan, source, f"case{i}") for i, (name, plan) in enumerate(plans.items())}


def writer(plan: Plan) -> Kernel:
    (found,) = (k for k in plan.kernels if any("write_rows" in o for o in k.origin))
    return found


def behind_start(plan: Plan) -> list[Store]:
    stores = [s for k in plan.kernels for level in k.levels for s in (*level.row_stores, *level.stores)]
    return [s for s in stores if any(i.is_behind_start for i in s.load.index)]


def numbers(type: TensorType, rows: int, rng: np.random.Generator) -> Array:
    shape = [e if isinstance(e, int) else rows for e in type.shape]
    return (100 * rng.normal(size=shape)).astype(type.dtype.numpy)


# -- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", [-3, 0, 7, 20, 52, 53, 1000])  # the last rows over the end, or all of them
@pytest.mark.parametrize("rows", [1, 9, 40])
@pytest.mark.parametrize("name", CASES)
def test_a_step_computes_what_the_interpreter_does_on_any_number_of_threads(name: str, rows: int, seen: int) -> None:
    graph, rng, sizes = CASES[name], np.random.default_rng(rows), dict.fromkeys(CASES[name].symbols, rows)
    values = {n: numbers(leaf.type, rows, rng) for n, leaf in (graph.leaves("input") | graph.states()).items()}
    inputs = {n: values[n] for n in graph.leaves("input")}
    states = {n: values[n] for n in graph.states()} | ({"seen": np.array(seen)} if "seen" in graph.states() else {})
    expected = interpret(graph, inputs=inputs, state=states, sizes=sizes)
    for threads in (1, 2, 3):
        ran = compiled()[name].run(inputs, states, sizes, threads=threads)
        np.testing.assert_array_equal(ran.state["kept"], expected.state["kept"])
        assert {n: ran.outputs[n].shape for n in ran.outputs} == {n: v.shape for n, v in expected.outputs.items()}


# -- plans ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_sound(name: str, fused: bool) -> None:
    plan = plan_of(CASES[name], fused=fused)
    check(plan)
    for rows in (1, 9, CAPACITY):
        for threads in (1, 2, 3, 7):
            assert violations(plan, dict.fromkeys(plan.symbols, rows), threads) == []


@pytest.mark.parametrize("name", CASES)
def test_it_is_in_place_where_nobody_else_reads_the_state(name: str) -> None:
    assert len(behind_start(plan_of(CASES[name]))) == (name in IN_PLACE)


def test_the_kernel_moves_the_rows_that_come_however_many_the_state_has() -> None:
    short, long = (plan_of(append((10,), float32, length)) for length in (64, 64_000))
    assert writer(short).bytes == writer(long).bytes == 2 * CAPACITY * 10 * 4 + 8  # rows in, rows out, the start
    half = plan_of(append((10,), float32, 64_000), CAPACITY // 2)
    assert writer(half).bytes == CAPACITY * 10 * 4 + 8


def test_threads_share_the_rows() -> None:
    assert schedule_of(writer(plan_of(append((), int32)))).split == 0


def test_the_plan_is_read_from_a_file_as_it_was_written() -> None:
    plan = plan_of(append((10,), float32))
    assert load(dump(plan)) == plan


def with_level(kernel: Kernel, level: Level) -> Kernel:
    return replace(kernel, body=replace(kernel.body, levels=(level,)))


def with_store(plan: Plan, index: Index) -> Plan:
    """The plan with another first index where its rows are stored."""
    kernel = writer(plan)
    (level,) = kernel.levels
    (store,) = level.stores
    wrong = replace(store, load=replace(store.load, index=(index, *store.load.index[1:])))
    broken = with_level(kernel, replace(level, stores=(wrong,)))
    return replace(plan, kernels=tuple(broken if k is kernel else k for k in plan.kernels))


def test_a_start_that_no_value_of_the_kernel_is_is_refused() -> None:
    plan = plan_of(append((10,), float32))
    with pytest.raises(PlanError, match="stores only its own values"):
        check(with_store(plan, Index(((0, 1),), value=99)))


def test_a_read_behind_a_start_is_refused() -> None:
    plan = plan_of(append((10,), float32))
    kernel = writer(plan)
    (level,) = kernel.levels
    first = next(i for i in level.body if i.load is not None)
    assert first.load is not None
    moved = replace(first, load=replace(first.load, index=(Index(((0, 1),), value=first.id), *first.load.index[1:])))
    broken = with_level(kernel, replace(level, body=tuple(moved if i is first else i for i in level.body)))
    with pytest.raises(PlanError, match="clamped"):
        check(replace(plan, kernels=tuple(broken if k is kernel else k for k in plan.kernels)))


def test_rows_that_two_threads_would_write_are_found() -> None:
    """The byte-by-byte checker sees stores behind a start: here all threads write the same column of rows."""
    plan = with_store(
        plan_of(append((40,), float32)), Index(((1, 1),), value=writer_start(plan_of(append((40,), float32))))
    )
    assert violations(plan, {"batch": CAPACITY}, 3)


def writer_start(plan: Plan) -> int:
    (store,) = behind_start(plan)
    start = store.load.index[0].value
    assert start is not None
    return start
