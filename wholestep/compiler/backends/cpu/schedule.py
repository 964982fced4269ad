"""Draft -> Plan, in order: layouts, transposes, blocks, splits, memory.

All of them are decided together: which buffers are alive at the same time follows from the regions, and these from what
threads own ([003](../../../../docs/decisions/003-the-schedule-is-in-the-plan.md)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

from wholestep.compiler.backends.cpu.arena import place
from wholestep.compiler.backends.cpu.cost_model import Settings, settings_of
from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.layout.operand_layout import CpuOperands
from wholestep.compiler.backends.cpu.layout.packed_layout import lay_out
from wholestep.compiler.backends.cpu.layout.transposed_copies import store_transposes
from wholestep.compiler.backends.cpu.layout.transposed_weights import mark_turned, turn_states
from wholestep.compiler.backends.cpu.partition.loops import split_with_loops
from wholestep.compiler.backends.cpu.tiling import block_kernels
from wholestep.compiler.plan.lower.draft import count_work, make_draft
from wholestep.compiler.plan.memory.first_fit import place_copies
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Plan, Space
from wholestep.compiler.plan.model.request import PlanRequest


def schedule(draft: Draft, settings: Settings) -> Plan:
    """The plan of a draft on a CPU."""
    sizes = draft.sizes
    draft = lay_out(draft, settings.long_row)  # states, and what contractions read by columns, lie in panels
    draft = store_transposes(draft)  # a state that is read by rows has its transpose beside it
    draft, work_bytes = block_kernels(draft, settings)  # every kernel has its blocks and its workspace
    # Who computes what, and where the barriers are: kernels stand in the order of their regions.
    kernels, loops = split_with_loops(count_work(draft), draft.loops, draft.buffers, sizes, settings)
    buffers, arena_bytes = place(draft.buffers, kernels, settings.overwrite)  # every byte has its place
    buffers, copy_bytes = place_copies(buffers)
    kernels = with_prefetches(kernels, buffers, arena_bytes, settings.prefetched)  # memory is idle while products run
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
    """The kernels, told to prefetch where a step passes over more memory than caches hold."""
    kept = sum(b.bytes for b in buffers if b.space in (Space.STATE, Space.COPY))
    if kept + arena < least:
        return list(kernels)
    return [replace(k, schedule=replace(schedule_of(k), prefetch=True)) for k in kernels]


def make_plan(request: PlanRequest, settings: Settings | None = None) -> Plan:
    """The plan of one entry point on a CPU."""
    settings = settings or settings_of(request.target)
    if request.frugal:
        settings = replace(settings, frugal=True)
    stored, turned = turn_states(request.graph)
    draft = mark_turned(make_draft(replace(request, graph=stored), CpuOperands()), turned)
    return schedule(draft, settings)
