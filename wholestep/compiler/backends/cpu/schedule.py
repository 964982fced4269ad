"""Draft -> Plan, in order: layouts, transposed copies, tiling, thread partitioning, memory.

They are decided together: which buffers are alive at the same time follows from the regions between barriers, and the
regions from what each thread owns ([003](../../../../docs/decisions/003-schedule-in-the-plan.md)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from wholestep.compiler.backends.cpu.arena import place
from wholestep.compiler.backends.cpu.cost_model import Settings, settings_of
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.layout.operand_layout import CpuOperands
from wholestep.compiler.backends.cpu.layout.packed_layout import choose_layouts
from wholestep.compiler.backends.cpu.layout.transposed_copies import store_transposes
from wholestep.compiler.backends.cpu.layout.transposed_weights import mark_transposed, transpose_states
from wholestep.compiler.backends.cpu.partition.loops import partition_with_loops
from wholestep.compiler.backends.cpu.tiling import tile_kernels
from wholestep.compiler.plan.lower.draft import count_work, make_draft
from wholestep.compiler.plan.memory.first_fit import place_copies
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Plan, Space
from wholestep.compiler.plan.model.request import PlanRequest


def schedule(draft: Draft, settings: Settings) -> Plan:
    """The plan of a draft for a CPU."""
    sizes = draft.sizes
    draft = choose_layouts(draft, settings.long_row)  # panels for states and for what contractions read by columns
    draft = store_transposes(draft)  # a state that is read by rows gets a transposed copy
    draft, work_bytes = tile_kernels(draft, settings)  # block sizes and workspace of every kernel
    # Partition the kernels among the threads and decide where barriers are; the kernels are then ordered by region.
    kernels, loops = partition_with_loops(count_work(draft), draft.loops, draft.buffers, sizes, settings)
    buffers, arena_bytes = place(draft.buffers, kernels, settings.overwrite)  # offsets in the arena
    buffers, copy_bytes = place_copies(buffers)
    kernels = with_prefetches(kernels, buffers, arena_bytes, settings.prefetched)  # overlaps memory with arithmetic
    return Plan(
        **{f.name: getattr(draft, f.name) for f in fields(draft) if f.name not in ("buffers", "kernels", "loops")},
        buffers=tuple(buffers),
        kernels=tuple(kernels),
        loops=tuple(loops),
        arena_bytes=arena_bytes,
        copy_bytes=copy_bytes,
        work_bytes=work_bytes,
        regions=max((schedule_of(k).region for k in kernels), default=0) + 1,
    )


def with_prefetches(kernels: Sequence[Kernel], buffers: Sequence[Buffer], arena: int, least: int) -> list[Kernel]:
    """The kernels, with software prefetch if a step accesses more memory than the caches hold (`least` bytes)."""
    state_bytes = sum(b.bytes for b in buffers if b.space in (Space.STATE, Space.COPY))
    if state_bytes + arena < least:
        return list(kernels)
    return [replace(k, schedule=replace(schedule_of(k), prefetch=True)) for k in kernels]


def make_plan(request: PlanRequest, settings: Settings | None = None) -> Plan:
    """The plan of one entry point for a CPU."""
    settings = settings or settings_of(request.target)
    if request.frugal:
        settings = replace(settings, frugal=True)
    stored, transposed = transpose_states(request.graph)
    draft = mark_transposed(make_draft(replace(request, graph=stored), CpuOperands()), transposed)
    return schedule(draft, settings)
