"""The part of the plan file format that GPUs add: schedules, and the checks of a loaded plan."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule, schedule_of
from wholestep.compiler.backends.gpu.program_memory import footprint
from wholestep.compiler.ir.state_partition import StatePartition
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Plan
from wholestep.compiler.plan.model.target_formats import Format
from wholestep.errors import PlanError


def _check(plan: Plan) -> None:
    """Raises PlanError unless every grid equals the scheduler's choice: a plan file is not trusted."""
    from wholestep.compiler.backends.gpu.arena import arena_end, place_scratch
    from wholestep.compiler.backends.gpu.fusion.launches import check_launches
    from wholestep.compiler.backends.gpu.fusion.row_fusion import with_row_grid
    from wholestep.compiler.backends.gpu.grids.attention_calls import check_call
    from wholestep.compiler.backends.gpu.grids.choose import choose_grid

    for buffer in plan.buffers:
        if buffer.is_part and buffer.type.shape != _part_of(buffer):
            raise PlanError(
                f"the plan is not sound: buffer {buffer.id} is not partitioned as {plan.target} partitions states."
            )
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            check_call(plan, kernel)
    check_launches(plan)

    def expected_schedule(kernel: Kernel) -> GpuSchedule:
        """The grid that the scheduler chooses; launches and offsets of buffers are the plan's, checked elsewhere."""
        stored, chosen = schedule_of(kernel), choose_grid(plan, kernel)
        chosen = replace(chosen, launch=stored.launch, workspace_at=stored.workspace_at, owns=stored.owns)
        return with_row_grid(plan, kernel, chosen, stored.chained) if stored.chained else chosen

    expected_kernels = tuple(replace(k, schedule=expected_schedule(k)) for k in plan.kernels)
    end = arena_end(plan)
    expected_plan = place_scratch(replace(plan, kernels=expected_kernels))
    for kernel, expected in zip(plan.kernels, expected_plan.kernels, strict=True):
        if kernel.schedule != expected.schedule:
            raise PlanError(f"the plan is not sound: kernel {kernel.id} does not have the grid of {plan.target}.")
        schedule = schedule_of(kernel)
        if end + schedule.scratch_at + schedule.scratch > plan.arena_bytes:
            raise PlanError(f"the plan is not sound: the scratch memory of kernel {kernel.id} ends after the arena.")


def _part_of(buffer: Buffer) -> tuple[int, ...]:
    """Shape of a rank's part of a state: some of its rows, even if the state was declared by columns."""
    full_shape = tuple(evaluate(e, {}) for e in buffer.whole)
    return StatePartition(full_shape, False, buffer.parts, buffer.split).shape


FORMAT = Format(GpuSchedule, (GpuSchedule,), {}, _check, footprint=footprint)
