"""Is a plan sound on the CPU?  Owners, places, and what native code is given."""

from __future__ import annotations

from itertools import pairwise

from wholestep.compiler.backends.cpu.arena import follows
from wholestep.compiler.backends.cpu.kernel_schedule import Blocks, Queries, Tiles, schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import PAIRS, PANELS, is_turned, state_layout
from wholestep.compiler.backends.cpu.partition.ownership import kernel_granule, window_axes
from wholestep.compiler.ir.state_partition import Division
from wholestep.compiler.ir.types import DType, evaluate
from wholestep.compiler.plan.check.soundness import loads_of, need
from wholestep.compiler.plan.model.bodies import Scatter, Window
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Kind, Layout, Plan, Space

INNER = {Kind.DOT: Blocks, Kind.CALL: Queries, Kind.WINDOW: Tiles}


def check_cpu(plan: Plan) -> None:
    """Raise PlanError unless the schedules and places of a plan of ours are sound."""
    for kernel in plan.kernels:
        how, axes = schedule_of(kernel), range(len(kernel.axes))
        need(0 <= how.region < plan.regions, f"kernel {kernel.id} is in region {how.region} of {plan.regions}")
        need(how.split is None or how.split in axes, f"kernel {kernel.id} has axes {tuple(axes)}")
    for before, after in pairwise(plan.kernels):  # no region holds kernels of two loops, or of a loop and of none
        barrier = schedule_of(before).region < schedule_of(after).region
        need(before.loop == after.loop or barrier, f"a barrier stands before kernel {after.id}")
    _check_arena(plan)


def check_cpu_file(plan: Plan) -> None:
    """Raise PlanError unless a plan is one that the CPU's scheduler could have made, whoever wrote it."""
    from wholestep.compiler.backends.cpu.check.routines import check_call, check_dot, check_scatter

    routines = {Kind.CALL: check_call, Kind.DOT: check_dot, Kind.SCATTER: check_scatter}
    for buffer in plan.buffers:
        _check_layout(buffer)
    for kernel in plan.kernels:
        inner = INNER.get(kernel.kind, type(None))
        scheduled = isinstance(schedule_of(kernel).inner, inner)
        need(scheduled, f"kernel {kernel.id} is scheduled as a {kernel.kind.value} is")
        if kernel.kind in routines:
            routines[kernel.kind](plan, kernel, need)
        elif kernel.kind is Kind.WINDOW:
            from wholestep.compiler.backends.cpu.check.convolution import check_window

            check_window(plan, kernel, need)
        _check_split(kernel)
        _check_copies(plan, kernel)
        _check_places(plan, kernel)


def _check_layout(buffer: Buffer) -> None:
    where = f"buffer {buffer.id}"
    need(buffer.layout in (Layout.ROWS, PANELS, PAIRS), f"{where} lies in rows, panels or pairs")
    paired = buffer.space in (Space.COPY, Space.WORK) and buffer.type.dtype.is_half
    need(buffer.layout != PAIRS or paired, f"{where} has pairs of half elements")
    if buffer.space is Space.STATE:
        need(buffer.layout == state_layout(buffer.type), f"{where} is stored as states are")
        turned = not buffer.parts and is_turned(buffer.held, buffer.by_columns)
        need(buffer.turned == turned, f"{where} is turned as states are")
        need(not buffer.is_part or buffer.held.shape == _part_of(buffer), f"{where} is cut as states are")
    wanted = PAIRS if buffer.type.dtype.is_half else PANELS
    need(buffer.space is not Space.COPY or buffer.layout == wanted, f"{where} lies in panels, or in pairs")


def _part_of(buffer: Buffer) -> tuple[int, ...]:
    whole = tuple(evaluate(e, {}) for e in buffer.whole)
    return Division(whole, buffer.by_columns, buffer.parts, buffer.split).shape


def _check_split(kernel: Kernel) -> None:
    """Threads begin where native code may: at whole granules."""
    where, how = f"kernel {kernel.id}", schedule_of(kernel)
    if how.split is None:
        need(how.granule >= 1, f"{where} has a granule")
        return
    looped = (
        range(len(kernel.axes))
        if isinstance(kernel.body, Scatter)
        else (*kernel.rows, *(() if kernel.vector is None else (kernel.vector,)))
    )
    need(
        how.split in looped and (not isinstance(kernel.body, Window) or how.split in window_axes(kernel)),
        f"{where} is partitioned along an axis it loops over",
    )
    need(how.granule == kernel_granule(kernel, how.split), f"{where} has the granule of its axis")


def _check_copies(plan: Plan, kernel: Kernel) -> None:
    """A second layout of a state is written where the state is, transposed."""
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
                and store.load.index == (tuple(reversed(state.index)) if copy.turned else state.index),
                f"kernel {kernel.id} writes the copy of what it writes",
            )
            assert state is not None
            span = {*kernel.rows[-1:], kernel.vector}
            need({i.plain for i in state.index} == span, f"kernel {kernel.id} writes the whole of a state")


def _check_places(plan: Plan, kernel: Kernel) -> None:
    """What lies in one place is one parameter of a kernel in C, of one type."""
    found: dict[tuple[int, int], DType] = {}
    for load, _ in loads_of(kernel):
        b = plan.buffers[load.buffer]
        if b.space is Space.ARENA:
            known = found.setdefault((b.offset, b.bytes), b.type.dtype)
            need(known == b.type.dtype, f"kernel {kernel.id} reads and writes one dtype in one place")


def _check_arena(plan: Plan) -> None:
    """Sweep by offset: only neighbours that overlap in bytes are compared in time."""
    live: list[Buffer] = []
    for b in sorted((b for b in plan.buffers if b.space is Space.ARENA), key=lambda b: b.offset):
        live = [a for a in live if a.offset + a.bytes > b.offset]
        for a in live:
            before, after = (a, b) if a.first <= b.first else (b, a)
            need(
                follows(plan.kernels, before, after),
                f"buffers {a.id} and {b.id} overlap in the arena while both are alive",
            )
            barrier = schedule_of(plan.kernels[before.last]).region < schedule_of(plan.kernels[after.first]).region
            need(
                barrier or (a.offset, a.bytes) == (b.offset, b.bytes),
                f"buffers {a.id} and {b.id} have one place where bytes change hands without a barrier",
            )
        live.append(b)
