"""Grids of kernels over elements, rows and columns: threads per row, elements per thread, chunks of long columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.gpu.cost_model import ReductionCosts
from wholestep.compiler.backends.gpu.grids.row_loads import accesses_padded_rows, prefetch_bytes
from wholestep.compiler.backends.gpu.grids.thread_order import thread_order
from wholestep.compiler.backends.gpu.kernel_schedule import (
    JOINED_CHUNKS,
    PARTS,
    THREADS,
    WARP,
    Form,
    GpuSchedule,
    blocks_of,
    sizes_in,
)
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import Extent, evaluate, symbols_of
from wholestep.compiler.plan.model.bodies import Columns, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Reduce, Space
from wholestep.compiler.plan.model.layout import align_up


def schedule_nest(plan: Draft, kernel: Kernel) -> GpuSchedule:
    nest, sizes, costs = kernel.body, sizes_in(plan, kernel), costs_of(plan)
    warp_row = costs.reductions.warp_row
    assert isinstance(nest, Nest)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in nest.rows)
    length: Extent = 1 if nest.vector is None else kernel.axes[nest.vector]
    uses_work_rows = any(plan.buffers[load.buffer].space is Space.WORK for load in nest.stores())
    sums = [s for level in nest.levels for s in level.sums]
    if sums:  # partial column sums: one block per slice of the rows, or per tile of columns of a slice
        slices, width = sums[0].load.shape[0], WARP if isinstance(length, int) and length <= warp_row else THREADS
        assert isinstance(slices, int)
        assert isinstance(length, int)
        elements_per_thread = _row_vector(length)
        if _only_sums(nest):
            return GpuSchedule(
                Form.SUMS,
                THREADS,
                slices * -(-length // (WARP * elements_per_thread)),
                width=WARP,
                vector=elements_per_thread,
            )
        return GpuSchedule(Form.ROWS, THREADS, slices, width=width, vector=elements_per_thread)
    # Elementwise: a grid-stride loop over vectors of adjacent elements.
    if not uses_work_rows and not any(level.reduces for level in nest.levels):
        elements_per_thread = _elementwise_vector(plan, nest, length)
        vectors = rows * -(-evaluate(length, sizes) // elements_per_thread)
        return GpuSchedule(
            Form.ELEMENTS,
            THREADS,
            blocks_of(vectors, THREADS, costs.grids.most_vector_blocks),
            vector=elements_per_thread,
            order=thread_order(plan, kernel, nest, elements_per_thread),
        )
    # Reductions along a row: several short rows share a warp, a row up to `warp_row` has a warp, a longer one a block.
    # The form fixes the order of additions, so it depends on static lengths only, never on the number of rows.
    if isinstance(length, int) and (shares := _rows_in_a_warp(costs.reductions, kernel, nest, length)):
        width, vector = shares
        blocks = blocks_of(rows, THREADS // width, costs.grids.most_vector_blocks)
        return GpuSchedule(Form.ROWS, THREADS, blocks, width=width, vector=vector)
    elements_per_thread, most = _row_vector(length, plan, nest), costs.grids.most_blocks
    if isinstance(length, int) and length <= warp_row:
        return GpuSchedule(
            Form.ROWS, THREADS, blocks_of(rows, THREADS // WARP, most), width=WARP, vector=elements_per_thread
        )
    is_long = isinstance(length, int) and length > 4 * warp_row
    threads = costs.reductions.long_row_threads if is_long else THREADS
    by_row = GpuSchedule(Form.ROWS, threads, blocks_of(rows, 1, most), width=threads, vector=elements_per_thread)
    return _prefetch_next_row(plan, kernel, nest, by_row, rows) if is_long else by_row


def _rows_in_a_warp(costs: ReductionCosts, kernel: Kernel, nest: Nest, length: int) -> tuple[int, int] | None:
    """Threads of a row and adjacent elements per thread, if several short rows share a warp; None if none does.

    They do if a sample has many rows: the pixels of an image.  A row of few elements, or a row that cannot be read in
    vectors, belongs to a single thread.
    """
    per_sample = prod(evaluate(kernel.axes[a], dict.fromkeys(symbols_of((kernel.axes[a],)), 1)) for a in nest.rows)
    each = next((n for n in (8, 4) if length % n == 0), 1)
    if 1 < length // each < WARP and each > 1 and per_sample >= costs.sharing_rows:
        return 1 << (length // each - 1).bit_length(), each
    return (1, each) if length <= costs.narrow_row and per_sample >= costs.pixel_rows else None


def _only_sums(nest: Nest) -> bool:
    """Does a nest compute partial column sums and nothing else?"""
    first, *others = nest.levels
    return not (others or first.stores or first.row_stores or first.reduces)


def _prefetch_next_row(plan: Draft, kernel: Kernel, nest: Nest, schedule: GpuSchedule, rows: int) -> GpuSchedule:
    """One resident block per multiprocessor that prefetches its next row into shared memory; the bits do not change."""
    multiprocessors = target_of(plan).multiprocessors
    bytes = prefetch_bytes(plan, kernel, nest, schedule) if rows > multiprocessors else 0
    return replace(schedule, blocks=multiprocessors, ahead=bytes) if bytes else schedule


def _elementwise_vector(plan: Draft, nest: Nest, length: Extent) -> int:
    """Adjacent elements per thread of an elementwise kernel: 16 bytes of the narrowest type."""
    if not isinstance(length, int) or nest.vector is None or len(nest.levels) > 1:
        return 1
    accesses = [*(load for load, _ in nest.reads()), *nest.stores()]
    vector_accesses = [a for a in accesses if any(axis == nest.vector for i in a.index for axis, _ in i.terms)]
    has_half = any(plan.buffers[a.buffer].type.dtype.is_half for a in vector_accesses)
    counts = (8, 4) if has_half else (4,)
    return next((n for n in counts if length % n == 0), 0) or _padded_vector(plan, nest, length, counts)


def _row_vector(length: Extent, plan: Draft | None = None, nest: Nest | None = None) -> int:
    """Adjacent elements per thread of a row reduction, which may end in the padding of the rows of `nest`.

    It depends on lengths of rows alone, because it determines the order of the row's sums.
    """
    if not isinstance(length, int):
        return 1
    counts = [n for n in (8, 4) if length >= n * WARP]
    even = next((n for n in counts if length % n == 0), 0)
    return even or (1 if plan is None or nest is None else _padded_vector(plan, nest, length, counts))


def _padded_vector(plan: Draft, nest: Nest, length: int, counts: Sequence[int]) -> int:
    return next((n for n in counts if accesses_padded_rows(plan, nest, length, n)), 1)


def schedule_columns(plan: Draft, kernel: Kernel) -> GpuSchedule:
    columns, sizes, costs = kernel.body, sizes_in(plan, kernel), costs_of(plan)
    assert isinstance(columns, Columns)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in columns.rows)
    column_count, reduces = kernel.axes[columns.vector], columns.levels[0].reduces
    length = evaluate(kernel.axes[columns.reduced], sizes)
    if is_short(columns, kernel):
        return _schedule_short_columns(plan, kernel, rows * evaluate(column_count, sizes))
    depth, elements = kernel.axes[columns.reduced], rows * length * evaluate(column_count, sizes)
    lanes, per_thread = _column_packs(costs.reductions, column_count, depth, length, elements, reduces)
    parts = max(PARTS, THREADS // lanes)
    chunk = _part_rows(costs.reductions, depth, parts) * parts
    tiles = rows * -(-evaluate(column_count, sizes) // (lanes * per_thread))
    if length <= chunk or any(r.op == "argmax" for r in reduces):
        return GpuSchedule(
            Form.COLUMNS, THREADS, blocks_of(tiles, 1, costs.grids.most_blocks), width=lanes, vector=per_thread
        )
    chunks = -(-length // chunk)
    groups = -(-chunks // JOINED_CHUNKS)
    bytes = sum(align_up((chunks + groups) * tiles * lanes * per_thread * r.dtype.size) for r in reduces)
    unsplit = GpuSchedule(Form.COLUMNS, THREADS, max(1, tiles), width=lanes, vector=per_thread)
    return replace(unsplit, chunk=chunk, chunks=chunks, scratch=bytes)


def is_short(columns: Columns, kernel: Kernel) -> bool:
    """Has the reduced axis so few elements that one thread adds them, in the order in which warps would?"""
    length = kernel.axes[columns.reduced]
    is_best = any(r.op == "argmax" for r in columns.levels[0].reduces)
    return isinstance(length, int) and length <= PARTS and not is_best


def _schedule_short_columns(plan: Draft, kernel: Kernel, results: int) -> GpuSchedule:
    """One thread per result, or per vector of adjacent results."""
    columns, grids = kernel.body, costs_of(plan).grids
    assert isinstance(columns, Columns)
    across = kernel.axes[columns.vector]
    each = next((n for n in (8, 4) if isinstance(across, int) and across % n == 0), 1)
    blocks = blocks_of(results // each, THREADS, grids.most_vector_blocks)
    return GpuSchedule(Form.ELEMENTS, THREADS, blocks, vector=each)


def _part_rows(costs: ReductionCosts, depth: Extent, parts: int) -> int:
    """Rows that one thread of a split sum adds: more for large images, which have enough blocks to fill the GPU."""
    pixels = evaluate(depth, dict.fromkeys(symbols_of((depth,)), 1))
    rows = pixels // (costs.sample_blocks * parts)
    return max(costs.part_rows, min(costs.most_part_rows, rows - rows % costs.part_rows))


def _column_packs(
    costs: ReductionCosts, across: Extent, depth: Extent, length: int, elements: int, reduces: Sequence[Reduce]
) -> tuple[int, int]:
    """The threads of a block along the columns, and the adjacent columns per thread.

    Several columns per thread, which no bit depends on, if there is enough work.  For few channels with many pixels a
    warp covers several rows at a time; its last threads are idle if the channels are not a power of two.
    """
    is_packable = not any(r.op == "argmax" or r.dtype.size > 4 for r in reduces)
    if not isinstance(across, int) or not is_packable or len(reduces) > costs.most_packed_sums:
        return WARP, 1
    each = 8 if across % 8 == 0 else 1
    if across >= THREADS and each > 1 and length <= costs.short_column:
        return THREADS, 1  # one thread per column, which adds in the order of the warps
    if across >= 8 * WARP:
        return WARP, each if elements >= costs.packed_columns else 1
    pixels = evaluate(depth, dict.fromkeys(symbols_of((depth,)), 1))
    lanes = 1 << (across // each - 1).bit_length()
    return (lanes, each) if lanes <= WARP and pixels >= costs.pixel_rows else (WARP, 1)
