"""Kernel order, arena offsets and scratch memory.  Kernels off the critical path run early, to shorten live ranges.

A weight gradient is ready early and read by its update only.  If updates ran after the whole backward pass, all
activations and their gradients would stay alive until then.  Offsets are assigned by liveness: in-place reuse of
operands that are read for the last time, then first-fit in order of decreasing size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.backends.gpu.grids.gemm_library import workspace_of
from wholestep.compiler.backends.gpu.kernel_schedule import COUNTERS, schedule_of
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit, may_alias
from wholestep.compiler.plan.model.bodies import Call, Dot, Nest, Window
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Plan, Space
from wholestep.compiler.plan.model.layout import align_up


def hoist_off_critical_path(draft: Draft) -> Draft:
    """Moves kernels that no product depends on directly after their operands."""
    if draft.loops:
        return draft
    reads = [{load.buffer for load, _ in k.body.reads()} for k in draft.kernels]
    writes = [{load.buffer for load in k.body.stores()} for k in draft.kernels]
    aside = _off_critical_path(draft, reads, writes)
    position: list[int] = []  # for each kernel, the number of the other kernel that it runs after
    for i, predecessors in enumerate(_dependencies(reads, writes)):
        position.append(max((position[j] for j in predecessors), default=0) if aside[i] else i)
        if aside[i] and isinstance(draft.kernels[i].body, Dot) and has_many_tiles(draft, writes[i]):
            position[i] = _after_twin(draft, reads, aside, position[i], i)
    order = sorted(range(len(position)), key=lambda i: (position[i], aside[i], i))
    return replace(draft, kernels=tuple(replace(draft.kernels[i], id=n) for n, i in enumerate(order)))


def has_many_tiles(draft: Draft, results: set[int]) -> bool:
    """Is the result of a product so large that the library needs no workspace for it?"""
    return bool(target_of(draft).fusion.plain_products) and any(
        not workspace_of(draft, draft.buffers[b].bytes) for b in results
    )


def _after_twin(draft: Draft, reads: Sequence[set[int]], aside: Sequence[bool], position: int, kernel: int) -> int:
    """Places a large weight gradient after the product that computes the input gradient from the same operands.

    It needs no workspace of its own, so it can run once the workspace of its twin is free again.
    """
    twin = next((j for j in range(position + 1, len(aside)) if not aside[j]), position)
    shares = isinstance(draft.kernels[twin].body, Dot) and reads[twin] & reads[kernel]
    return twin if shares else position


def _dependencies(reads: Sequence[set[int]], writes: Sequence[set[int]]) -> list[set[int]]:
    """For each kernel the kernels that must run before it (read-after-write, write-after-write, write-after-read)."""
    written: dict[int, int] = {}
    read: dict[int, list[int]] = {}
    predecessors = []
    for i, (operands, results) in enumerate(zip(reads, writes, strict=True)):
        predecessors.append(
            {written[b] for b in operands | results if b in written} | {j for b in results for j in read.get(b, ())}
        )
        for b in results:
            written[b], read[b] = i, []
        for b in operands:
            read.setdefault(b, []).append(i)
    return predecessors


def _off_critical_path(draft: Draft, reads: Sequence[set[int]], writes: Sequence[set[int]]) -> list[bool]:
    """For each kernel: is it independent of all later products and library routines?"""
    awaited: set[int] = set()  # arena buffers that a product or routine depends on
    aside = [False] * len(draft.kernels)
    for i in reversed(range(len(draft.kernels))):
        aside[i] = not writes[i] & awaited
        if not aside[i] or isinstance(draft.kernels[i].body, Dot | Call | Window):
            awaited |= {b for b in reads[i] if draft.buffers[b].space is Space.ARENA}
    return aside


ALIGNMENT = 256  # bytes; alignment of every buffer, which libraries require for their workspace


@dataclass
class _Slot:
    """Buffers that occupy the same bytes at different times."""

    buffers: list[Buffer]
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Offsets of all memory that is live within one step only."""

    buffers: tuple[Buffer, ...]
    workspaces: Mapping[int, int]  # kernel that calls a library -> offset of its workspace
    bytes: int


