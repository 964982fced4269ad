"""First-fit arena allocation: buffers with disjoint lifetimes may share bytes.

Invariant: two buffers whose lifetimes overlap never overlap in memory.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.plan.model.kernel import Buffer, Space
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
