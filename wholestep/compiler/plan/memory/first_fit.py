"""First-fit arena allocation, and in-place reuse: which buffers may share bytes.

Two buffers whose lifetimes overlap never overlap in memory, with one exception: the result of a kernel may alias an
operand whose last read is in this kernel, if no element of it is read after the iteration that overwrites it.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.plan.io.traffic import loads, stores
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Layout, Space
from wholestep.records import dataclass


@dataclass(frozen=True)
class Lifetime:
    """Bytes that are alive from one point in time to another, both included; the caller defines the unit of time."""

    first: int
    last: int
    bytes: int


def first_fit(spans: Sequence[Lifetime]) -> tuple[list[int], int]:
    """The lowest free offset for each span, allocated in the given order (largest first packs well), and the total."""
    placed: list[tuple[int, int, int, int, int]] = []  # sorted by offset: (offset, number, first, last, end)
    starts, total = [], 0
    for number, span in enumerate(spans):
        at, size, span_first, span_last = 0, span.bytes, span.first, span.last
        for start, _, first, last, end in placed:
            if first <= span_last and span_first <= last:  # alive at the same time: `at` must skip it, or fit before it
                if at + size <= start:
                    break
                if end > at:
                    at = end
        insort(placed, (at, number, span.first, span.last, at + size))
        starts.append(at)
        total = max(total, at + size)
    return starts, total


def place_copies(buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Offsets of stored copies of states: they are alive across steps, so each has bytes of its own."""
    placed, total = [], 0
    for b in buffers:
        if b.space is Space.COPY:
            b = replace(b, offset=total)
            total += b.bytes
        placed.append(b)
    return placed, total


def may_alias(kernel: Kernel, old: Buffer, new: Buffer) -> bool:
    """May `new` reuse the bytes of `old`, which no later kernel reads?

    Every load of an old element must be in the loop that stores the new one, or in an earlier pass over the row.  In a
    product that loop is the epilogue: the product itself is in the workspace by then.
    """
    if kernel.kind not in (Kind.NEST, Kind.DOT) or kernel.loop is not None:
        return False
    if (old.bytes, old.layout, old.type.dtype) != (new.bytes, new.layout, new.type.dtype):
        return False
    if old.layout != Layout.ROWS and old.type != new.type:
        return False  # blocks of different shapes place the same element at different offsets
    targets = [(n, s.load) for n, level in enumerate(kernel.levels) for s in level.stores if s.load.buffer == new.id]
    if len(targets) != 1 or any(x.buffer == old.id for x in stores(kernel)):
        return False
    at, target = targets[0]
    passes = kernel.levels[: 1 if kernel.kind is Kind.DOT else at + 1]
    reads = [i.load for level in passes for i in level.body if i.load is not None and i.load.buffer == old.id]
    return (
        at < len(passes)
        and len(reads) == sum(x.buffer == old.id for x in loads(kernel))
        and all(replace(x, buffer=new.id) == target for x in reads)
        and sum(x.buffer == new.id for x in (*loads(kernel), *stores(kernel))) == 1
    )
