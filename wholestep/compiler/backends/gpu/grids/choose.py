"""The grid of every kernel: one scheduling function per kernel body, in `SCHEDULE`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

from wholestep.compiler.backends.gpu.grids.attention import schedule_attention
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
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.lower.draft import count_work
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan

# Bytes for small vectors, of which every rank receives all: `cuda/runtime/collectives.py` relies on this size.
EXCHANGE_ROOM = 64 << 10
ROUNDED = "of these round float32 operands to tf32, as PyTorch does by default; precision='float32' is exact"


def choose_grids(draft: Draft) -> Draft:
    """Gives every kernel its form, its grid and the split of its sums; launches and offsets are chosen later."""
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
