"""Offsets by lifetime: buffers share bytes when they are never alive together.

Across a barrier any bytes may change hands.  Within a region they may only where no barrier is needed: two buffers of
the same size, partitioned among the threads in the same way there, at the same offset.  Then each byte belongs to one
thread throughout the region, and that thread has done with the first buffer before it begins with the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.partition.ownership import Touch, Way
from wholestep.compiler.ir.types import Dim, Extent
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit
from wholestep.compiler.plan.memory.inplace import overwrites
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Layout, Space
from wholestep.records import dataclass

Owners = tuple[object, ...]  # a way of partitioning bytes among threads


@dataclass
class ArenaSlot:
    """Bytes of the arena and the buffers that have them one after the other."""

    buffers: list[Buffer]
    first: int  # region
    last: int
    bytes: int
    owners: frozenset[Owners]  # in the last region


@dataclass
class Lives:
    """From which kernel to which each buffer is alive, and the ways in which all kernels of a region partition it."""

    buffers: list[Buffer]
    owners: dict[tuple[int, int], frozenset[Owners]]  # by buffer and region
    in_loops: set[int]


def lives(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> Lives:
    span: dict[int, tuple[int, int]] = {}
    owners: dict[tuple[int, int], frozenset[Owners]] = {}
    in_loops: set[int] = set()
    for k in kernels:
        touch, split, region = Touch(k, buffers), schedule_of(k).split, schedule_of(k).region
        for id in touch.by_buffer:
            span[id] = (span.get(id, (k.id, k.id))[0], k.id)
            ways = touch.walked(split, id) if split is not None else frozenset[Way]()
            mine = frozenset(byte_owners(buffers[id], way) for way in ways)
            owners[id, region] = owners.get((id, region), mine) & mine
        if k.loop is not None:
            in_loops |= touch.by_buffer.keys()
    cover_loops(span, kernels, buffers)
    alive = [replace(b, first=span.get(b.id, (0, 0))[0], last=span.get(b.id, (0, 0))[1]) for b in buffers]
    return Lives(alive, owners, in_loops)


def cover_loops(span: dict[int, tuple[int, int]], kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> None:
    """What a loop shares with what is outside, or from step to step, is alive as long as the loop runs."""
    inside: dict[int, list[Kernel]] = {}
    for k in kernels:
        if k.loop is not None:
            inside.setdefault(k.loop, []).append(k)
    for loop in inside.values():
        first, last = loop[0].id, loop[-1].id
        for k in loop:
            for id, accesses in Touch(k, buffers).by_buffer.items():
                begin, end = span[id]
                stacked = any(isinstance(i.offset, Dim) for a in accesses for i in a.index)
                if begin < first or end > last or stacked:
                    span[id] = (min(begin, first), max(end, last))


def byte_owners(buffer: Buffer, way: Way) -> Owners:
    """Which bytes of a buffer belong to which thread, as something to compare."""
    kind, extent = way
    size = buffer.type.dtype.size
    if kind != "granules of":
        return (buffer.type, buffer.layout, kind, extent)
    assert buffer.layout == Layout.ROWS
    total: Extent = buffer.type.elements * size
    return (total, extent * size)


def slots(alive: Lives, kernels: Sequence[Kernel], overwrite: bool) -> list[ArenaSlot]:
    """The buffers of the arena, put one after the other where they meet in a region in which their owners agree."""
    out: list[ArenaSlot] = []
    region = [schedule_of(k).region for k in kernels]
    for b in sorted((b for b in alive.buffers if b.space is Space.ARENA), key=lambda b: (b.first, b.id)):
        first, last = region[b.first], region[b.last]
        at_first, at_last = (alive.owners.get((b.id, r), frozenset()) for r in (first, last))
        for slot in out:
            before = slot.buffers[-1]
            meet = (slot.last, slot.bytes) == (first, b.bytes) and slot.owners & at_first
            # A loop comes back to its first region: there a slot stays within one.
            stays = slot.first == last or not {before.id, b.id} & alive.in_loops
            if meet and stays and follows(kernels, before, b, overwrite):
                slot.buffers.append(b)
                slot.last, slot.owners = last, slot.owners & at_first if first == last else at_last
                break
        else:
            out.append(ArenaSlot([b], first, last, b.bytes, at_last))
    return out


def follows(kernels: Sequence[Kernel], old: Buffer, new: Buffer, overwrite: bool = True) -> bool:
    """Has every thread done with the old elements of its own when it comes to the new ones?"""
    if old.last == new.first:
        return overwrite and overwrites(kernels[new.first], old, new)
    return old.last < new.first


def place(buffers: Sequence[Buffer], kernels: Sequence[Kernel], overwrite: bool = True) -> tuple[list[Buffer], int]:
    """The arena's buffers with their offsets, and the arena's size."""
    alive = lives(buffers, kernels)
    found = sorted(slots(alive, kernels, overwrite), key=lambda s: (-s.bytes, s.first, s.buffers[0].id))
    starts, total = first_fit([Lifetime(s.first, s.last, s.bytes) for s in found])
    offsets = {b.id: start for slot, start in zip(found, starts, strict=True) for b in slot.buffers}
    return [replace(b, offset=offsets.get(b.id, b.offset)) for b in alive.buffers], total
