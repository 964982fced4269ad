"""A draft does not depend on the device: targets with equal fusion share it, and its schedules have equal results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.compiler.native import run_plan
from tests.compiler.ownership import accessed
from tests.compiler.step_graphs import attention_step, convolution_step, example, mlp_step
from tests.compiler.targets import HERE, make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.kernel_schedule import CpuSchedule
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.backends.cpu.target import TARGETS
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.plan.check.soundness import check_file
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.lower.draft import make_draft
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit
from wholestep.compiler.plan.memory.sequential_schedule import schedule
from wholestep.compiler.plan.model.kernel import Draft, Kind, Layout, Plan, Schedule, Space
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.errors import PlanError

STEPS = {"mlp": lambda: mlp_step(20, 16, 3), "images": convolution_step, "attention": attention_step}


@pytest.fixture(scope="module", params=STEPS)
def graph(request: pytest.FixtureRequest) -> IRGraph:
    made: IRGraph = STEPS[request.param]()
    return made


def draft_of(graph: IRGraph) -> Draft:
    return make_draft(PlanRequest(graph, {"batch": 8}, HERE))


def test_a_draft_has_no_layouts_offsets_or_schedules(graph: IRGraph) -> None:
    draft = draft_of(graph)
    assert all(b.layout == Layout.ROWS and b.offset == 0 for b in draft.buffers)
    assert all(type(k.schedule) is Schedule for k in draft.kernels)
    assert not isinstance(draft, Plan)


def test_a_draft_depends_on_no_more_of_a_target_than_its_name_and_fusion(graph: IRGraph) -> None:
    drafts = {replace(make_draft(PlanRequest(graph, {"batch": 8}, t)), target="") for t in TARGETS.values()}
    assert len(drafts) == 1
    alone = replace(HERE.fusion, dot_epilogues=False, sums_in_dots=False, pools_in_convolutions=False)
    apart = make_draft(PlanRequest(graph, {"batch": 8}, replace(HERE, fusion=alone)))
    products = [k.body for k in apart.kernels if k.kind is Kind.DOT]
    assert all(len(dot.levels) == 1 and dot.is_direct for dot in products)
    assert all(k.body.pooled is None for k in apart.kernels if k.kind is Kind.WINDOW)
    assert len(apart.kernels) > len(draft_of(graph).kernels)


def test_a_plan_in_order_is_sound_and_survives_a_file(graph: IRGraph) -> None:
    plan = replace(schedule(draft_of(graph)), target="elsewhere")
    check_file(plan)
    assert load(dump(plan)) == plan
    alive = [b for b in plan.buffers if b.space is Space.ARENA]
    for a in alive:
        for b in (b for b in alive if b.id > a.id and a.first <= b.last and b.first <= a.last):
            assert a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset, (a, b)
    assert plan.arena_bytes < sum(b.bytes for b in alive), "buffers share bytes"


def test_the_cpu_schedules_every_kernel_of_the_draft(graph: IRGraph) -> None:
    plan = make_plan(graph, {"batch": 8})
    assert all(type(k.schedule) is CpuSchedule for k in plan.kernels)
    assert any(b.layout == PANELS for b in plan.buffers)
    assert sorted(k.origin for k in plan.kernels) == sorted(k.origin for k in draft_of(graph).kernels)


def test_a_plan_for_the_cpu_without_its_schedules_is_refused(graph: IRGraph) -> None:
    with pytest.raises(PlanError, match=r"kernel 0 has a schedule for cpu/"):
        load(dump(schedule(draft_of(graph))))


def test_kernels_that_fuse_less_compute_the_same() -> None:
    graph, rng = mlp_step(20, 16, 3), np.random.default_rng(1)
    state = {n: rng.uniform(0.1, 1.0, node.type.shape).astype(np.float32) for n, node in graph.states().items()}
    apart = replace(HERE, fusion=replace(HERE.fusion, dot_epilogues=False, sums_in_dots=False, most_buffers=3))
    plans = [make_plan(graph, {"batch": 8}, target=t) for t in (HERE, apart)]
    assert len(plans[1].kernels) > len(plans[0].kernels)
    together, alone = (run_plan(p, example(7, 20, 3), state, {"batch": 7}) for p in plans)
    for name, value in (together.outputs | together.state).items():
        assert_close((alone.outputs | alone.state)[name], value)


def test_bodies_know_every_place_that_they_touch(graph: IRGraph) -> None:
    """Against the list that the checker of owners makes by itself."""
    for k in make_plan(graph, {"batch": 8}).kernels:
        assert sorted(map(repr, accessed(k))) == sorted(map(repr, [x for x, _ in k.body.reads()] + [*k.body.stores()]))


def test_first_fit_gives_bytes_back() -> None:
    spans = [Lifetime(0, 1, 64), Lifetime(1, 2, 64), Lifetime(2, 3, 64), Lifetime(0, 3, 32)]
    starts, total = first_fit(spans)
    assert (starts, total) == ([0, 64, 0, 128], 160)
