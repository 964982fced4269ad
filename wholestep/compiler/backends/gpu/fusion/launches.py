"""Which kernels share a launch, and the arena offsets that follow: candidate plans are compared by arena bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.backends.gpu.arena import exceeds_scratch, place
from wholestep.compiler.backends.gpu.fusion import horizontal
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.memory import sequential_schedule
from wholestep.compiler.plan.model.kernel import Draft, Plan, Space


def choose_launches(draft: Draft, frugal: bool) -> Plan:
    """Assigns launches and arena offsets to kernels that have grids.

    Consecutive launches are separated by an implicit barrier.  Up to three candidates are compared: one launch per
    kernel (`plain`), horizontally fused launches, and fused launches with several groups of updates.
    """
    kernels, memory, fusion = draft.kernels, costs_of(draft).memory, costs_of(draft).fusion
    plain = place_launches(draft, [[[k]] for k in kernels])
    large = frugal or plain.arena_bytes > memory.large_arena or exceeds_scratch(draft)
    launches = horizontal.defer_updates(draft, kernels) if large else horizontal.launches_of(draft, kernels)
    plan = place_launches(draft, launches) if len(launches) < len(kernels) else plain
    if large and plan is not plain:
        grouped = place_launches(draft, horizontal.defer_updates(draft, kernels, memory.update_groups))
        plan = grouped if grouped.arena_bytes <= memory.update_gain * plan.arena_bytes else plan
    # All gradients may stay alive until a single launch of all updates: a third of the state bytes (weights, moments).
    gradients = sum(b.bytes for b in plan.buffers if b.space is Space.STATE) // 3 if large else 0
    limit = (1 + fusion.arena_share) * plain.arena_bytes + fusion.arena_bytes + gradients
    scarce_limit = (1 + memory.scarce_growth) * plain.arena_bytes
    return plan if plan.arena_bytes <= (scarce_limit if frugal else limit) else plain


def place_launches(draft: Draft, launches: Sequence[horizontal.Launch]) -> Plan:
    """Places kernels in launch order; buffers used within one launch never share bytes."""
    kernels = horizontal.renumber_by_launch(draft, launches)
    plan = sequential_schedule.schedule(replace(draft, kernels=kernels), horizontal.together(kernels), place=False)
    arena = place(plan.buffers, plan.kernels)
    placed = tuple(
        replace(k, schedule=replace(schedule_of(k), workspace_at=arena.workspaces.get(k.id, 0))) for k in plan.kernels
    )
    return replace(plan, kernels=placed, buffers=arena.buffers, arena_bytes=arena.bytes, regions=max(1, len(launches)))
