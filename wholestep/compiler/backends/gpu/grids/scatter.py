"""Grids of scatters: tables of partial sums for few target rows, sorted indices for many, else a block per target row.

Each target element is the sum of its updates in an order that depends on the number of indices, their values and the
lengths of the target alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from wholestep.compiler.backends.gpu.cost_model import ScatterCosts
from wholestep.compiler.backends.gpu.kernel_schedule import (
    JOINED,
    THREADS,
    WARP,
    Form,
    GpuSchedule,
    blocks_of,
    sizes_in,
)
from wholestep.compiler.backends.gpu.strides import is_multiple
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import Extent, evaluate, product
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Draft, Kernel
from wholestep.compiler.plan.model.layout import align_up

BLOCK_KEYS, DIGITS = 2048, 256  # keys per block and digits of a pass: `ws_count_digits` of native/scatter.h
RANKED_KEYS = 32  # keys per block of `ws_rank_keys`
SLICE = 32  # sorted keys per slice: updates of one row are added within slices first, which determines the bits


def row_axes_of(kernel: Kernel, scatter: Scatter) -> list[int]:
    """The axes of a target row: all axes but the axes of the indices."""
    axes = [i.plain for d, i in enumerate(scatter.target.index) if d != scatter.at]
    assert None not in axes, "a scatter's target is indexed by axes"
    return [a for a in axes if a is not None]


def row_vector(kernel: Kernel, scatter: Scatter, counts: tuple[int, ...]) -> int:
    """Adjacent elements of a row that are also adjacent in memory: the largest of `counts`, or 1."""
    axes = row_axes_of(kernel, scatter)
    if not axes or scatter.at == len(scatter.target.shape) - 1:
        return 1
    return next((n for n in counts if is_multiple(kernel.axes[axes[-1]], n)), 1)


@dataclass(frozen=True)
class Preparation:
    """A launch before a sorted scatter: a step of the sort, or the sums of slices."""

    step: str
    blocks: int
    shift: int = 0  # the lowest bit of the digit that this pass sorts by
    source: int = -1  # the key array that is read, 0 or 1; -1: the indices themselves
    reads_updates: bool = False


@dataclass(frozen=True)
class SortedScatter:
    """A scatter with sorted indices, at the largest batch: its scratch memory, and the launches before it."""

    indices: int
    rows: int  # rows of the target
    row: int  # elements per target row
    vector: int
    lanes: int  # threads that share a row, or a part of one
    pieces: int  # vectors per thread
    size: int  # bytes per element of a sum
    ranked: bool  # does one launch sort all keys, by comparing all pairs?

    @property
    def wide(self) -> int:
        """Elements of a row that its threads add up at a time."""
        return self.lanes * self.pieces * self.vector

    @property
    def across(self) -> int:
        """Groups of threads that share a row."""
        return -(-self.row // self.wide)

    def blocks(self, items: int, most: int) -> int:
        """Blocks for this many rows or slices."""
        return blocks_of(items * self.across, THREADS // self.lanes, most)

    @property
    def passes(self) -> int:
        """Passes of the radix sort: one per 8 bits of a row's number."""
        return 0 if self.ranked else max(1, -(-(self.rows - 1).bit_length() // 8))

    @property
    def sort_blocks(self) -> int:
        return -(-self.indices // BLOCK_KEYS)

    def keys_at(self, number: int) -> int:
        """Offset of one of the two key arrays in scratch memory; the last pass of the sort writes array 0."""
        return number * align_up(8 * self.indices)

    @property
    def counts_at(self) -> int:
        return self.keys_at(1 if self.ranked else 2)

    @property
    def slices_at(self) -> int:
        return self.counts_at + (0 if self.ranked else align_up(4 * DIGITS * self.sort_blocks))

    @property
    def scratch(self) -> int:
        return self.slices_at + align_up(self.indices // SLICE * self.row * self.size)

    def preparations(self, most_blocks: int) -> tuple[Preparation, ...]:
        """The launches before the scatter, in order."""
        if self.ranked:
            sort = [Preparation("rank", -(-self.indices // RANKED_KEYS))]
        else:
            sort = []
            for number in range(self.passes):
                source = -1 if number == 0 else (self.passes - number) % 2
                sort += [Preparation(step, self.sort_blocks, 8 * number, source) for step in ("count", "place")]
        if self.indices < SLICE:
            return tuple(sort)
        return (*sort, Preparation("slices", self.blocks(self.indices // SLICE, most_blocks), reads_updates=True))


def sorted_scatter(plan: Draft, kernel: Kernel) -> SortedScatter:
    scatter, sizes, costs = kernel.body, sizes_in(plan, kernel), costs_of(plan).scatter
    assert isinstance(scatter, Scatter)
    indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
    row = prod(evaluate(kernel.axes[a], sizes) for a in row_axes_of(kernel, scatter))
    vector = row_vector(kernel, scatter, (8, 4))
    lanes = min(WARP, 1 << (-(-row // vector) - 1).bit_length())
    return SortedScatter(
        indices,
        evaluate(scatter.target.shape[scatter.at], sizes),
        row,
        vector,
        lanes,
        min(costs.pieces_per_thread, -(-row // (lanes * vector))),
        max(4, plan.buffers[scatter.target.buffer].type.dtype.size),
        indices <= costs.most_ranked,
    )


def preparations_of(plan: Draft, kernel: Kernel) -> tuple[Preparation, ...]:
    return sorted_scatter(plan, kernel).preparations(costs_of(plan).grids.most_vector_blocks)


def table_lanes(plan: Draft, kernel: Kernel, scatter: Scatter) -> tuple[int, int] | None:
    """Threads along a row, and elements per thread, if tables of all target rows fit shared memory; else None."""
    rows, row = scatter.target.shape[scatter.at], product([kernel.axes[a] for a in row_axes_of(kernel, scatter)])
    if not isinstance(rows, int) or not isinstance(row, int) or scatter.onto or kernel.loop is not None:
        return None
    size = max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    for each in (row_vector(kernel, scatter, (8,)), row_vector(kernel, scatter, (4,)), 1):
        # A block has few sums, so that joining the slices takes few rounds; its rows are whole sectors of memory.
        lanes = max(8, 1 << (max(1, THREADS // (rows * each)).bit_length() - 1))
        lanes = min(lanes, 1 << (-(-row // each) - 1).bit_length())
        if rows * each * THREADS * size <= costs_of(plan).scatter.shared_bytes:
            return lanes, each
    return None


def schedule_table(plan: Draft, kernel: Kernel, scatter: Scatter, lanes: int, each: int) -> GpuSchedule:
    sizes, costs = sizes_in(plan, kernel), costs_of(plan).scatter
    indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
    row = prod(evaluate(kernel.axes[a], sizes) for a in row_axes_of(kernel, scatter))
    tiles, least = -(-row // (lanes * each)), max(costs.slice_rows, 4 * (THREADS // lanes))
    slices = blocks_of(indices, least, costs.most_slices)
    schedule = GpuSchedule(Form.SCATTER_TABLE, THREADS, tiles, width=lanes, vector=each, chunk=least, chunks=slices)
    rows, size = scatter.target.shape[scatter.at], max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    assert isinstance(rows, int), "`table_lanes` has checked it"
    parts = slices + -(-slices // JOINED)
    return replace(schedule, scratch=align_up(tiles * parts * rows * lanes * each * size))


def schedule_scatter(plan: Draft, kernel: Kernel) -> GpuSchedule:
    scatter, sizes, costs = kernel.body, sizes_in(plan, kernel), costs_of(plan)
    assert isinstance(scatter, Scatter)
    rows = evaluate(scatter.target.shape[scatter.at], sizes)
    indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
    lanes = table_lanes(plan, kernel, scatter)
    if lanes is not None:
        return schedule_table(plan, kernel, scatter, *lanes)
    row: Extent = product([kernel.axes[a] for a in row_axes_of(kernel, scatter)])
    size = max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    fits = isinstance(row, int) and row * size * (THREADS // WARP) <= costs.scatter.shared_bytes
    elements = prod(evaluate(e, sizes) for e in scatter.target.shape)
    if kernel.loop is None and _is_sorted(costs.scatter, fits, rows, indices, elements):
        sort_schedule = sorted_scatter(plan, kernel)
        blocks = sort_schedule.blocks(indices if scatter.onto else rows, costs.grids.most_vector_blocks)
        return GpuSchedule(
            Form.SCATTER_SORTED, THREADS, blocks, vector=sort_schedule.vector, scratch=sort_schedule.scratch
        )
    if fits:
        assert isinstance(row, int)
        return GpuSchedule(Form.SCATTER_ROWS, THREADS, blocks_of(rows, 1, costs.grids.most_blocks), width=row)
    return GpuSchedule(Form.SCATTER, THREADS, blocks_of(elements, THREADS, costs.grids.most_blocks))


def _is_sorted(costs: ScatterCosts, fits: bool, rows: int, indices: int, elements: int) -> bool:
    """Does a sort take less time than blocks, or threads if rows are too wide, that scan all indices?"""
    if fits:
        return rows * indices >= costs.sorted_work or indices > costs.sorted_indices
    return elements * indices >= costs.scanned_work
