"""No thread touches what another one writes, and every read finds what it should: checked byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.compiler.ir.random_graphs import graphs
from tests.compiler.native import lower
from tests.compiler.ownership import is_unsound, owned, violations
from tests.compiler.step_graphs import clipped_step, mlp_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.kernel_schedule import in_region, schedule_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan, Space

THREADS = (1, 2, 3, 7)
CAPACITY = {"batch": 40, "time": 5}
SIZES = st.fixed_dictionaries({"batch": st.sampled_from([1, 5, 17, 33, 40]), "time": st.integers(1, 5)})


def assert_sound(plan: Plan, sizes: dict[str, int], threads: int, graph: IRGraph | None = None) -> None:
    found = violations(plan, {s: sizes[s] for s in plan.symbols}, threads)
    assert found == [], "\n".join([*found, *([print_graph(graph)] if graph else [])])


@pytest.mark.parametrize("fused", [True, False])
@settings(max_examples=60)
@given(data=st.data())
def test_random_graphs(fused: bool, data: st.DataObject) -> None:
    graph = data.draw(graphs(max_nodes=16))
    plan = make_plan(lower(graph, egraph=False), CAPACITY, fused=fused)
    assert_sound(plan, data.draw(SIZES), data.draw(st.sampled_from(THREADS)), graph)


@pytest.mark.long
@settings(max_examples=3000)
@given(graphs(max_nodes=30), SIZES, st.sampled_from(THREADS), st.booleans())
def test_many_random_graphs(graph: IRGraph, sizes: dict[str, int], threads: int, fused: bool) -> None:
    assert_sound(make_plan(lower(graph, egraph=False), CAPACITY, fused=fused), sizes, threads, graph)


STEPS: dict[str, Callable[[], IRGraph]] = {
    "adam": lambda: mlp_step(40, 36, 10),
    "sgd": lambda: mlp_step(40, 36, 10, optimizer=ws.SGD(lr=0.1)),
    "momentum": lambda: mlp_step(20, 48, 3, optimizer=ws.SGD(lr=0.1, momentum=0.9, nesterov=True)),
    "narrow": lambda: mlp_step(5, 7, 2),
    "deep": lambda: mlp_step(33, 40, 32, 17, 5),
    "clipped": lambda: clipped_step(33, 40, 32, 17, 5),
}


@cache
def planned(name: str) -> Plan:
    return make_plan(STEPS[name](), {"batch": 40})


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", STEPS)
def test_training_steps_at_capacity_and_below(name: str, threads: int) -> None:
    plan = planned(name)
    for rows in (40, 13, 1):
        assert_sound(plan, {"batch": rows}, threads)


# -- the checker can fail --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned("clipped")


def with_kernel(plan: Plan, at: int, **changes: object) -> Plan:
    kernels = list(plan.kernels)
    kernels[at] = replace(kernels[at], schedule=replace(kernels[at].schedule, **changes))
    return replace(plan, kernels=tuple(sorted(kernels, key=region)))


def region(kernel: Kernel) -> int:
    return schedule_of(kernel).region


def test_a_dropped_barrier_is_seen(plan: Plan) -> None:
    assert plan.regions >= 3
    for gone in range(1, plan.regions):
        merged = tuple(in_region(k, region(k) - (region(k) >= gone)) for k in plan.kernels)
        found = violations(replace(plan, kernels=merged))
        assert any("written by one thread and touched by another" in v for v in found), f"barrier {gone} was not missed"


def test_a_kernel_one_region_earlier_is_seen(plan: Plan) -> None:
    """Regions are longest paths, so every kernel with a predecessor in the region before needs its barrier."""
    late = [i for i, k in enumerate(plan.kernels) if region(k) > 0]
    missed = [i for i in late if not is_unsound(with_kernel(plan, i, region=region(plan.kernels[i]) - 1))]
    assert missed == []


def test_a_read_before_its_write_is_seen(plan: Plan) -> None:
    """On one thread too, where no barrier matters."""
    first = max(i for i, k in enumerate(plan.kernels) if region(k) == plan.regions - 1)
    found = violations(with_kernel(plan, first, region=0), threads=1)
    assert any("where nobody has written it" in v for v in found)


def test_overlapping_buffers_are_seen(plan: Plan) -> None:
    """Pairs alive together across a barrier; within a region a thread may be done with one before the other."""
    arena = [b for b in plan.buffers if b.space is Space.ARENA]
    pairs = [(a, b) for a in arena for b in arena if a.id < b.id and a.first < b.last and b.first < a.last]
    assert pairs
    for a, b in pairs:
        buffers = tuple(replace(c, offset=a.offset) if c.id == b.id else c for c in plan.buffers)
        assert is_unsound(replace(plan, buffers=buffers)), f"buffers {a.id} and {b.id} share bytes"


def other_splits(plan: Plan) -> list[tuple[int, int | None]]:
    def parts(k: Kernel, axis: int) -> int:
        return -(-evaluate(k.axes[axis], plan.sizes) // 16)

    loops = [(i, k, (*k.rows, *([] if k.vector is None else [k.vector]))) for i, k in enumerate(plan.kernels)]
    splits = {k.id: schedule_of(k).split for k in plan.kernels}
    return [(i, a) for i, k, axes in loops for a in axes if splits[k.id] not in (a, None) and parts(k, a) > 1]


def test_another_split_is_seen(plan: Plan) -> None:
    """A kernel partitioned along another axis than its neighbours without a barrier reads what is not its own."""
    seen = [(i, a) for i, a in other_splits(plan) if is_unsound(with_kernel(plan, i, split=a, granule=16))]
    assert seen, "no kernel of this plan depends on its split"


def test_a_reduction_split_along_its_own_axis_is_seen(plan: Plan) -> None:
    rows = [i for i, k in enumerate(plan.kernels) if k.kind is Kind.NEST and any(level.reduces for level in k.levels)]
    wide = [i for i in rows if evaluate(plan.kernels[i].axes[plan.kernels[i].vector or 0], plan.sizes) > 16]
    assert wide
    for i in wide:
        assert is_unsound(with_kernel(plan, i, split=plan.kernels[i].vector, granule=16), threads=2)


def test_an_unwritten_result_is_seen(plan: Plan) -> None:
    for i, k in enumerate(plan.kernels):
        kernels = (*plan.kernels[:i], *plan.kernels[i + 1 :])
        assert is_unsound(replace(plan, kernels=kernels)), f"nobody missed kernel {k.id}"


def test_an_index_out_of_range_is_seen(plan: Plan) -> None:
    halved = replace(plan.buffers[plan.inputs[0][1]], bytes=64)
    buffers = tuple(halved if b.id == halved.id else b for b in plan.buffers)
    assert any("which has 64 bytes" in v for v in violations(replace(plan, buffers=buffers)))


def test_threads_own_whole_granules_that_cover_the_axis_once() -> None:
    for extent in (0, 1, 7, 8, 9, 40, 100):
        for granule in (1, 8, 16):
            for threads in THREADS:
                parts = [owned(extent, granule, t, threads) for t in range(threads)]
                assert [i for p in parts for i in p] == list(range(extent))
                assert all(p.start % granule == 0 for p in parts if len(p))
