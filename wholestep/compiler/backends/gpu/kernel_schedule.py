"""How a GPU runs a kernel: which threads compute what, in which order sums are made, what scratch memory that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.plan.model.kernel import Kernel, Plan, Schedule

# Forms: what the threads of a kernel share among them.
ELEMENTS = "elements"  # a thread an element
ROWS = "rows"  # a warp or a block a row
SUMS = "sums"  # some columns of a part of the rows a block, whose warps share them; it leaves what they add up to
COLUMNS = "columns"  # 32 columns a block, whose warps share the axis that is added up
PRODUCT = "product"  # a tile a block
MIDDLE = "middle"  # a product of a middle size: a tile a block
LIBRARY = "library"  # a product of cuBLASLt, and a thread an element for what follows it
ATTENTION = "attention"  # a tile of queries, or of keys, a block
GRAPH = "cudnn"  # a graph of cuDNN
EXCHANGE = "nccl"  # what ranks send each other, and a thread an element for what is added
SCATTER = "scatter"  # a thread an element of the target
SCATTER_ROWS = "scatter rows"  # a block a row of the target, whose warps share the indices
SCATTER_SORTED = "scatter sorted"  # a warp a row of the target, which finds its own among sorted indices
DIRECT = "direct"  # of a convolution: some pixels and outputs a thread; images and weights in shared memory
GRADIENT = "gradient"  # of weights: channels and outputs of a tap a thread, a part of the batch a block
POOLED_GRADIENT = "pooled gradient"  # the same through a pool: some weights a thread

JOINED = 12  # parts of a gradient are added by one block, then the sums of such groups: part of what the bits are


@dataclass(frozen=True)
class CudaSchedule(Schedule):
    """A grid of `blocks` at capacity, and `chunks` of them along a long sum."""

    tag: ClassVar[str] = "cuda"
    heading: ClassVar[str] = f"launch {'form':<10}{'grid':>9} {'threads':>7}"
    form: str = ELEMENTS
    threads: int = 256  # of a block
    blocks: int = 1
    width: int = 1  # of rows: threads that share one
    vector: int = 1  # elements side by side that a thread has
    chunk: int = 0  # of a sum: how much one block adds up; 0: all of it
    chunks: int = 1  # at capacity
    # Of a product: rows and columns of a block, and groups of threads that share k; of windows: see `convolution/direct.py`
    tile: tuple[int, ...] = ()
    scratch: int = 0  # bytes behind the arena's buffers, for what the chunks leave,
    scratch_at: int = 0  # from this one on
    counters_at: int = 0  # the first counter of its tiles
    launch: int = 0  # its number in a step; kernels of one number share it
    chained: int = 0  # from 1 on: its place among kernels that run one after the other in the same blocks, a row each
    # In a loop that is one kernel: rows and units of a block, and blocks along both
    owns: tuple[int, ...] = ()
    workspace: int = 0  # the most bytes that a library may use,
    workspace_at: int = 0  # in the arena from this one on
    ahead: int = 0  # bytes of shared memory for the next row of a block, which is on its way

    @property
    def counters(self) -> int:
        """Those of sums, and two for blocks of the same rows, that come somewhere and leave."""
        return self.sum_counters + (2 * self.owns[2] if self.owns else 0)

    @property
    def sum_counters(self) -> int:
        """Of blocks that share a sum: one for each tile, and one for each group of parts that is joined first."""
        if self.chunks <= 1:
            return 0
        return self.blocks * (1 + -(-self.chunks // JOINED)) if self.form == GRADIENT else self.blocks

    @property
    def text(self) -> str:
        blocks, chunks = self.owns[2:] if self.owns else (self.blocks, self.chunks)
        grid = f"{blocks}x{chunks}" if chunks > 1 else str(blocks)
        form = f"{self.chained}. {self.form}" if self.chained else self.form
        return f"{self.launch:>6} {form:<10}{grid:>9} {self.threads:>7}"


def sort_grid_blocks(schedule: CudaSchedule) -> int:
    """The grid that sorts the indices of a scatter: each has 8 bytes of scratch memory and a thread."""
    return -(-schedule.scratch // (8 * schedule.threads))


def calls_library(plan: Plan) -> bool:
    """Does a plan tell a library sizes of a call?  Then a graph of it is for one set of them."""
    return any(schedule_of(k).form in (LIBRARY, GRAPH) or _sends_sizes(k) for k in plan.kernels)


def _sends_sizes(kernel: Kernel) -> bool:
    """Do ranks exchange tensors whose shapes a call decides?"""
    return schedule_of(kernel).form == EXCHANGE and not all(isinstance(count, int) for count in kernel.axes)


def schedule_of(kernel: Kernel) -> CudaSchedule:
    """The schedule of a kernel that was scheduled for a GPU."""
    assert isinstance(kernel.schedule, CudaSchedule), f"kernel {kernel.id} is scheduled for another backend"
    return kernel.schedule
