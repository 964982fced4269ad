"""The grid of every kernel: one scheduling function per kernel body, in `SCHEDULE`.

Attention has three: tensor cores compute half types, and float32 in tf32 (`attention_mma.py`); native/attention.h
computes other calls; a call that a library computes instead (`Libraries.why_not`) has no tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.gpu.cost_model import AttentionCosts
from wholestep.compiler.backends.gpu.grids.attention_calls import Axes, makes_keys, makes_queries
from wholestep.compiler.backends.gpu.grids.attention_mma import has_mma, schedule_mma
from wholestep.compiler.backends.gpu.grids.convolution import schedule_window
from wholestep.compiler.backends.gpu.grids.gemm import schedule_dot
from wholestep.compiler.backends.gpu.grids.reductions import schedule_columns, schedule_nest
from wholestep.compiler.backends.gpu.grids.scatter import schedule_scatter
from wholestep.compiler.backends.gpu.kernel_schedule import (
    THREADS,
    Form,
    GpuSchedule,
    blocks_of,
    schedule_of,
    sizes_in,
)
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import Extent, evaluate, float32
from wholestep.compiler.plan.lower.draft import count_work
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan

ROW_GROUP = 8  # threads that share rows, in native/attention.h


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
    return GpuSchedule(Form.ATTENTION, tile // rows * ROW_GROUP, max(1, blocks), tile=(tile, rows))


# Up to this many bytes, every rank receives the whole vector of a collective: see `cuda/runtime/collectives.py`.
EXCHANGE_ROOM = 64 << 10
ROUNDED = "of these round float32 operands to tf32, as PyTorch does by default; precision='float32' is exact"


def choose_grids(draft: Draft) -> Draft:
    """Chooses form, grid and split of the sums of every kernel; launches and offsets are chosen later."""
    kernels = tuple(replace(k, schedule=choose_grid(draft, k)) for k in count_work(draft))
    return replace(draft, kernels=kernels)


def choose_grid(draft: Draft, kernel: Kernel) -> GpuSchedule:
    return SCHEDULE[type(kernel.body)](draft, kernel)


def _schedule_exchange(plan: Draft, kernel: Kernel) -> GpuSchedule:
    assert isinstance(kernel.body, Exchange)
    sizes = sizes_in(plan, kernel)
    largest = max(evaluate(count, sizes) for count in kernel.axes)
    workspace = exchange_workspace(kernel.body, sizes)
    return GpuSchedule(
        Form.EXCHANGE, THREADS, blocks_of(largest, THREADS, costs_of(plan).grids.most_blocks), workspace=workspace
    )


def exchange_workspace(exchange: Exchange, sizes: Mapping[str, int]) -> int:
    """Workspace bytes for the data that the other ranks send; they do not depend on the number of ranks."""
    if exchange.collective not in ("all_reduce", "reduce_scatter"):
        return 0
    return sum(evaluate(load.shape[0], sizes) for load in exchange.operands) * exchange.dtype.size + EXCHANGE_ROOM


def library_notes(plan: Plan) -> tuple[str, ...]:
    """Report notes: how many convolutions and attention calls a library or our kernels compute, and why."""
    libraries, counts = target_of(plan).load_libraries(), Counter[str]()
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            reason = libraries.why_not(plan, kernel, plan.sizes)
            kind = "attention" if kernel.body.routine == "attention" else "attention backward"
            by = (
                f"our flash attention kernel: {reason}"
                if reason
                else f"{libraries.name}, with a deterministic algorithm"
            )
            counts[f"x {kind} by {by}"] += 1
    for kernel in plan.kernels:
        if isinstance(kernel.body, Window) and "max_pool" not in kernel.body.op:
            reason = libraries.why_not(plan, kernel, plan.sizes)
            form = "our implicit GEMM" if schedule_of(kernel).form == Form.PRODUCT else "our direct kernels"
            by = f"{form}: {reason}" if reason else f"{libraries.name}, channels-last, with deterministic algorithms"
            counts[f"convolutions and adjoints by {by}"] += 1
            if not reason and plan.buffers[kernel.body.operands[0].load.buffer].type.dtype == float32:
                counts[ROUNDED] += 1
    return tuple(f"{count} {text}" for text, count in counts.items())


SCHEDULE: Mapping[type, Callable[[Draft, Kernel], GpuSchedule]] = {
    Nest: schedule_nest,
    Columns: schedule_columns,
    Dot: schedule_dot,
    Scatter: schedule_scatter,
    Window: schedule_window,
    Call: schedule_attention,
    Exchange: _schedule_exchange,
}
