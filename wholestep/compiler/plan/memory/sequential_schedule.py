"""The simplest schedule: kernels run one after the other, each to completion, over buffers in dense rows.

Targets without a scheduler of their own use it; it is the starting point for a new backend.  Liveness is counted in
kernels, and buffers of the arena are allocated first-fit, the largest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from types import MappingProxyType

from wholestep.compiler.plan.lower.draft import count_work, make_draft
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit, place_copies
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Plan, Space
from wholestep.compiler.plan.model.request import PlanRequest

NOTHING: Mapping[int, tuple[int, int]] = MappingProxyType({})


def schedule(draft: Draft, together: Mapping[int, tuple[int, int]] = NOTHING, *, place: bool = True) -> Plan:
    """The plan of a draft whose kernels run in order, with a barrier after each of them.

    Args:
        together: kernel -> the first and last kernel of the group that runs concurrently with it.
        place: allocate offsets in the arena; if False, the caller does.
    """
    kernels = count_work(draft)
    spans = lifetimes(draft, kernels, together)
    alive = [replace(b, first=spans[b.id][0], last=spans[b.id][1]) for b in draft.buffers]
    buffers, arena_bytes = _place_buffers(alive, Space.ARENA) if place else (alive, 0)
    buffers, work_bytes = _place_buffers(buffers, Space.WORK)
    buffers, copy_bytes = place_copies(buffers)
    loops = tuple(replace(loop, barrier=True) for loop in draft.loops)
    draft_fields = {f.name: getattr(draft, f.name) for f in fields(draft)}
    scheduled = {"buffers": tuple(buffers), "kernels": tuple(kernels), "loops": loops}
    regions = max(1, len(kernels))
    return Plan(
        **(draft_fields | scheduled),
        arena_bytes=arena_bytes,
        copy_bytes=copy_bytes,
        work_bytes=work_bytes,
        regions=regions,
    )


def lifetimes(
    draft: Draft, kernels: Sequence[Kernel], together: Mapping[int, tuple[int, int]] = NOTHING
) -> dict[int, tuple[int, int]]:
    """Liveness: buffer -> the first and last kernel that accesses it; in a loop, from its first kernel to its last."""
    spans = {b.id: (0, 0) for b in draft.buffers}
    accessed: dict[int, list[int]] = {}
    inside = {n: [k.id for k in kernels if k.loop == n] for n in range(len(draft.loops))}
    for k in kernels:
        ends = list(together.get(k.id, (k.id,))) if k.loop is None else [inside[k.loop][0], inside[k.loop][-1]]
        for buffer in {load.buffer for load, _ in k.body.reads()} | {load.buffer for load in k.body.stores()}:
            accessed.setdefault(buffer, []).extend(ends)
    return spans | {b: (min(times), max(times)) for b, times in accessed.items()}


def _place_buffers(buffers: Sequence[Buffer], space: Space) -> tuple[list[Buffer], int]:
    """The buffers, with offsets assigned to the buffers of one space, and the bytes of that space."""
    members = sorted((b for b in buffers if b.space is space), key=lambda b: (-b.bytes, b.first, b.id))
    starts, total = first_fit([Lifetime(b.first, b.last, b.bytes) for b in members])
    offsets = {b.id: start for b, start in zip(members, starts, strict=True)}
    return [replace(b, offset=offsets.get(b.id, b.offset)) for b in buffers], total


def make_plan(request: PlanRequest) -> Plan:
    """Plan one entry point with the sequential schedule."""
    return schedule(make_draft(request))
