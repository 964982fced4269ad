"""Grids of matrix products: a library's, medium tiles, or small tiles with split-K."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.grids import gemm_library, gemm_medium
from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, Form, GpuSchedule, blocks_of, sizes_in
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, float64, product, symbols_of
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Draft, Kernel
from wholestep.compiler.plan.model.layout import align_up
from wholestep.errors import PlanError

DEEP = 128  # k elements per iteration of a block: 8 thread groups of 16, as `ws_product` of native/product.h has them


def schedule_dot(plan: Draft, kernel: Kernel) -> GpuSchedule:
    dot, axes, costs = kernel.body, kernel.axes, costs_of(plan)
    assert isinstance(dot, Dot)
    if len(dot.levels) > 1:
        raise PlanError("a GPU matrix product cannot have fused column sums; the target's fusion rules exclude them.")
    acc = next(i.dtype for i in dot.levels[0].body if i.op == "acc")
    batch, sizes = product([axes[a] for a in dot.batch]), sizes_in(plan, kernel)
    if gemm_medium.is_medium_gemm(plan, kernel, sizes):
        return gemm_medium.schedule_medium_gemm(plan, kernel, sizes)
    operand_dtypes = {plan.buffers[load.buffer].type.dtype for load in (dot.a, dot.b)}
    if gemm_library.is_library_gemm(plan, kernel, sizes):
        elements = prod(evaluate(axes[a], sizes) for a in (*dot.batch, dot.m, dot.n))
        scratch = 0 if gemm_library.is_direct(plan, dot) else align_up(elements * acc.size)
        result = plan.buffers[next(dot.stores()).buffer].type.dtype.size
        blocks = blocks_of(elements, THREADS, costs.grids.most_blocks)
        workspace = gemm_library.workspace_of(plan, elements * (acc.size if scratch else result))
        return GpuSchedule(Form.LIBRARY, THREADS, blocks, scratch=scratch, workspace=workspace)
    m, n, k, single = axes[dot.m], axes[dot.n], axes[dot.k], operand_dtypes == {float32}
    return schedule_tiled_gemm(costs.gemm, sizes, batch, m, n, k, acc, single_block_chunks=single)


def schedule_tiled_gemm(
    costs: GemmCosts,
    sizes: Mapping[str, int],
    batch: Extent,
    m: Extent,
    n: Extent,
    k: Extent,
    dtype: DType,
    *,
    single_block_chunks: bool = False,
) -> GpuSchedule:
    """Tiles of m x n, with split-K if the tiles of one call would be too few to fill a GPU.

    The chunks of k depend on k and on static extents only; the tile shape, which no bit depends on, on the capacity.
    """
    static_sizes = [e if isinstance(e, int) else 1 for e in (m, n)]
    static_tiles = -(-static_sizes[0] // 32) * -(-static_sizes[1] // 32)
    depth = evaluate(k, sizes)
    # A weight gradient sums over pixels; the static extent is the number of pixels of one image.
    per_sample = evaluate(k, dict.fromkeys(symbols_of((k,)), 1))
    chunk = (
        -(-k // max(1, costs.full_gpu_blocks // static_tiles))
        if isinstance(k, int)
        else max(per_sample, DEEP * max(1, static_tiles // 32))
    )
    chunk = -(-max(chunk, DEEP) // DEEP) * DEEP
    single = isinstance(batch, int) and batch == 1
    chunks = max(1, -(-depth // chunk)) if single else 1

    def blocks(tile: Sequence[int]) -> int:
        count = prod(-(-evaluate(e, sizes) // t) for e, t in zip((m, n), tile[:2], strict=True))
        return max(1, count * evaluate(batch, sizes))

    tile = costs.narrow_tile if isinstance(n, int) and n <= costs.narrow_tile[1] else costs.small_tile
    if dtype == float64 or blocks(costs.tiny_tile) * chunks <= costs.tiny_blocks:
        tile = costs.tiny_tile  # the operands of a larger tile would exceed a block's shared memory in float64
    if chunks == 1:
        return GpuSchedule(Form.PRODUCT, THREADS, blocks(tile), tile=tile)
    if single_block_chunks and isinstance(k, int) and k <= costs.whole_depth:
        tiles = costs.whole_tiles
        unsplit_tile = next((t for t in tiles if blocks(t) >= costs.full_gpu_blocks), tiles[-1])
        if blocks(unsplit_tile) <= costs.tiny_blocks // 2:
            return GpuSchedule(Form.PRODUCT, THREADS, blocks(unsplit_tile), tile=unsplit_tile, chunk=chunk)
    bytes = align_up(chunks * blocks(tile) * tile[0] * tile[1] * dtype.size)
    return GpuSchedule(Form.PRODUCT, THREADS, blocks(tile), tile=tile, chunk=chunk, chunks=chunks, scratch=bytes)
