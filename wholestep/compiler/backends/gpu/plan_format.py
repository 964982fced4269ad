"""The part of the plan file format that GPUs add: schedules, and the checks of a loaded plan."""

from __future__ import annotations

from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule, schedule_of
from wholestep.compiler.backends.gpu.program_memory import footprint
from wholestep.compiler.ir.state_partition import StatePartition
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Buffer, Plan
from wholestep.compiler.plan.model.target_formats import Format
from wholestep.errors import PlanError


def _check(plan: Plan) -> None:
    """PlanError unless every grid equals the one that the scheduler chooses: a plan file is not trusted."""
    from wholestep.compiler.backends.gpu.attention import check_call
    from wholestep.compiler.backends.gpu.fusion.horizontal import check_launches
    from wholestep.compiler.backends.gpu.schedule import arena_end, schedule_kernels

    for buffer in plan.buffers:
        if buffer.is_part and buffer.type.shape != _part_of(buffer):
            raise PlanError(
                f"the plan is not sound: buffer {buffer.id} is not partitioned as {plan.target} partitions states."
            )
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            check_call(plan, kernel)
    check_launches(plan)
    end = arena_end(plan)
    for kernel, expected in zip(plan.kernels, schedule_kernels(plan), strict=True):
        if kernel.schedule != expected.schedule:
            raise PlanError(f"the plan is not sound: kernel {kernel.id} does not have the grid of {plan.target}.")
        schedule = schedule_of(kernel)
        if end + schedule.scratch_at + schedule.scratch > plan.arena_bytes:
            raise PlanError(f"the plan is not sound: the scratch memory of kernel {kernel.id} ends after the arena.")


def _part_of(buffer: Buffer) -> tuple[int, ...]:
    """Shape of a rank's part of a state: rows, however it was declared."""
    full_shape = tuple(evaluate(e, {}) for e in buffer.whole)
    return StatePartition(full_shape, False, buffer.parts, buffer.split).shape


FORMAT = Format(GpuSchedule, (GpuSchedule,), {}, _check, footprint=footprint)
