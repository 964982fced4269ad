"""Launches: candidate plans compared by arena bytes, the numbering of kernels by launch, and the checks of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from wholestep.compiler.backends.gpu.arena import exceeds_scratch, place
from wholestep.compiler.backends.gpu.fusion import row_fusion
from wholestep.compiler.backends.gpu.fusion.horizontal import (
    Launch,
    Part,
    defer_updates,
    launches_of,
    may_share,
    reads_and_writes,
)
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.plan.memory import sequential_schedule
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan, Space
from wholestep.errors import PlanError


def choose_launches(draft: Draft, frugal: bool) -> Plan:
    """Assigns launches and arena offsets to kernels that have grids.

    Consecutive launches are separated by an implicit barrier.  Up to three candidates are compared: one launch per
    kernel (`plain`), horizontally fused launches, and fused launches with several groups of updates.
    """
    kernels, memory, fusion = draft.kernels, costs_of(draft).memory, costs_of(draft).fusion
    plain = place_launches(draft, [[[k]] for k in kernels])
    large = frugal or plain.arena_bytes > memory.large_arena or exceeds_scratch(draft)
    launches = defer_updates(draft, kernels) if large else launches_of(draft, kernels)
    plan = place_launches(draft, launches) if len(launches) < len(kernels) else plain
    if large and plan is not plain:
        grouped = place_launches(draft, defer_updates(draft, kernels, memory.update_groups))
        plan = grouped if grouped.arena_bytes <= memory.update_gain * plan.arena_bytes else plan
    # All gradients may stay alive until a single launch of all updates: a third of the state bytes (weights, moments).
    gradients = sum(b.bytes for b in plan.buffers if b.space is Space.STATE) // 3 if large else 0
    limit = (1 + fusion.arena_share) * plain.arena_bytes + fusion.arena_bytes + gradients
    scarce_limit = (1 + memory.scarce_growth) * plain.arena_bytes
    return plan if plan.arena_bytes <= (scarce_limit if frugal else limit) else plain


def place_launches(draft: Draft, launches: Sequence[Launch]) -> Plan:
    """Places kernels in launch order; buffers used within one launch never share bytes."""
    kernels = renumber_by_launch(draft, launches)
    plan = sequential_schedule.schedule(replace(draft, kernels=kernels), launch_spans(kernels), place=False)
    arena = place(plan.buffers, plan.kernels)
    placed = tuple(
        replace(k, schedule=replace(schedule_of(k), workspace_at=arena.workspaces.get(k.id, 0))) for k in plan.kernels
    )
    return replace(plan, kernels=placed, buffers=arena.buffers, arena_bytes=arena.bytes, regions=max(1, len(launches)))


def renumber_by_launch(draft: Draft, launches: Sequence[Launch]) -> tuple[Kernel, ...]:
    """Numbers kernels in launch order and stores their launches; in a chain also the position and one block per row."""
    kernels: list[Kernel] = []
    for number, launch in enumerate(launches):
        for part in launch:
            for position, k in enumerate(part, start=1):
                schedule = replace(schedule_of(k), launch=number, chained=0)
                if len(part) > 1:
                    schedule = row_fusion.with_row_grid(draft, k, schedule, position)
                kernels.append(replace(k, id=len(kernels), schedule=schedule))
    return tuple(kernels)


def parts_of(launch: Sequence[Kernel]) -> list[list[Kernel]]:
    """The kernels of a launch, grouped into chains."""
    parts: list[list[Kernel]] = []
    for k in launch:
        if schedule_of(k).chained > 1:
            parts[-1].append(k)
        else:
            parts.append([k])
    return parts


def by_launch(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, ...]]:
    """Groups the kernels of a plan by launch."""
    for _, inside in groupby(kernels, key=lambda k: schedule_of(k).launch):
        yield tuple(inside)


def launch_spans(kernels: Sequence[Kernel]) -> dict[int, tuple[int, int]]:
    """Kernel -> first and last kernel of its launch: its buffers are live during all of them."""
    return {k.id: (launch[0].id, launch[-1].id) for launch in by_launch(kernels) for k in launch}


def notes_of(plan: Plan) -> tuple[str, ...]:
    """Report note: the number of launches, and why there are fewer than kernels."""
    launches = [parts_of(launch) for launch in by_launch(plan.kernels) if not schedule_of(launch[0]).owns]
    concurrent = sum(len(part) for parts in launches if len(parts) > 1 for part in parts)
    chained = sum(schedule_of(k).chained > 0 for k in plan.kernels)
    if not concurrent and not chained:
        return ()
    why = [f"{concurrent} are independent and share a launch"] if concurrent else []
    why += [f"{chained} run one after the other in the same blocks, one row per block"] if chained else []
    return (f"{len(plan.kernels)} kernels in {plan.regions} launches: {', '.join(why)}",)


def check_launches(plan: Plan) -> None:
    """PlanError if kernels share a launch although one depends on the other."""
    ranges = {b.id: (b.offset, b.offset + b.bytes) for b in plan.buffers if b.space is Space.ARENA}
    work = frozenset(b.id for b in plan.buffers if b.space is Space.WORK)

    def overlap(a: int, b: int) -> bool:
        if a in ranges and b in ranges:
            return ranges[a][0] < ranges[b][1] and ranges[b][0] < ranges[a][1]
        return a == b

    numbers = [schedule_of(k).launch for k in plan.kernels]
    if numbers != sorted(numbers) or len(set(numbers)) != len(list(by_launch(plan.kernels))):
        raise PlanError("the plan is not sound: its launches are out of order.")
    for launch in by_launch(plan.kernels):
        if any(schedule_of(k).owns for k in launch):
            check_persistent_loop(plan, launch)
            continue
        sound = len({(k.loop, schedule_of(k).threads) for k in launch}) == 1
        sound &= len(launch) == 1 or all(may_share(plan, k) for k in launch)
        sound &= all(is_chain(plan, part) for part in parts_of(launch))
        # Parts of a launch run concurrently, so no two of them may conflict: write after read, write after write, or
        # read after write, of equal buffers or of arena ranges that overlap.  Kernels of one part are ordered by a
        # block barrier: they may share a buffer, but not two buffers with common bytes.
        used = [(number, k) for number, part in enumerate(parts_of(launch)) for k in part]
        for i, (part, k) in enumerate(used):
            reads, writes = (buffers - work for buffers in reads_and_writes(k))
            for other, o in used[:i]:
                others, written = (buffers - work for buffers in reads_and_writes(o))
                same = part == other  # a chain passes values on within a buffer, but must not reuse its bytes
                sound &= not any(overlap(a, b) for a in writes for b in others | written if not (same and a == b))
                sound &= not any(overlap(a, b) for a in reads for b in written if not (same and a == b))
        if not sound:
            raise PlanError(f"the plan is not sound: kernels {[k.id for k in launch]} cannot share a launch.")


def check_persistent_loop(plan: Plan, launch: Sequence[Kernel]) -> None:
    """PlanError unless a launch is one complete loop whose blocks have the shares that the scheduler would choose."""
    loop_kernels = launch[0].loop is not None and [k.id for k in plan.kernels if k.loop == launch[0].loop]
    expected = loop_kernels == [k.id for k in launch] and scan.find_persistent_scan(plan, launch)
    if not isinstance(expected, scan.PersistentScan) or any(schedule_of(k).owns != expected.owns for k in launch):
        raise PlanError(
            f"the plan is not sound: kernels {[k.id for k in launch]} "
            "are not a loop that runs as one persistent kernel."
        )


def is_chain(plan: Plan, part: Part) -> bool:
    """Is a part a single kernel, or a sound chain whose rows depend on the same rows only?"""
    positions = [schedule_of(k).chained for k in part]
    if len(part) == 1:
        return positions == [0]
    all_by_rows = all(row_fusion.can_be_rows(plan, k) for k in part)
    return all_by_rows and positions == list(range(1, 1 + len(part))) and row_fusion.is_sound(plan, part)
