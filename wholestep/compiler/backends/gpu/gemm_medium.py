"""Products of float32 numbers between those of few operations, which our tiles for them make, and a library's."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from wholestep.compiler.backends.cuda.libraries.gemm_library import in_fours, lies_in_fours
from wholestep.compiler.backends.cuda.target import library_flops, uses_tf32
from wholestep.compiler.backends.gpu.kernel_schedule import MIDDLE, CudaSchedule
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Load, Plan, Space

THREADS = 256
LEAST_FLOPS = 40_000_000  # smaller ones share launches
LEAST_LATE_FLOPS, MANY_TILES = 12_000_000, 264  # of an update, and tiles of all: two for each multiprocessor
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
    most = dict(library_flops(plan.target))[float32.name]
    flops = flops_of(kernel, sizes)
    if (
        not min(LEAST_FLOPS, LEAST_LATE_FLOPS) <= flops < most
        or min(evaluate(axes[a], sizes) for a in (dot.m, dot.n)) < TILES[-1][0]
    ):
        return False
    if any(along(kernel, x, axis) is None for x, axis in ((dot.a, dot.m), (dot.b, dot.n))):
        return False
    return (flops >= LEAST_FLOPS and blocks(kernel, TILES[-1], sizes) >= FEWEST) or is_one_of_many(plan, kernel, sizes)


def flops_of(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    assert isinstance(kernel.body, Dot)
    dot = kernel.body
    return 2 * prod(evaluate(kernel.axes[a], sizes) for a in (*dot.batch, dot.m, dot.n, dot.k))


def is_update(plan: Plan, kernel: Kernel) -> bool:
    """Is it a gradient of weights with their update, which nobody waits for?"""
    written = {plan.buffers[load.buffer].space for load in kernel.body.stores()}
    return isinstance(kernel.body, Dot) and kernel.loop is None and written <= {Space.STATE, Space.COPY}


def is_one_of_many(plan: Plan, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is it an update among so many that their tiles together take a GPU?  They share a launch."""
    if not is_update(plan, kernel):
        return False
    many = [k for k in plan.kernels if is_update(plan, k) and flops_of(k, sizes) >= LEAST_LATE_FLOPS]
    return sum(blocks(k, TILES[-1], sizes) for k in many) >= MANY_TILES


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
