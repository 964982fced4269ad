"""Schedule record of a GPU kernel: its form (work per thread and block), grid, summation order and scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan, Schedule

WARP = 32  # threads of a warp: reductions by shuffles in native/device.h, and all other headers, assume it
# Threads per block that native/product.h, gemm_medium.h, persistent_scan.h and persistent_step.h assume; only long
# rows, direct convolutions and attention use other numbers.
THREADS = 256
PARTS = THREADS // WARP  # parts of a column sum, one per warp of a block; determines the bits
COUNTERS = 1 << 16  # arrival counters of blocks that share a sum; a program allocates them, all zero between kernels


class Form(StrEnum):
    """How the work of a kernel is divided among blocks and threads."""

    ELEMENTS = "elements"  # one thread per element, or per vector of adjacent elements
    ROWS = "rows"  # one thread, one warp or one block per row
    SUMS = "sums"  # partial column sums: one block per tile of columns and slice of the rows
    COLUMNS = "columns"  # column reduction: one block per tile of columns, whose warps share the reduced axis
    PRODUCT = "product"  # tiled GEMM: one block per output tile
    MEDIUM = "middle"  # medium-size float32 GEMM: one block per output tile
    LIBRARY = "library"  # a library's GEMM, followed by one thread per element for the epilogue
    ATTENTION = "attention"  # flash attention: one block per tile of queries, or of keys
    ATTENTION_MMA = "attention mma"  # the same with tensor cores
    GRAPH = "cudnn"  # a library's operation graph: a convolution or an attention
    EXCHANGE = "nccl"  # a collective: transfers between ranks, and one thread per element for the sums
    SCATTER = "scatter"  # one thread per element of the target
    SCATTER_ROWS = "scatter rows"  # one block per row of the target, whose warps share the indices
    SCATTER_TABLE = "scatter table"  # few rows: one block per tile of columns and slice of the indices
    SCATTER_SORTED = "scatter sorted"  # one warp per row of the target, which searches for its row among sorted indices
    DIRECT = "direct"  # convolution: some pixels and output channels per thread; images and weights in shared memory
    GRADIENT = "gradient"  # weight gradient: some channels and outputs of one tap per thread, a batch slice per block
    POOLED_GRADIENT = "pooled gradient"  # weight gradient through a max-pool: some weights per thread
    GROUPED = "grouped"  # grouped convolution: a strip of pixels of some groups per thread
    GROUPED_GRADIENT = "grouped gradient"  # its weight gradient: some weights per thread, a slice of the rows per block


# Partial gradients that one block adds before the group sums are added: a template argument of `ws_join_parts` in
# native/window.h, and part of the size of the counters; determines the bits.
JOINED = 12
# Chunks of a column that one block adds before the sums of these groups are added; determines the bits.
JOINED_CHUNKS = 32


@dataclass(frozen=True)
class GpuSchedule(Schedule):
    """A grid of `blocks` at capacity, times `chunks` along a sum that is split."""

    tag: ClassVar[str] = "gpu"
    heading: ClassVar[str] = f"launch {'form':<10}{'grid':>9} {'threads':>7}"
    form: str = Form.ELEMENTS
    threads: int = THREADS  # threads per block
    blocks: int = 1
    width: int = 1  # threads that share a row
    vector: int = 1  # adjacent elements per thread
    order: tuple[int, ...] = ()  # axes of consecutive threads over elements, fastest last; (): rows, then vectors
    chunk: int = 0  # elements of a sum that one block adds up; 0: all of them
    chunks: int = 1  # number of chunks at capacity
    # GEMM: rows and columns per block, and thread groups that split k; convolution: see `grids/convolution.py`
    tile: tuple[int, ...] = ()
    scratch: int = 0  # bytes for partial sums, placed after the arena's buffers
    scratch_at: int = 0  # offset of the scratch bytes
    counters_at: int = 0  # number of the first arrival counter of the kernel's tiles
    launch: int = 0  # index of the kernel's launch within a step, shared by horizontally fused kernels
    chained: int = 0  # from 1 on: position in a chain of vertically fused kernels, one block per row
    # Persistent scan: batch rows and hidden units per block, then the number of blocks along each
    owns: tuple[int, ...] = ()
    workspace: int = 0  # upper bound of a library's workspace in bytes
    workspace_at: int = 0  # offset of this workspace in the arena
    ahead: int = 0  # bytes of dynamic shared memory, into which a block prefetches its next row or tiles

    @property
    def counters(self) -> int:
        """Counters of split sums, and two per group of blocks with the same rows: barrier arrivals and departures."""
        return self.sum_counters + (2 * self.owns[2] if self.owns else 0)

    @property
    def sum_counters(self) -> int:
        """Arrival counters of split sums: one per tile, and one per group of parts that are added first."""
        if self.form == Form.SCATTER_SORTED:
            return 1  # of the blocks that count digits
        joined = {
            **dict.fromkeys((Form.GRADIENT, Form.GROUPED_GRADIENT, Form.SCATTER_TABLE), JOINED),
            Form.COLUMNS: JOINED_CHUNKS,
        }
        group = joined.get(Form(self.form))
        return 0 if self.chunks <= 1 else self.blocks * (1 if group is None else 1 + -(-self.chunks // group))

    @property
    def text(self) -> str:
        blocks, chunks = self.owns[2:] if self.owns else (self.blocks, self.chunks)
        grid = f"{blocks}x{chunks}" if chunks > 1 else str(blocks)
        form = f"{self.chained}. {self.form}" if self.chained else self.form
        return f"{self.launch:>6} {form:<10}{grid:>9} {self.threads:>7}"


def calls_library(plan: Plan) -> bool:
    """Does the plan pass sizes of a call to a library?  Then a captured graph is valid for one set of sizes only."""
    return any(schedule_of(k).form in (Form.LIBRARY, Form.GRAPH) or _sends_sizes(k) for k in plan.kernels)


def _sends_sizes(kernel: Kernel) -> bool:
    """Do ranks exchange tensors whose shapes depend on the call?"""
    return schedule_of(kernel).form == Form.EXCHANGE and not all(isinstance(count, int) for count in kernel.axes)


def sizes_in(plan: Draft, kernel: Kernel) -> Mapping[str, int]:
    """The capacity of every symbol; for a kernel in a loop also the last value of the loop's index."""
    if kernel.loop is None:
        return plan.sizes
    loop = plan.loops[kernel.loop]
    return {**plan.sizes, loop.symbol: max(0, evaluate(loop.length, plan.sizes) - 1)}


def blocks_of(count: int, per_block: int, most: int) -> int:
    """The number of blocks for `count` items, at least one and at most `most`."""
    return max(1, min(most, -(-count // per_block)))


def schedule_of(kernel: Kernel) -> GpuSchedule:
    """The kernel's schedule, which must be one for a GPU."""
    assert isinstance(kernel.schedule, GpuSchedule), f"kernel {kernel.id} is scheduled for another backend"
    return kernel.schedule
