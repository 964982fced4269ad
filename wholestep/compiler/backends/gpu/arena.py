"""The order of kernels and the bytes of the arena: what no product waits for runs as soon as it can.

A gradient of a weight is ready early and wanted by its update alone.  If it stood behind the whole backward pass, all
activations and their gradients would be alive until then.  Results go over operands that nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.backends.cuda.libraries.gemm_library import workspace_of
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit
from wholestep.compiler.plan.memory.inplace import overwrites
from wholestep.compiler.plan.model.bodies import Call, Dot, Nest, Window
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Space


def in_good_order(draft: Draft) -> Draft:
    """The draft with kernels that no product waits for as early as they can be."""
    if draft.loops:
        return draft
    reads = [{load.buffer for load, _ in k.body.reads()} for k in draft.kernels]
    writes = [{load.buffer for load in k.body.stores()} for k in draft.kernels]
    aside = _aside(draft, reads, writes)
    place: list[int] = []  # of each kernel: behind which one of the others it runs
    for i, before in enumerate(_dependencies(reads, writes)):
        place.append(max((place[j] for j in before), default=0) if aside[i] else i)
        if aside[i] and isinstance(draft.kernels[i].body, Dot) and has_many_tiles(draft, writes[i]):
            place[i] = _behind_twin(draft, reads, aside, place[i], i)
    order = sorted(range(len(place)), key=lambda i: (place[i], aside[i], i))
    return replace(draft, kernels=tuple(replace(draft.kernels[i], id=n) for n, i in enumerate(order)))


def has_many_tiles(draft: Draft, written: set[int]) -> bool:
    """Is the result of a product so large that a library wants no workspace?"""
    return any(not workspace_of(draft.buffers[b].bytes) for b in written)


def _behind_twin(draft: Draft, reads: Sequence[set[int]], aside: Sequence[bool], place: int, own: int) -> int:
    """The gradient of a large table stands behind that of what it was multiplied by, where that is next.

    It wants no workspace, and comes when that of the other is free again.
    """
    twin = next((j for j in range(place + 1, len(aside)) if not aside[j]), place)
    shares = isinstance(draft.kernels[twin].body, Dot) and reads[twin] & reads[own]
    return twin if shares else place


def _dependencies(reads: Sequence[set[int]], writes: Sequence[set[int]]) -> list[set[int]]:
    """Of each kernel those that must run before it."""
    written: dict[int, int] = {}
    read: dict[int, list[int]] = {}
    found = []
    for i, (own, results) in enumerate(zip(reads, writes, strict=True)):
        found.append(
            {written[b] for b in own | results if b in written} | {j for b in results for j in read.get(b, ())}
        )
        for b in results:
            written[b], read[b] = i, []
        for b in own:
            read.setdefault(b, []).append(i)
    return found


def _aside(draft: Draft, reads: Sequence[set[int]], writes: Sequence[set[int]]) -> list[bool]:
    """Does no product or routine wait for a kernel?"""
    wanted: set[int] = set()  # buffers of the arena that one does wait for
    aside = [False] * len(draft.kernels)
    for i in reversed(range(len(draft.kernels))):
        aside[i] = not writes[i] & wanted
        if not aside[i] or isinstance(draft.kernels[i].body, Dot | Call | Window):
            wanted |= {b for b in reads[i] if draft.buffers[b].space is Space.ARENA}
    return aside


ALIGNMENT = 256  # bytes, of every buffer: libraries want their workspace so


@dataclass
class _Slot:
    """Buffers that have the same bytes one after the other."""

    buffers: list[Buffer]
    first: int
    last: int


@dataclass(frozen=True)
class Arena:
    """Where everything is that lives within a step."""

    buffers: tuple[Buffer, ...]
    workspaces: Mapping[int, int]  # kernel that calls a library -> where its workspace begins
    bytes: int


def place(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> Arena:
    """Offsets by lifetime; the workspace of a library lives as long as its kernel runs."""
    slots: list[_Slot] = []
    ends: dict[int, list[_Slot]] = {}  # kernel -> the slots whose last buffer it reads last
    for b in sorted((b for b in buffers if b.space is Space.ARENA), key=lambda b: (b.first, b.id)):
        meeting = ends.get(b.first, [])
        slot = next((s for s in meeting if _goes_over(kernels[b.first], s.buffers[-1], b)), None)
        if slot is None:
            slot = _Slot([], b.first, b.last)
            slots.append(slot)
        else:
            meeting.remove(slot)
        slot.buffers.append(b)
        slot.last = b.last
        ends.setdefault(b.last, []).append(slot)
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


def _goes_over(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    return isinstance(kernel.body, Nest) and old.last > old.first and overwrites(kernel, old, new)
