"""First-fit arena allocation by lifetime: buffers share bytes if they are never alive at the same time.

Across a barrier any bytes may be reused.  Within a region, bytes are reused only where that needs no barrier: by a
buffer of the same size, partitioned among the threads in the same way, at the same offset.  Then each byte belongs to
one thread throughout the region, and that thread has finished with the first buffer before it starts with the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.partition.ownership import KernelAccesses, Traversal
from wholestep.compiler.ir.types import Dim, Extent
from wholestep.compiler.plan.memory.first_fit import Lifetime, first_fit, may_alias
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Layout, Space
from wholestep.records import dataclass

Owners = tuple[object, ...]  # describes how bytes are partitioned among threads; comparable


@dataclass
class ArenaSlot:
    """A byte range of the arena and the buffers that occupy it one after the other."""

    buffers: list[Buffer]
    first: int  # region
    last: int
    bytes: int
    owners: frozenset[Owners]  # partitionings of the slot's bytes in the last region


@dataclass
class BufferLifetimes:
    """The first and last kernel that access each buffer, and the partitionings common to all kernels of a region."""

    buffers: list[Buffer]
    owners: dict[tuple[int, int], frozenset[Owners]]  # (buffer, region) -> common partitionings
    in_loops: set[int]


def buffer_lifetimes(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> BufferLifetimes:
    span: dict[int, tuple[int, int]] = {}
    owners: dict[tuple[int, int], frozenset[Owners]] = {}
    in_loops: set[int] = set()
    for k in kernels:
        touch, split, region = KernelAccesses(k, buffers), schedule_of(k).split, schedule_of(k).region
        for id in touch.by_buffer:
            span[id] = (span.get(id, (k.id, k.id))[0], k.id)
            traversals = touch.traversals(split, id) if split is not None else frozenset[Traversal]()
            partitionings = frozenset(byte_owners(buffers[id], traversal) for traversal in traversals)
            owners[id, region] = owners.get((id, region), partitionings) & partitionings
        if k.loop is not None:
            in_loops |= touch.by_buffer.keys()
    extend_over_loops(span, kernels, buffers)
    alive = [replace(b, first=span.get(b.id, (0, 0))[0], last=span.get(b.id, (0, 0))[1]) for b in buffers]
    return BufferLifetimes(alive, owners, in_loops)


def extend_over_loops(span: dict[int, tuple[int, int]], kernels: Sequence[Kernel], buffers: Sequence[Buffer]) -> None:
    """Extend to the whole loop the lifetime of buffers that a loop shares with the outside, or across iterations."""
    inside: dict[int, list[Kernel]] = {}
    for k in kernels:
        if k.loop is not None:
            inside.setdefault(k.loop, []).append(k)
    for loop in inside.values():
        first, last = loop[0].id, loop[-1].id
        for k in loop:
            for id, accesses in KernelAccesses(k, buffers).by_buffer.items():
                begin, end = span[id]
                stacked = any(isinstance(i.offset, Dim) for a in accesses for i in a.index)
                if begin < first or end > last or stacked:
                    span[id] = (min(begin, first), max(end, last))


def byte_owners(buffer: Buffer, traversal: Traversal) -> Owners:
    """The partitioning of a buffer's bytes among the threads, as a comparable value."""
    kind, extent = traversal
    size = buffer.type.dtype.size
    if kind != "granules of":
        return (buffer.type, buffer.layout, kind, extent)
    assert buffer.layout == Layout.ROWS
    total: Extent = buffer.type.elements * size
    return (total, extent * size)


def slots(alive: BufferLifetimes, kernels: Sequence[Kernel], overwrite: bool) -> list[ArenaSlot]:
    """Assign arena buffers to slots; a buffer reuses a slot within a region if both partition its bytes alike."""
    out: list[ArenaSlot] = []
    region = [schedule_of(k).region for k in kernels]
    for b in sorted((b for b in alive.buffers if b.space is Space.ARENA), key=lambda b: (b.first, b.id)):
        first, last = region[b.first], region[b.last]
        at_first, at_last = (alive.owners.get((b.id, r), frozenset()) for r in (first, last))
        for slot in out:
            previous = slot.buffers[-1]
            adjoins = (slot.last, slot.bytes) == (first, b.bytes) and slot.owners & at_first
            # A loop returns to its first region, so a slot reused inside a loop must not extend over several regions.
            confined = slot.first == last or not {previous.id, b.id} & alive.in_loops
            if adjoins and confined and may_follow(kernels, previous, b, overwrite):
                slot.buffers.append(b)
                slot.last, slot.owners = last, slot.owners & at_first if first == last else at_last
                break
        else:
            out.append(ArenaSlot([b], first, last, b.bytes, at_last))
    return out


def may_follow(kernels: Sequence[Kernel], old: Buffer, new: Buffer, overwrite: bool = True) -> bool:
    """Has every thread finished with its elements of the old buffer when it first accesses the new one?"""
    if old.last == new.first:
        return overwrite and may_alias(kernels[new.first], old, new)
    return old.last < new.first


def place(buffers: Sequence[Buffer], kernels: Sequence[Kernel], overwrite: bool = True) -> tuple[list[Buffer], int]:
    """The buffers with arena offsets, and the size of the arena in bytes."""
    alive = buffer_lifetimes(buffers, kernels)
    by_size = sorted(slots(alive, kernels, overwrite), key=lambda s: (-s.bytes, s.first, s.buffers[0].id))
    starts, total = first_fit([Lifetime(s.first, s.last, s.bytes) for s in by_size])
    offsets = {b.id: start for slot, start in zip(by_size, starts, strict=True) for b in slot.buffers}
    return [replace(b, offset=offsets.get(b.id, b.offset)) for b in alive.buffers], total
