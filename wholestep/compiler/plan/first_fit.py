"""Offsets by lifetime: what is never alive together may have the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.plan.kernel import Buffer, Space
from wholestep.records import dataclass


@dataclass(frozen=True)
class Span:
    """Bytes that are needed from one time to another, both included; what a time is, is the caller's business."""

    first: int
    last: int
    bytes: int


def first_fit(spans: Sequence[Span]) -> tuple[list[int], int]:
    """An offset for each span, in the order given (the largest first is a good one), and the bytes of them all."""
    placed: list[tuple[int, Span]] = []
    total = 0
    for span in spans:
        at = 0
        for start, other in sorted(placed, key=lambda p: p[0]):
            if other.first <= span.last and span.first <= other.last:
                if at + span.bytes <= start:
                    break
                at = max(at, start + other.bytes)
        placed.append((at, span))
        total = max(total, at + span.bytes)
    return [start for start, _ in placed], total


def place_copies(buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Stored copies live from step to step: one after the other."""
    out, total = [], 0
    for b in buffers:
        if b.space is Space.COPY:
            b = replace(b, offset=total)
            total += b.bytes
        out.append(b)
    return out, total
