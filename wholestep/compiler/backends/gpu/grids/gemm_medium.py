"""Medium float32 GEMMs (from 12 or 40 MFLOP up to the library's threshold): 64x64 and 32x32 shared-memory tiles.

They fill the gap between the small-product kernel, which shares launches with others, and a library's.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, prod

from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, Form, GpuSchedule
from wholestep.compiler.backends.gpu.strides import is_aligned_in, is_multiple
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Space

DEPTH = 16  # k elements per thread group and shared-memory stage: native/gemm_medium.h copies them in vectors of four


def is_medium_gemm(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is the kernel a product that is computed in medium tiles?"""
    dot, axes = kernel.body, kernel.axes
    assert isinstance(dot, Dot)
    target = target_of(plan)
    costs = target.cost_model.gemm
    if target.tf32 or any(plan.buffers[x.buffer].type.dtype != float32 for x in (dot.a, dot.b)):
        return False
    library_threshold = dict(target.fusion.plain_products).get(float32.name, inf)
    flops = flops_of(kernel, sizes)
    if (
        not min(costs.medium_flops, costs.update_flops) <= flops < library_threshold
        or min(evaluate(axes[a], sizes) for a in (dot.m, dot.n)) < costs.medium_tiles[-1][0]
    ):
        return False
    if any(is_contiguous_along_k(kernel, x, axis) is None for x, axis in ((dot.a, dot.m), (dot.b, dot.n))):
        return False
    fills = blocks(kernel, costs.medium_tiles[-1], sizes) >= costs.fewest_medium_blocks
    return (flops >= costs.medium_flops and fills) or is_one_of_many(plan, kernel, sizes)


def flops_of(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    assert isinstance(kernel.body, Dot)
    dot = kernel.body
    return 2 * prod(evaluate(kernel.axes[a], sizes) for a in (*dot.batch, dot.m, dot.n, dot.k))


def is_update(plan: Draft, kernel: Kernel) -> bool:
    """Is the kernel a weight gradient fused with its update, on which no other kernel depends?"""
    written = {plan.buffers[load.buffer].space for load in kernel.body.stores()}
    return isinstance(kernel.body, Dot) and kernel.loop is None and written <= {Space.STATE, Space.COPY}


def is_one_of_many(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    """Is the kernel one of several updates that share a launch because their tiles together fill a GPU?

    A single tile must not take longer than all tiles of the launch on a full GPU, since the others would wait for it.
    """
    if not is_update(plan, kernel):
        return False
    costs = costs_of(plan).gemm
    tile = costs.medium_tiles[-1]
    updates = [k for k in plan.kernels if is_update(plan, k) and flops_of(k, sizes) >= costs.update_flops]
    if sum(blocks(k, tile, sizes) for k in updates) < costs.update_tiles:
        return False
    most = sum(flops_of(k, sizes) for k in updates) / costs.update_tiles
    return flops_of(kernel, sizes) / blocks(kernel, tile, sizes) <= most


def is_contiguous_along_k(kernel: Kernel, load: Load, other: int) -> bool | None:
    """Is an operand contiguous, in multiples of four, along k (True), its other axis (False), or neither (None)?"""
    assert isinstance(kernel.body, Dot)
    for axis in (kernel.body.k, other):
        if is_multiple(kernel.axes[axis], 4) and is_aligned_in(load, axis, 4):
            return axis == kernel.body.k
    return None


def schedule_medium_gemm(plan: Draft, kernel: Kernel, sizes: Mapping[str, int]) -> GpuSchedule:
    """The largest tile with enough blocks; the bits depend on the tile, and so on the capacity."""
    costs = costs_of(plan).gemm
    tiles = costs.medium_tiles
    tile = next((t for t in tiles if blocks(kernel, t, sizes) >= costs.medium_blocks), tiles[-1])
    return GpuSchedule(Form.MEDIUM, THREADS, blocks(kernel, tile, sizes), tile=(*tile, DEPTH))


def blocks(kernel: Kernel, tile: tuple[int, int], sizes: Mapping[str, int]) -> int:
    """Number of tiles."""
    dot = kernel.body
    assert isinstance(dot, Dot)
    sides = [(a, 1) for a in dot.batch] + [*zip((dot.m, dot.n), tile, strict=True)]
    return prod(-(-evaluate(kernel.axes[a], sizes) // side) for a, side in sides)
