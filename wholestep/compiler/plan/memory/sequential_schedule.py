"""The plainest schedule: kernels run one after the other, each to its end, over dense rows.

It is the one of every target without a scheduler of its own, and where to begin with a new backend.
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
    """The plan of a draft whose kernels run in their order: there is a barrier behind each of them.

    Args:
        together: of kernels that run together, the first and the last of them.
        place: shall buffers of the arena have their places?  Else the caller gives them some.
    """
    kernels = count_work(draft)
    spans = lifetimes(draft, kernels, together)
    alive = [replace(b, first=spans[b.id][0], last=spans[b.id][1]) for b in draft.buffers]
    buffers, arena_bytes = _place_buffers(alive, Space.ARENA) if place else (alive, 0)
    buffers, work_bytes = _place_buffers(buffers, Space.WORK)
    buffers, copy_bytes = place_copies(buffers)
    loops = tuple(replace(loop, barrier=True) for loop in draft.loops)
    kept = {f.name: getattr(draft, f.name) for f in fields(draft)}
    own = {"buffers": tuple(buffers), "kernels": tuple(kernels), "loops": loops}
    regions = max(1, len(kernels))
    return Plan(**(kept | own), arena_bytes=arena_bytes, copy_bytes=copy_bytes, work_bytes=work_bytes, regions=regions)


def lifetimes(
    draft: Draft, kernels: Sequence[Kernel], together: Mapping[int, tuple[int, int]] = NOTHING
) -> dict[int, tuple[int, int]]:
    """Buffer -> the first and last kernel that touches it; a loop's kernels touch in every step."""
    spans = {b.id: (0, 0) for b in draft.buffers}
    touched: dict[int, list[int]] = {}
    inside = {n: [k.id for k in kernels if k.loop == n] for n in range(len(draft.loops))}
    for k in kernels:
        ends = list(together.get(k.id, (k.id,))) if k.loop is None else [inside[k.loop][0], inside[k.loop][-1]]
        for buffer in {load.buffer for load, _ in k.body.reads()} | {load.buffer for load in k.body.stores()}:
            touched.setdefault(buffer, []).extend(ends)
    return spans | {b: (min(at), max(at)) for b, at in touched.items()}


def _place_buffers(buffers: Sequence[Buffer], space: Space) -> tuple[list[Buffer], int]:
    """The buffers with the offsets of those of one space, and its bytes."""
    own = sorted((b for b in buffers if b.space is space), key=lambda b: (-b.bytes, b.first, b.id))
    starts, total = first_fit([Lifetime(b.first, b.last, b.bytes) for b in own])
    offsets = {b.id: start for b, start in zip(own, starts, strict=True)}
    return [replace(b, offset=offsets.get(b.id, b.offset)) for b in buffers], total


def make_plan(request: PlanRequest) -> Plan:
    """The plan of one entry point, kernel by kernel."""
    return schedule(make_draft(request))
