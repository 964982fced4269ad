"""Products of float32 numbers between those of few operations, which our tiles for them make, and a library's."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from wholestep.compiler.backends.cuda.products import in_fours, lies_in_fours
from wholestep.compiler.backends.cuda.scheduled import MIDDLE, CudaSchedule
from wholestep.compiler.backends.cuda.target import library_flops, uses_tf32
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.bodies import Dot
from wholestep.compiler.plan.kernel import Kernel, Load, Plan

THREADS = 256
LEAST_FLOPS = 40_000_000  # smaller ones share launches
TILES = ((64, 64), (32, 32))  # rows and columns of a block
ENOUGH = 96  # blocks that take a GPU
FEWEST = 40  # blocks: of fewer tiles, chunks of k are made side by side
DEPTH = 16  # of k, that a group of threads has of every piece


def takes(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is it a product for these tiles?"""
    dot, axes = kernel.body, kernel.axes
    assert isinstance(dot, Dot)
    if uses_tf32(plan.target) or any(plan.buffers[x.buffer].type.dtype != float32 for x in (dot.a, dot.b)):
        return False
    extents = [evaluate(axes[a], sizes) for a in (*dot.batch, dot.m, dot.n, dot.k)]
    most = dict(library_flops(plan.target))[float32.name]
    if not LEAST_FLOPS <= 2 * prod(extents) < most or min(extents[-3:-1]) < TILES[-1][0]:
        return False
    lie = all(along(kernel, x, axis) is not None for x, axis in ((dot.a, dot.m), (dot.b, dot.n)))
    return lie and blocks(kernel, TILES[-1], sizes) >= FEWEST


def along(kernel: Kernel, load: Load, other: int) -> bool | None:
    """Does an operand lie in whole fours along k?  False where along the other axis, None where along neither."""
    assert isinstance(kernel.body, Dot)
    for axis in (kernel.body.k, other):
        if in_fours(kernel.axes[axis]) and lies_in_fours(load, axis):
            return axis == kernel.body.k
    return None


def schedule_middle(kernel: Kernel, sizes: Mapping[str, int]) -> CudaSchedule:
    """The largest tile of which there are enough; bits depend on it, and so on the capacity."""
    tile = next((t for t in TILES if blocks(kernel, t, sizes) >= ENOUGH), TILES[-1])
    return CudaSchedule(MIDDLE, THREADS, blocks(kernel, tile, sizes), tile=(*tile, DEPTH))


def blocks(kernel: Kernel, tile: tuple[int, int], sizes: Mapping[str, int]) -> int:
    """How many tiles there are."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    sides = [(a, 1) for a in dot.batch] + [*zip((dot.m, dot.n), tile, strict=True)]
    return prod(-(-evaluate(kernel.axes[a], sizes) // side) for a, side in sides)
