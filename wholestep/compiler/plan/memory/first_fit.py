"""Offsets by lifetime: what is never alive together may have the same bytes."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.plan.model.kernel import Buffer, Space
from wholestep.records import dataclass


@dataclass(frozen=True)
class Lifetime:
    """Bytes that are needed from one time to another, both included; what a time is, is the caller's business."""

    first: int
    last: int
    bytes: int


def first_fit(spans: Sequence[Lifetime]) -> tuple[list[int], int]:
    """An offset for each span, in the order given (the largest first is a good one), and the bytes of them all."""
    placed: list[tuple[int, int, int, int, int]] = []  # by start: number, first, last and end of each
    starts, total = [], 0
    for number, span in enumerate(spans):
        at, size, span_first, span_last = 0, span.bytes, span.first, span.last
        for start, _, first, last, end in placed:
            if first <= span_last and span_first <= last:
                if at + size <= start:
                    break
                if end > at:
                    at = end
        insort(placed, (at, number, span.first, span.last, at + size))
        starts.append(at)
        total = max(total, at + size)
    return starts, total


def place_copies(buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Stored copies live from step to step: one after the other."""
    out, total = [], 0
    for b in buffers:
        if b.space is Space.COPY:
            b = replace(b, offset=total)
            total += b.bytes
        out.append(b)
    return out, total
