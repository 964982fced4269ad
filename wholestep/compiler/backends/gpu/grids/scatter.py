"""Grids of scatters: one thread per element, one block per row of the target, or one warp per row after a sort of the
indices."""

from __future__ import annotations

from math import prod

from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, WARP, Form, GpuSchedule, blocks_of, sizes_in
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import evaluate, product
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Draft, Kernel
from wholestep.compiler.plan.model.layout import align_up


def scatter_row(plan: Draft, kernel: Kernel, scatter: Scatter) -> int | None:
    """Elements of a target row if all of them share the same indices, else None."""
    row_axes = [i.plain for d, i in enumerate(scatter.target.index) if d != scatter.at]
    index_axes = {a for i in scatter.index.index for a, _ in i.terms}
    row = product([kernel.axes[a] for a in row_axes if a is not None])
    size = max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    fits = isinstance(row, int) and row * size * (THREADS // WARP) <= costs_of(plan).scatter.shared_bytes
    return row if isinstance(row, int) and fits and not index_axes & set(row_axes) else None


def schedule_scatter(plan: Draft, kernel: Kernel) -> GpuSchedule:
    scatter, sizes, grids = kernel.body, sizes_in(plan, kernel), costs_of(plan).grids
    costs = costs_of(plan).scatter
    assert isinstance(scatter, Scatter)
    row = scatter_row(plan, kernel, scatter)
    if row is not None:
        target_rows = evaluate(scatter.target.shape[scatter.at], sizes)
        indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
        elements_per_thread = next((n for n in (8, 4) if row % n == 0), 1)
        if target_rows * indices >= costs.sorted_work and indices <= costs.most_sorted and kernel.loop is None:
            across = -(-row // (WARP * elements_per_thread * costs.pieces_per_thread))
            rows = indices if scatter.onto else target_rows
            blocks = blocks_of(rows * across, THREADS // WARP, grids.most_vector_blocks)
            scratch = align_up(8 * indices)
            return GpuSchedule(
                Form.SCATTER_SORTED, THREADS, blocks, width=row, vector=elements_per_thread, scratch=scratch
            )
        return GpuSchedule(Form.SCATTER_ROWS, THREADS, blocks_of(target_rows, 1, grids.most_blocks), width=row)
    elements = prod(evaluate(e, sizes) for e in scatter.target.shape)
    return GpuSchedule(Form.SCATTER, THREADS, blocks_of(elements, THREADS, grids.most_blocks))
