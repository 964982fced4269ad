"""Attention on a GPU: tiles and grids of our flash attention kernels.

Tensor cores compute half types, and float32 in tf32 (`attention_mma.py`); native/attention.h computes other calls.
A call that a library computes instead (`Libraries.why_not`) has no tile.
"""

from __future__ import annotations

from math import prod

from wholestep.compiler.backends.gpu.cost_model import AttentionCosts
from wholestep.compiler.backends.gpu.grids.attention_calls import Axes, makes_keys, makes_queries
from wholestep.compiler.backends.gpu.grids.attention_mma import has_mma, schedule_mma
from wholestep.compiler.backends.gpu.kernel_schedule import Form, GpuSchedule, sizes_in
from wholestep.compiler.backends.gpu.target import target_of
from wholestep.compiler.ir.types import Extent, evaluate
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Draft, Kernel

GROUP = 8  # threads that share rows, in native/attention.h


def tile_of(costs: AttentionCosts, call: Call, width: Extent, values: Extent) -> int:
    """Rows per tile; it determines the bits, and depends on the type and the head widths only."""
    size = call.dtype.accumulate.size
    wide = any(not isinstance(e, int) or e * size > costs.wide_head for e in (width, values))
    return costs.narrow_tile if size > 4 or wide else costs.tile


def schedule_attention(plan: Draft, kernel: Kernel) -> GpuSchedule:
    """A library call, or our grid: blocks for tiles of keys, if keys have results, then for tiles of queries."""
    call, axes, sizes = kernel.body, Axes.of(kernel), sizes_in(plan, kernel)
    assert isinstance(call, Call)
    target = target_of(plan)
    libraries, costs = target.load_libraries(), target.cost_model.attention
    if libraries.why_not(plan, kernel, sizes) is None:
        return libraries.schedule(plan, kernel)
    if has_mma(target, call.dtype):
        return schedule_mma(plan, kernel)
    tile = tile_of(costs, call, kernel.axes[axes.width], kernel.axes[axes.values])
    lead = prod(evaluate(kernel.axes[a], sizes) for a in axes.lead)
    down, across = (max(1, -(-evaluate(kernel.axes[a], sizes) // tile)) for a in (axes.queries, axes.keys))
    heads = evaluate(kernel.axes[axes.group], sizes)
    blocks = lead * heads * down if makes_queries(call) else 0
    blocks += lead * across if makes_keys(call) else 0
    rows = next((rows for least, rows in costs.rows_per_group if blocks >= least and tile == costs.tile), 1)
    return GpuSchedule(Form.ATTENTION, tile // rows * GROUP, max(1, blocks), tile=(tile, rows))
