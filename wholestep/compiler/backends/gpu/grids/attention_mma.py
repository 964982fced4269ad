"""Tiles of flash attention with tensor cores (native/attention_mma.h): which calls it computes, and their grid.

The number of rows in a tile that a block iterates over determines the order of the sums, and so the bits; it depends on
the dtype, the head widths and the target's shared memory.  The number of rows that a block owns may also depend on the
capacity, because it does not affect the bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.gpu.cost_model import AttentionCosts
from wholestep.compiler.backends.gpu.grids.attention_calls import Axes, makes_keys, makes_queries
from wholestep.compiler.backends.gpu.kernel_schedule import WARP, Form, GpuSchedule, sizes_in
from wholestep.compiler.backends.gpu.target import GpuTarget, target_of
from wholestep.compiler.ir.types import DType, evaluate, float32
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Draft, Kernel

FRAGMENT = 16  # rows and columns of a fragment in native/attention_mma.h
HELD = 64  # columns of queries, times fragments, that a warp of the forward pass keeps in registers
ROW_PADDING = 16  # bytes after each row in shared memory, against bank conflicts


@dataclass(frozen=True)
class MmaTiles:
    """The template arguments of a call: `GpuSchedule.tile` holds them in this order."""

    warps: int  # warps per block
    fragments: int  # fragments of 16 rows per warp
    others: int  # rows of a tile that the block iterates over
    stages: int  # number of buffers for such tiles
    parts: int  # blocks per tile of keys: 2 if separate blocks compute the gradients of keys and of values
    short: int = 0  # 1 if one block computes all gradients of a head, whose queries and keys fit one tile each

    @property
    def rows(self) -> int:
        """Rows that a block owns."""
        return FRAGMENT * self.fragments * self.warps

    def shared_bytes(self, call: Call, width: int, values: int) -> int:
        row = sum(_round_up(e) * call.dtype.size + ROW_PADDING for e in (width, values))
        if call.routine == "attention":
            return self.rows * (_round_up(width) * call.dtype.size + ROW_PADDING) + self.stages * self.others * row
        statistics = 2 * self.others * float32.size
        if self.short:
            return 2 * self.rows * row + statistics
        return self.rows * row + self.stages * self.others * row + statistics

    def holds_queries(self, call: Call) -> bool:
        """Does a warp of the forward pass keep its queries in registers?"""
        width = dict(call.extents)["width"]
        return call.routine == "attention" and isinstance(width, int) and self.fragments * _round_up(width) <= HELD

    @property
    def as_tile(self) -> tuple[int, ...]:
        return (self.warps, self.fragments, self.others, self.stages, self.parts, self.short)


def _round_up(columns: int) -> int:
    return -(-columns // FRAGMENT) * FRAGMENT


def has_mma(target: GpuTarget, dtype: DType) -> bool:
    """Do tensor cores multiply operands of this dtype?  They do for float32 only if it may be rounded to tf32."""
    return target.tensor_cores and (dtype.is_half or (dtype == float32 and target.tf32))


def schedule_mma(plan: Draft, kernel: Kernel) -> GpuSchedule:
    """One block per tile of keys (and part of it), if keys have results, then one per tile of queries."""
    call, axes, sizes = kernel.body, Axes.of(kernel), sizes_in(plan, kernel)
    assert isinstance(call, Call)
    target = target_of(plan)
    lead = prod(evaluate(kernel.axes[a], sizes) for a in axes.lead)
    names = ("group", "queries", "keys", "width", "values")
    heads, queries, keys, width, values = (evaluate(kernel.axes[getattr(axes, name)], sizes) for name in names)
    tiles = choose_tiles(target, call, (queries, keys), width, values)
    blocks = lead * heads * max(1, -(-queries // tiles.rows)) if makes_queries(call) else 0
    blocks += lead * tiles.parts * max(1, -(-keys // tiles.rows)) if makes_keys(call) else 0
    blocks = lead if tiles.short else blocks
    shared = tiles.shared_bytes(call, width, values)
    return GpuSchedule(Form.ATTENTION_MMA, WARP * tiles.warps, max(1, blocks), tile=tiles.as_tile, ahead=shared)


def choose_tiles(target: GpuTarget, call: Call, lengths: tuple[int, int], width: int, values: int) -> MmaTiles:
    """The first tiles, largest first, whose operands fit the shared memory of a block; `lengths`: queries, keys."""
    costs = target.cost_model.attention
    tiles = (*_short_tiles(costs, call, max(lengths), width, values), *_tiles(costs, call, lengths, width, values))
    fitting = (t for t in tiles if _fits(target, t, call, width, values))
    chosen = next(fitting, None)
    assert chosen is not None, f"heads of {width} and {values} columns passed the limit of {target}"
    return chosen


def _fits(target: GpuTarget, tiles: MmaTiles, call: Call, width: int, values: int) -> bool:
    return tiles.shared_bytes(call, width, values) <= target.shared_memory


def _short_tiles(costs: AttentionCosts, call: Call, longest: int, width: int, values: int) -> Iterator[MmaTiles]:
    warps = max(1, -(-longest // FRAGMENT))
    narrow = _round_up(width) + _round_up(values) <= costs.mma_short_columns
    if warps <= costs.mma_warps and narrow and makes_keys(call) and makes_queries(call):
        yield MmaTiles(warps, 1, warps * FRAGMENT, 1, 1, short=1)


def _tiles(costs: AttentionCosts, call: Call, lengths: tuple[int, int], width: int, values: int) -> Iterator[MmaTiles]:
    owned = max([lengths[0]] * makes_queries(call) + [lengths[1]] * makes_keys(call))
    widths = _round_up(width), _round_up(values)
    forward = call.routine == "attention"
    row = max(widths) * call.dtype.size
    others = costs.mma_keys if forward and row <= costs.mma_wide_row else costs.mma_others
    others = FRAGMENT if max(widths) > costs.mma_wide_columns else others
    two_fragments = row <= (costs.mma_forward_row if forward else costs.mma_backward_row)
    parts = 2 if makes_keys(call) and sum(widths) > costs.mma_columns else 1
    warps = next((w for w in (1, 2) if owned <= w * FRAGMENT), costs.mma_warps)
    fragments = 2 if two_fragments and owned > warps * FRAGMENT else 1
    for rows, stages in ((others, 2), (others, 1), (FRAGMENT, 2), (FRAGMENT, 1)):
        yield MmaTiles(warps, fragments, rows, stages, parts)
