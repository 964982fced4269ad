"""Loops in a plan: ownership of elements, barriers between threads, lifetimes of buffers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import wholestep as ws
from tests.compiler.ownership import violations
from tests.compiler.races import NoThreadSanitizerError, build, driver, need_thread_sanitizer, races, without_barriers
from tests.compiler.targets import HERE
from wholestep.compiler.backends.cpu.kernel_schedule import blocks_of, in_region, schedule_of
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.errors import PlanError

CAPACITY = {"time": 5, "batch": 40}


def plan_of(
    kind: str = "LSTM", capacity: dict[str, int] = CAPACITY, units: int = 20, layers: int = 2, fuse: bool = True
) -> Plan:
    model = getattr(ws.nn, kind)(5, units, num_layers=layers)
    g = ws.Graph()
    out, _ = model(g.input("x", ("time", "batch", 5)))
    loss = (out * out).mean()
    grads = ws.gradients(loss, model)
    g.set_outputs({"loss": loss, **{f"{name}.grad": d for name, d in grads.items()}})
    return Compiler(ws.CompileOptions(fuse=fuse)).plan(g.to_ir(), capacity, HERE)[0]


@pytest.fixture(scope="module")
def few_rows() -> Plan:
    """One row and many units: threads share out units, and meet in every step."""
    return plan_of(capacity={"time": 3, "batch": 1}, units=160, layers=1)


@pytest.mark.parametrize(("kind", "fuse"), [("LSTM", True), ("GRU", True), ("RNN", False)])
def test_no_thread_touches_what_another_writes(kind: str, fuse: bool) -> None:
    plan = plan_of(kind, fuse=fuse)
    assert len(plan.loops) == 4
    for sizes in ({"time": 3, "batch": 40}, {"time": 1, "batch": 13}):
        assert violations(plan, sizes, 3) == []


def test_units_are_shared_out_where_there_are_few_rows(few_rows: Plan) -> None:
    assert any(loop.barrier for loop in few_rows.loops)
    assert violations(few_rows, {"time": 3, "batch": 1}, 3) == []


@pytest.mark.parametrize(("units", "columns"), [(128, 256), (120, 64)])
def test_what_is_copied_before_it_is_multiplied_is_copied_for_more_columns(units: int, columns: int) -> None:
    """The gates' gradients of all steps, 4 x 128 floats apart, are read down their columns."""
    plan = plan_of(units=units, layers=1)
    products = [k for k in plan.kernels if isinstance(k.body, Dot)]
    blocks = {blocks_of(k).columns for k in products if k.body.a.index[-1].plain == k.body.m}
    assert blocks == {columns}


def test_the_checker_finds_a_missing_barrier(few_rows: Plan) -> None:
    """All steps of each loop as one stretch, without the barriers inside."""
    regions = {k.loop: schedule_of(k).region for k in reversed(few_rows.kernels)}
    kernels = tuple(k if k.loop is None else in_region(k, regions[k.loop]) for k in few_rows.kernels)
    loops = tuple(replace(loop, barrier=False) for loop in few_rows.loops)
    assert violations(replace(few_rows, kernels=kernels, loops=loops), {"time": 3, "batch": 1}, 3)


def test_what_a_loop_keeps_lives_as_long_as_the_loop() -> None:
    plan = plan_of()
    for loop in plan.loops:
        inside = [k.id for k in plan.kernels if k.loop == loop.id]
        stacks = {
            s.load.buffer
            for k in plan.kernels
            if k.loop == loop.id
            for level in k.levels
            for s in level.stores
            if len(s.load.index) == 3
        }
        assert stacks
        for b in (plan.buffers[i] for i in stacks):
            assert b.space is not Space.ARENA or (b.first <= inside[0] and b.last >= inside[-1])


def test_a_plan_with_loops_survives_a_file() -> None:
    plan = plan_of()
    assert load(dump(plan)) == plan


def test_check_refuses_what_cannot_run() -> None:
    plan = plan_of()
    at = next(k.id for k in plan.kernels if k.loop is not None)

    def changed(**changes: object) -> Plan:
        kernels = [replace(k, **changes) if k.id == at else k for k in plan.kernels]  # type: ignore[arg-type]
        return replace(plan, kernels=tuple(kernels))

    with pytest.raises(PlanError, match=r"is in a loop of the plan|are consecutive|a barrier must separate"):
        check(changed(loop=9))
    with pytest.raises(PlanError, match=r"uses only symbols of the plan|a barrier must separate"):
        check(changed(loop=None))
    longer = tuple(replace(loop, length=7) for loop in plan.loops)
    with pytest.raises(PlanError, match="stays inside buffer"):
        check(replace(plan, loops=longer))


def test_work_is_counted_for_every_step() -> None:
    once, five = (plan_of(capacity={"time": t, "batch": 40}) for t in (1, 5))
    inside = [sum(k.flops for k in plan.kernels if k.loop == 0) for plan in (once, five)]
    assert inside[1] == 5 * inside[0]


def test_no_races(few_rows: Plan, tmp_path: Path) -> None:
    try:
        need_thread_sanitizer(tmp_path)
    except NoThreadSanitizerError as reason:
        pytest.skip(f"no ThreadSanitizer: {reason}")
    assert races(build(render(few_rows), main_of(few_rows), tmp_path)) == 0
    assert races(build(without_barriers(render(few_rows)), main_of(few_rows), tmp_path)) > 0


def main_of(plan: Plan) -> str:
    """main() for one row, or as many as there is room for, and all steps."""
    rows, steps = plan.capacity
    return driver(plan, (rows,), 3).replace("long dims[] = {1};", f"long dims[] = {{1, {steps}}};")