def place(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> Arena:
    """Offsets by liveness; a library's workspace is live only while its kernel runs."""
    slots: list[_Slot] = []
    ends: dict[int, list[_Slot]] = {}  # kernel -> slots whose current buffer it reads for the last time
    for b in sorted((b for b in buffers if b.space is Space.ARENA), key=lambda b: (b.first, b.id)):
        ending_slots = ends.get(b.first, [])
        slot = next((s for s in ending_slots if _may_overwrite(kernels[b.first], s.buffers[-1], b)), None)
        if slot is None:
            slot = _Slot([], b.first, b.last)
            slots.append(slot)
        else:
            ending_slots.remove(slot)
        slot.buffers.append(b)
        slot.last = b.last
        ends.setdefault(b.last, []).append(slot)
    # A slot is a chain of buffers, each written over the one before it in the same kernel (in-place reuse); chains and
    # workspaces are then packed as intervals, the largest first.
    calls = [k for k in kernels if schedule_of(k).workspace]
    spans = [Lifetime(s.first, s.last, _align_bytes(s.buffers[0].bytes)) for s in slots]
    spans += [Lifetime(k.id, k.id, _align_bytes(schedule_of(k).workspace)) for k in calls]
    order = sorted(range(len(spans)), key=lambda i: (-spans[i].bytes, spans[i].first, i))
    starts, total = first_fit([spans[i] for i in order])
    start_of = dict(zip(order, starts, strict=True))
    offsets = {b.id: start_of[i] for i, s in enumerate(slots) for b in s.buffers}
    workspaces = {k.id: start_of[len(slots) + i] for i, k in enumerate(calls)}
    return Arena(tuple(replace(b, offset=offsets.get(b.id, b.offset)) for b in buffers), workspaces, total)


def _align_bytes(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def _may_overwrite(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    return isinstance(kernel.body, Nest) and old.last > old.first and may_alias(kernel, old, new)


def arena_end(plan: Plan) -> int:
    """Offset after the last arena buffer and library workspace, where the scratch memory begins."""
    ends = [b.offset + b.bytes for b in plan.buffers if b.space is Space.ARENA]
    ends += [schedule_of(k).workspace_at + schedule_of(k).workspace for k in plan.kernels]
    return align_up(max(ends, default=0))


def exceeds_scratch(draft: Draft) -> bool:
    """Do the kernels exceed the scratch budget together, so that they must reuse the same bytes or counters?"""
    schedules = [schedule_of(k) for k in draft.kernels if schedule_of(k).scratch]
    too_many_bytes = sum(s.scratch for s in schedules) > costs_of(draft).memory.scratch
    return too_many_bytes or sum(s.counters for s in schedules) > COUNTERS


def place_scratch(plan: Plan) -> Plan:
    """Offsets of partial sums and arrival counters.

    Kernels that may run concurrently (all kernels of one launch; in small plans all kernels) get disjoint scratch.
    """
    costs, end = costs_of(plan).memory, arena_end(plan)
    kernels, scratch, counters, launch = [], 0, 0, -1
    for kernel in plan.kernels:
        schedule = schedule_of(kernel)
        if schedule.scratch or schedule.counters:
            begins_launch = end > costs.large_arena and schedule.launch != launch
            scratch = 0 if begins_launch or scratch + schedule.scratch > costs.scratch else scratch
            counters = 0 if counters + schedule.counters > COUNTERS else counters
            schedule = replace(schedule, scratch_at=scratch, counters_at=counters)
            scratch, counters, launch = scratch + schedule.scratch, counters + schedule.counters, schedule.launch
        kernels.append(replace(kernel, schedule=schedule))
    bytes = max((schedule_of(k).scratch_at + schedule_of(k).scratch for k in kernels), default=0)
    return replace(plan, kernels=tuple(kernels), arena_bytes=end + bytes)
