"""Coalescing of a warp's accesses: the memory sectors that the addresses of 32 threads touch, computed from the index.

A load of 32 adjacent float32 touches four sectors of 32 bytes, a load with a stride of a cache line 32 of them: the
hardware moves whole sectors, so the second moves eight times the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.backends.gpu.kernel_schedule import WARP
from wholestep.compiler.ir.types import evaluate, product
from wholestep.compiler.plan.model.kernel import Load
from wholestep.records import dataclass

SECTOR = 32  # bytes of the smallest transfer between caches
LINE = 128  # bytes of a cache line: an instruction takes a cycle for each that its threads touch

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def decompose(first: int, axes: Sequence[int], extents: Mapping[int, int]) -> dict[int, Numbers]:
    """The axis indices of 32 consecutive points of a row-major iteration space, from the point `first` on."""
    rest: Numbers = first + np.arange(WARP, dtype=np.int64)
    points: dict[int, Numbers] = {}
    for axis in reversed(axes):
        points[axis], rest = rest % extents[axis], rest // extents[axis]
    return points


def warps_of(order: Sequence[int], extents: Mapping[int, int], vector: int | None, each: int) -> list[dict[int, Numbers]]:
    """The axis indices of some warps over vectors of `each` elements, in the given order of axes."""
    if vector is not None:
        extents = {**extents, vector: max(1, extents[vector] // each)}
    total = prod(extents[a] for a in order)
    warps = [decompose(first, order, extents) for first in first_points(total)]
    return warps if vector is None else [{**points, vector: points[vector] * each} for points in warps]


def first_points(total: int) -> tuple[int, ...]:
    """The first points of warps whose addresses are computed."""
    return tuple(dict.fromkeys(max(0, min(total - WARP, at)) for at in (0, total // 3, 2 * total // 3)))


@dataclass(frozen=True)
class TouchedMemory:
    """The memory that the threads of a warp touch for one element or vector each."""

    sectors: int  # distinct sectors of all elements
    lines: int  # cache lines of one instruction, times the instructions


def touched_memory(
    load: Load, points: Mapping[int, Numbers], sizes: Mapping[str, int], size: int, axis: int, each: int, packed: bool
) -> TouchedMemory:
    """The memory that one access of a warp touches, whose threads are at `points`.

    Args:
        size: bytes of an element.
        axis, each: the axis along which a thread has adjacent elements, and their number.
        packed: does one instruction of a thread read all of them?
    """
    steps = [points if e == 0 or axis not in points else {**points, axis: points[axis] + e} for e in range(each)]
    places = [addresses(load, at, sizes) * size for at in steps]
    sectors = len(np.unique(np.concatenate(places) // SECTOR))
    if packed:
        return TouchedMemory(sectors, -(-sectors * SECTOR // LINE))
    return TouchedMemory(sectors, sum(len(np.unique(place // LINE)) for place in places))


def addresses(load: Load, points: Mapping[int, Numbers], sizes: Mapping[str, int]) -> Numbers:
    """The offset in elements of each thread's access; a computed index counts as 0."""
    offsets: Numbers = np.zeros(WARP, np.int64)
    for d, index in enumerate(load.index):
        position: Numbers = np.full(WARP, evaluate(index.offset, sizes), np.int64)
        for axis, coefficient in index.terms:
            if axis in points:
                position = position + evaluate(coefficient, sizes) * points[axis]
        offsets = offsets + position // index.over * evaluate(product(load.shape[d + 1 :]), sizes)
    return offsets
