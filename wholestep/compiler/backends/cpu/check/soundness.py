"""Checks that a plan is sound on the CPU: ownership and barriers, arena lifetimes, layouts and copies.

`check_cpu` checks what our own scheduler may get wrong; `check_cpu_file` also protects native code from foreign plans.
"""

from __future__ import annotations

from itertools import pairwise

from wholestep.compiler.backends.cpu.arena import may_follow
from wholestep.compiler.backends.cpu.kernel_schedule import Blocks, Queries, Tiles, schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import PAIRS, PANELS, is_stored_transposed, state_layout
from wholestep.compiler.backends.cpu.partition.ownership import kernel_granule, window_axes
from wholestep.compiler.ir.state_partition import StatePartition
from wholestep.compiler.ir.types import DType, evaluate
from wholestep.compiler.plan.check.soundness import loads_of, need
from wholestep.compiler.plan.model.bodies import Scatter, Window
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Layout, Plan, Space

INNER = {Kind.DOT: Blocks, Kind.CALL: Queries, Kind.WINDOW: Tiles}


def check_cpu(plan: Plan) -> None:
    """Raise PlanError unless the schedules and the arena of a plan made here are sound."""
    for kernel in plan.kernels:
        schedule, axes = schedule_of(kernel), range(len(kernel.axes))
        need(
            0 <= schedule.region < plan.regions,
            f"the region of kernel {kernel.id} must be below {plan.regions}; received {schedule.region}",
        )
        need(
            schedule.split is None or schedule.split in axes, f"kernel {kernel.id} must be split along one of its axes"
        )
    # No region contains kernels of two loops, or kernels of a loop and of none.
    for before, after in pairwise(plan.kernels):
        barrier = schedule_of(before).region < schedule_of(after).region
        need(before.loop == after.loop or barrier, f"a barrier must separate kernel {after.id} from another loop")
    _check_arena(plan)


def check_cpu_file(plan: Plan) -> None:
    """Raise PlanError unless the CPU's scheduler could have produced this plan: for files of unknown origin."""
    from wholestep.compiler.backends.cpu.check.routines import check_call, check_dot, check_scatter

    routines = {Kind.CALL: check_call, Kind.DOT: check_dot, Kind.SCATTER: check_scatter}
    for buffer in plan.buffers:
        _check_layout(buffer)
    for kernel in plan.kernels:
        inner = INNER.get(kernel.kind, type(None))
        scheduled = isinstance(schedule_of(kernel).inner, inner)
        need(scheduled, f"kernel {kernel.id} must have the schedule of a {kernel.kind.value}")
        if kernel.kind in routines:
            routines[kernel.kind](plan, kernel, need)
        elif kernel.kind is Kind.WINDOW:
            from wholestep.compiler.backends.cpu.check.convolution import check_window

            check_window(plan, kernel, need)
        _check_split(kernel)
        _check_copies(plan, kernel)
        _check_aliases(plan, kernel)


def _check_layout(buffer: Buffer) -> None:
    where = f"buffer {buffer.id}"
    need(buffer.layout in (Layout.ROWS, PANELS, PAIRS), f"{where} must be stored in rows, panels or pairs")
    paired = buffer.space in (Space.COPY, Space.WORK) and buffer.type.dtype.is_half
    need(buffer.layout != PAIRS or paired, f"{where} is stored in pairs, so it must have half elements")
    if buffer.space is Space.STATE:
        need(buffer.layout == state_layout(buffer.type), f"{where} must have the layout of a state")
        transposed = not buffer.parts and is_stored_transposed(buffer.part_type, buffer.by_columns)
        need(buffer.transposed == transposed, f"{where} must be transposed if and only if its state is")
        need(
            not buffer.is_part or buffer.part_type.shape == _part_of(buffer),
            f"{where} must have the shape of its shard",
        )
    layout = PAIRS if buffer.type.dtype.is_half else PANELS
    need(buffer.space is not Space.COPY or buffer.layout == layout, f"{where} must be stored in panels, or in pairs")


def _part_of(buffer: Buffer) -> tuple[int, ...]:
    shape = tuple(evaluate(e, {}) for e in buffer.whole)
    return StatePartition(shape, buffer.by_columns, buffer.parts, buffer.split).shape


def _check_split(kernel: Kernel) -> None:
    """Threads must begin where native code may: at granule boundaries."""
    where, schedule = f"kernel {kernel.id}", schedule_of(kernel)
    if schedule.split is None:
        need(schedule.granule >= 1, f"{where} must have a positive granule")
        return
    looped = (
        range(len(kernel.axes))
        if isinstance(kernel.body, Scatter)
        else (*kernel.rows, *(() if kernel.vector is None else (kernel.vector,)))
    )
    need(
        schedule.split in looped and (not isinstance(kernel.body, Window) or schedule.split in window_axes(kernel)),
        f"{where} must be split along an axis that it loops over",
    )
    need(schedule.granule == kernel_granule(kernel, schedule.split), f"{where} must have the granule of its axis")


def _check_copies(plan: Plan, kernel: Kernel) -> None:
    """A copy of a state must be written by the kernel that writes the state, with matching indices."""
    for level in kernel.levels:
        into = {s.load.buffer: s.load for s in level.stores}
        for store in (*level.row_stores, *level.stores):
            copy = plan.buffers[store.load.buffer]
            source = copy.source
            if source is None:
                continue
            state = into.get(source)
            need(
                state is not None
                and len(state.index) == 2
                and all(i.plain is not None for i in state.index)
                and state.index[0] != state.index[1]
                and state.shape == plan.buffers[source].type.shape
                and store.load.index == (tuple(reversed(state.index)) if copy.transposed else state.index),
                f"kernel {kernel.id} must write a copy together with its state",
            )
            assert state is not None
            span = {*kernel.rows[-1:], kernel.vector}
            need({i.plain for i in state.index} == span, f"kernel {kernel.id} must write a state completely")


def _check_aliases(plan: Plan, kernel: Kernel) -> None:
    """Aliasing buffers are one parameter of a kernel in C, so they must have one type."""
    dtypes: dict[tuple[int, int], DType] = {}
    for load, _ in loads_of(kernel):
        b = plan.buffers[load.buffer]
        if b.space is Space.ARENA:
            dtype = dtypes.setdefault((b.offset, b.bytes), b.type.dtype)
            need(dtype == b.type.dtype, f"aliasing buffers of kernel {kernel.id} must have one dtype")


def _check_arena(plan: Plan) -> None:
    """Sweep over the buffers by offset: only buffers that overlap in bytes are compared in time."""
    live: list[Buffer] = []
    for b in sorted((b for b in plan.buffers if b.space is Space.ARENA), key=lambda b: b.offset):
        live = [a for a in live if a.offset + a.bytes > b.offset]
        for a in live:
            before, after = (a, b) if a.first <= b.first else (b, a)
            need(
                may_follow(plan.kernels, before, after),
                f"buffers {a.id} and {b.id} overlap in the arena while both are alive",
            )
            barrier = schedule_of(plan.kernels[before.last]).region < schedule_of(plan.kernels[after.first]).region
            need(
                barrier or (a.offset, a.bytes) == (b.offset, b.bytes),
                f"buffers {a.id} and {b.id} share bytes without a barrier, so they must have equal offset and size",
            )
        live.append(b)
