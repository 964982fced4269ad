"""Offsets by lifetime: buffers share bytes when they are never alive in the same region.

A unit of time is a region, so bytes change hands only across a barrier: sharing never adds a conflict between threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.plan.kernel import Buffer, Kernel, Space
from wholestep.compiler.plan.traffic import loads, stores


def lifetimes(buffers: Sequence[Buffer], kernels: Sequence[Kernel]) -> list[Buffer]:
    """The first and last region in which each buffer of the arena is touched."""
    seen: dict[int, list[int]] = {}
    for k in kernels:
        for access in (*loads(k), *stores(k)):
            seen.setdefault(access.buffer, []).append(k.region)
    return [replace(b, first=min(seen.get(b.id, [0])), last=max(seen.get(b.id, [0]))) for b in buffers]


def place(buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """First fit, largest first: the arena's buffers with their offsets, and the arena's size."""
    placed: list[Buffer] = []
    total = 0
    for b in sorted((b for b in buffers if b.space is Space.ARENA), key=lambda b: (-b.bytes, b.first, b.id)):
        at = 0
        for other in sorted(placed, key=lambda o: o.offset):
            if other.first <= b.last and b.first <= other.last:
                if at + b.bytes <= other.offset:
                    break
                at = max(at, other.offset + other.bytes)
        placed.append(replace(b, offset=at))
        total = max(total, at + b.bytes)
    offsets = {b.id: b for b in placed}
    return [offsets.get(b.id, b) for b in buffers], total


def place_copies(buffers: Sequence[Buffer]) -> tuple[list[Buffer], int]:
    """Stored copies live from step to step: one after the other."""
    out, total = [], 0
    for b in buffers:
        if b.space is Space.COPY:
            b = replace(b, offset=total)
            total += b.bytes
        out.append(b)
    return out, total
