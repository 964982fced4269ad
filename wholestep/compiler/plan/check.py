"""Is a plan sound?  Ids exist, buffers lie inside their segments, and no two live ones overlap.

A plan that was read from a file is checked before anything is rendered from it: C follows its numbers blindly.  What
we have just planned is held against `check`; what someone may have written, against `check_file`, which takes nobody's
word: names are rows of our tables, sizes follow from types, bounds hold at every size, native code gets what it takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

from wholestep.compiler.frontend.initializers import is_meant
from wholestep.compiler.ir.types import DType, Extent, evaluate, symbols_of
from wholestep.compiler.plan.arena import follows
from wholestep.compiler.plan.bodies import Columns, Read, Scatter, Window
from wholestep.compiler.plan.kernel import Buffer, Guard, Index, Kernel, Kind, Layout, Load, Plan, Space
from wholestep.compiler.plan.layout import ALIGNMENT, layout_bytes, state_layout
from wholestep.compiler.plan.scheduled import schedule_of
from wholestep.compiler.plan.touch import kernel_granule
from wholestep.errors import PlanError

MOST = 1 << 48  # elements and bytes: what addresses hold, far from where C's integers overflow


def check(plan: Plan) -> None:
    """Raise PlanError unless the plan is sound."""
    _need(len(plan.symbols) == len(plan.capacity), "one capacity per symbol")
    _need(all(c >= 1 for c in plan.capacity), "capacities are at least 1")
    for position, buffer in enumerate(plan.buffers):
        _need(buffer.id == position, f"buffer {buffer.id} stands at position {position}")
        _check_buffer(plan, buffer)
    _check_arena(plan)
    _check_names(plan)
    _check_host(plan)
    _check_loops(plan)
    for kernel in plan.kernels:
        for scope in _scopes(plan, kernel):
            _check_kernel(scope, kernel)


def check_file(plan: Plan) -> None:
    """Raise PlanError unless the plan is one that we could have written, whoever wrote it."""
    from wholestep.compiler.plan.check_access import is_nonnegative, leaves, ranges_of
    from wholestep.compiler.plan.check_routines import check_call, check_dot, check_scatter, check_shape_of_kind
    from wholestep.compiler.plan.check_values import check_host, check_values

    _check_sizes(plan)
    check(plan)
    for buffer in plan.buffers:
        _check_storage(plan, buffer)
    _check_owned_names(plan)
    for value in plan.host:
        check_host(value, _need)
    routines = {Kind.CALL: check_call, Kind.DOT: check_dot, Kind.SCATTER: check_scatter}
    for position, kernel in enumerate(plan.kernels):
        _need(kernel.id == position, f"kernel {kernel.id} stands at position {position}")
        check_shape_of_kind(kernel, _need)
        check_values(plan, kernel, _need)
        ranges = ranges_of(plan, kernel)
        for load, guards in _loads(kernel):
            wrong = leaves(load, guards, kernel, plan.buffers[load.buffer], ranges)
            _need(wrong is None, f"kernel {position} stays inside buffer {load.buffer} at every size: {wrong}")
        if kernel.kind in routines:
            routines[kernel.kind](plan, kernel, _need)
        elif kernel.kind is Kind.WINDOW:
            from wholestep.compiler.plan.check_windows import check_window

            check_window(plan, kernel, _need)
        _check_split(kernel)
        _check_copies(plan, kernel)
        _check_places(plan, kernel)
    for loop in plan.loops:
        sizes: dict[str, tuple[Extent, Extent]] = {s: (1, c) for s, c in plan.sizes.items()}
        _need(is_nonnegative(loop.length, sizes), f"loop {loop.id} has a length at every size")


def _check_sizes(plan: Plan) -> None:
    """Numbers that memory and C's integers hold."""
    _need(len(set(plan.symbols)) == len(plan.symbols), "symbols have names of their own")
    numbers = (*plan.capacity, plan.arena_bytes, plan.copy_bytes, plan.work_bytes, plan.slots, plan.regions)
    _need(all(0 <= n < MOST for n in numbers), f"sizes are numbers below {MOST}")
    used = [e for k in plan.kernels for e in k.axes]
    used += [e for b in plan.buffers for e in b.type.shape]
    for extent in used:
        _need_symbols(plan, [extent], "a size")
        _need(abs(evaluate(extent, plan.sizes)) < MOST, f"sizes are numbers below {MOST}; received {extent}")


def _check_storage(plan: Plan, buffer: Buffer) -> None:
    """What a buffer's memory will be follows from its type: nothing else is written down in earnest."""
    where = f"buffer {buffer.id}"
    _need(buffer.layout is Layout.ROWS or buffer.type.rank >= 2, f"{where} has panels of a matrix")
    _need(
        buffer.bytes == layout_bytes(buffer.type, buffer.layout, plan.sizes), f"{where} has the bytes of {buffer.type}"
    )
    _need(buffer.offset % ALIGNMENT == 0, f"{where} begins at a cache line")
    _need(all(evaluate(e, plan.sizes) >= 0 for e in buffer.type.shape), f"{where} has a shape")
    columns = buffer.type.shape[-1] if buffer.type.rank else 1
    _need(buffer.layout is Layout.ROWS or isinstance(columns, int), f"{where} has a number of panels")
    if buffer.space in (Space.INPUT, Space.OUTPUT, Space.CONSTANT):
        _need(buffer.layout is Layout.ROWS, f"{where} lies in rows")
    if buffer.space is Space.STATE:
        _need(not symbols_of(buffer.type.shape), f"{where} has a fixed size")
        _need(buffer.layout is state_layout(buffer.type), f"{where} is stored as states are")
    _need((buffer.source is not None) == (buffer.space is Space.COPY), f"{where} is a copy if it has a source")
    if buffer.space is Space.COPY:
        source = _buffer(plan, buffer.source, f"the source of {where}").type
        half = buffer.type.dtype.is_half and not source.dtype.is_half
        shape = tuple(reversed(source.shape)) if buffer.turned else source.shape
        _need(source.rank == 2 and buffer.type.shape == shape, f"{where} is its state or the transpose of it")
        _need(half or (buffer.turned and buffer.type.dtype == source.dtype), f"{where} differs from its state")
        _need(buffer.layout is (Layout.PAIRS if half else Layout.PANELS), f"{where} lies in panels, or in pairs")


def _check_owned_names(plan: Plan) -> None:
    """Every buffer of the caller's or of a state has its name, once."""
    for pairs, space in ((plan.inputs, Space.INPUT), (plan.states, Space.STATE)):
        named, held = [id for _, id in pairs], [b.id for b in plan.buffers if b.space is space]
        _need(sorted(named) == held, f"every buffer of {space.value} has a name")
        _need(all(plan.buffers[id].name == name for name, id in pairs), f"buffers of {space.value} have their names")
        _need(len({name for name, _ in pairs}) == len(pairs), f"names of {space.value} are different")
    _need(len({name for name, _ in plan.outputs}) == len(plan.outputs), "names of outputs are different")
    _need(all(plan.buffers[id].space in (Space.OUTPUT, Space.STATE) for _, id in plan.outputs), "outputs are kept")
    _need(len({s.name for s in plan.scalars}) == len(plan.scalars), "names of scalars are different")
    _need(len(plan.initial) == len(plan.states), "every state has a first value")
    for (name, id), init in zip(plan.states, plan.initial, strict=True):
        shape = tuple(evaluate(e, {}) for e in plan.buffers[id].type.shape)
        _need(is_meant(init, shape), f"the first value of {name!r} is one of ours")
    _need(len({id for id, _ in plan.constants}) == len(plan.constants), "constants have buffers of their own")
    for id, data in plan.constants:
        _need(
            len(data) == evaluate(plan.buffers[id].type.elements, plan.sizes) * plan.buffers[id].type.dtype.size,
            f"constant {id} is whole",
        )
    for bound in plan.bounds:
        type = plan.buffers[dict(plan.inputs)[bound.input]].type
        _need(type.dtype.is_integer, f"{bound.input!r} holds indices")
        _need(len(bound.part) in (0, type.rank) and all(step > 0 for *_, step in bound.part), f"{bound} is a part")
    for least in plan.least:
        _need(not least.batch or (least.batch in plan.symbols and least.part >= 1), "a window has parts")
    ids = [v.id for v in plan.host]
    _need(len(set(ids)) == len(ids) and min(ids, default=0) >= 0, "host values have numbers of their own")


def _check_split(kernel: Kernel) -> None:
    """Threads begin where native code may: at whole granules."""
    where, how = f"kernel {kernel.id}", schedule_of(kernel)
    if how.split is None:
        _need(how.granule >= 1, f"{where} has a granule")
        return
    looped = (
        range(len(kernel.axes))
        if isinstance(kernel.body, Scatter)
        else (*kernel.rows, *(() if kernel.vector is None else (kernel.vector,)))
    )
    _need(
        how.split in looped and (not isinstance(kernel.body, Window) or how.split == 0),
        f"{where} is partitioned along an axis it loops over",
    )
    _need(how.granule == kernel_granule(kernel, how.split), f"{where} has the granule of its axis")


def _check_copies(plan: Plan, kernel: Kernel) -> None:
    """A second layout of a state is written where the state is, turned."""
    for level in kernel.levels:
        into = {s.load.buffer: s.load for s in level.stores}
        for store in (*level.row_stores, *level.stores):
            copy = plan.buffers[store.load.buffer]
            source = copy.source
            if source is None:
                continue
            state = into.get(source)
            _need(
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
            _need({i.plain for i in state.index} == span, f"kernel {kernel.id} writes the whole of a state")


def _check_places(plan: Plan, kernel: Kernel) -> None:
    """What lies in one place is one parameter of a kernel in C, of one type."""
    found: dict[tuple[int, int], DType] = {}
    for load, _ in _loads(kernel):
        b = plan.buffers[load.buffer]
        if b.space is Space.ARENA:
            known = found.setdefault((b.offset, b.bytes), b.type.dtype)
            _need(known == b.type.dtype, f"kernel {kernel.id} reads and writes one dtype in one place")


def _check_loops(plan: Plan) -> None:
    """The kernels of a loop stand together, and no region holds kernels of two, or of a loop and of none."""
    for position, loop in enumerate(plan.loops):
        _need(loop.id == position and loop.symbol not in plan.symbols, f"loop {loop.id} stands at position {position}")
        _need_symbols(plan, [loop.length], f"loop {loop.id}")
        _need(evaluate(loop.length, plan.sizes) >= 0, f"loop {loop.id} has a length")
    seen: list[int | None] = []
    for before, after in pairwise(plan.kernels):
        barrier = schedule_of(before).region < schedule_of(after).region
        _need(before.loop == after.loop or barrier, f"a barrier stands before kernel {after.id}")
        if before.loop != after.loop:
            _need(after.loop is None or after.loop not in seen, f"the kernels of loop {after.loop} stand together")
            seen.append(before.loop)
    for kernel in plan.kernels:
        _need(kernel.loop is None or 0 <= kernel.loop < len(plan.loops), f"kernel {kernel.id} is in a loop of the plan")


def _scopes(plan: Plan, kernel: Kernel) -> list[Plan]:
    """The plan as a kernel sees it: in a loop the number of the step is one more symbol, first and last in turn."""
    if kernel.loop is None:
        return [plan]
    loop = plan.loops[kernel.loop]
    ends = {0, max(0, evaluate(loop.length, plan.sizes) - 1)}
    return [replace(plan, symbols=(*plan.symbols, loop.symbol), capacity=(*plan.capacity, e)) for e in sorted(ends)]


def _need(condition: bool, rule: str) -> None:
    if not condition:
        raise PlanError(
            f"the plan is not sound: {rule}. Build it again; if it was just built, this is a bug in Wholestep."
        )


def _check_buffer(plan: Plan, buffer: Buffer) -> None:
    where = f"buffer {buffer.id}"
    _need_symbols(plan, buffer.type.shape, where)
    _need(buffer.bytes >= layout_bytes(buffer.type, buffer.layout, plan.sizes), f"{where} holds {buffer.type}")
    limit = {Space.ARENA: plan.arena_bytes, Space.COPY: plan.copy_bytes, Space.WORK: plan.work_bytes}.get(buffer.space)
    if limit is not None:
        end = buffer.offset + buffer.bytes
        _need(buffer.offset >= 0 and end <= limit, f"{where} ends at {end} of {limit} bytes of {buffer.space.value}")
    if buffer.space is Space.COPY:
        source = _buffer(plan, buffer.source, f"the source of {where}")
        _need(source.space is Space.STATE, f"{where} is a copy of a state")


def _check_arena(plan: Plan) -> None:
    """Sweep by offset: only neighbours that overlap in bytes are compared in time."""
    live: list[Buffer] = []
    for b in sorted((b for b in plan.buffers if b.space is Space.ARENA), key=lambda b: b.offset):
        live = [a for a in live if a.offset + a.bytes > b.offset]
        for a in live:
            before, after = (a, b) if a.first <= b.first else (b, a)
            _need(
                follows(plan.kernels, before, after),
                f"buffers {a.id} and {b.id} overlap in the arena while both are alive",
            )
            barrier = schedule_of(plan.kernels[before.last]).region < schedule_of(plan.kernels[after.first]).region
            _need(
                barrier or (a.offset, a.bytes) == (b.offset, b.bytes),
                f"buffers {a.id} and {b.id} have one place where bytes change hands without a barrier",
            )
        live.append(b)


def _check_names(plan: Plan) -> None:
    for pairs, space in ((plan.inputs, Space.INPUT), (plan.states, Space.STATE)):
        for name, id in pairs:
            _need(_buffer(plan, id, repr(name)).space is space, f"{name!r} is a buffer of {space.value}")
    for name, id in plan.outputs:
        _buffer(plan, id, repr(name))
    names = {name for name, _ in plan.states}
    _need(set(plan.updated) <= names, "updated states are states")
    for bound in plan.bounds:
        _need(bound.input in dict(plan.inputs), f"the bound on {bound.input!r} is of an input")
        _need_symbols(plan, [bound.size], f"the bound on {bound.input!r}")
    for least in plan.least:
        _need_symbols(plan, [least.extent], f"the least size of {least.extent}")
    for id, data in plan.constants:
        buffer = _buffer(plan, id, "a constant")
        _need(buffer.space is Space.CONSTANT and len(data) <= buffer.bytes, f"constant {id} fits its buffer")
    for parameter, gradient in plan.param_grad_pairs:
        _buffer(plan, parameter, "a parameter")
        if gradient is not None:
            _buffer(plan, gradient, "a gradient")
    for parameter in plan.param_buffers:
        _buffer(plan, parameter, "a parameter")


def _check_host(plan: Plan) -> None:
    known: set[int] = set()
    for value in plan.host:
        _need(known.issuperset(value.args), f"host value {value.id} reads what was computed before")
        _need(value.slot is None or 0 <= value.slot < plan.slots, f"slot {value.slot} is one of {plan.slots}")
        _need(value.op != "scalar" or 0 <= value.index < len(plan.scalars), f"host value {value.id} reads a scalar")
        _need_symbols(plan, [value.extent], f"host value {value.id}")
        known.add(value.id)


def _check_kernel(plan: Plan, kernel: Kernel) -> None:
    where = f"kernel {kernel.id}"
    axes = range(len(kernel.axes))
    _need_symbols(plan, kernel.axes, where)
    how, reduced = schedule_of(kernel), kernel.body.reduced if isinstance(kernel.body, Columns) else None
    _need(0 <= how.region < plan.regions, f"{where} is in region {how.region} of {plan.regions}")
    named = (*kernel.rows, *(a for a in (kernel.vector, reduced, how.split) if a is not None))
    _need(all(a in axes for a in named), f"{where} has axes {tuple(axes)}")
    for load, guards in _loads(kernel):
        buffer = _buffer(plan, load.buffer, f"what {where} reads or writes")
        _need(len(load.index) == len(load.shape), f"{where} has one index per dimension of buffer {buffer.id}")
        _need_symbols(plan, load.shape, where)
        for index in load.index:
            _check_index(plan, kernel, index)
        _check_inside(plan, kernel, load, guards)
    _check_values(plan, kernel)


def _check_inside(plan: Plan, kernel: Kernel, load: Load, guards: tuple[Guard, ...]) -> None:
    """At capacity, every element that a load or store can touch lies in its buffer."""
    sizes, buffer = plan.sizes, plan.buffers[load.buffer]
    where = f"kernel {kernel.id} stays inside buffer {buffer.id}"
    shape = [evaluate(e, sizes) for e in load.shape]
    if buffer.layout is Layout.PANELS:
        _need(load.shape == buffer.type.shape, where)
    _need(prod(shape) * buffer.type.dtype.size <= buffer.bytes, where)
    ranges = [(0, evaluate(e, sizes) - 1) for e in kernel.axes]
    for guard in guards:
        if (axis := guard.index.plain) is not None:
            low, high = ranges[axis]
            ranges[axis] = max(low, evaluate(guard.lo, sizes)), min(high, evaluate(guard.hi, sizes) - 1)
    if any(low > high for low, high in ranges):
        return  # nothing is touched
    for index, extent in zip(load.index, shape, strict=True):
        if index.is_behind_start:
            continue  # of a store: dropped where it is outside
        ends = [(evaluate(c, sizes) * ranges[a][0], evaluate(c, sizes) * ranges[a][1]) for a, c in index.terms]
        low, high = ((evaluate(index.offset, sizes) + sum(f(e) for e in ends)) // index.over for f in (min, max))
        # A computed part is clamped into the dimension, where it may only stand alone.
        _need(
            low >= 0 and high < extent and (index.value is None or low == high == 0),
            f"{where}: {low}..{high} of {extent}",
        )


def _check_values(plan: Plan, kernel: Kernel) -> None:
    known = {i.id for level in kernel.levels for i in (*level.row, *level.body)}
    known |= {r.id for level in kernel.levels for r in level.reduces}
    for level in kernel.levels:
        for instr in (*level.row, *level.body):
            used = (*instr.args, *(() if instr.fill is None else (instr.fill,)))
            places = instr.load.index if instr.load else ()
            _need(not any(i.is_behind_start for i in places), f"kernel {kernel.id} reads at indices clamped into them")
            _need(known.issuperset(used), f"value {instr.id} of kernel {kernel.id} reads values of its kernel")
            _need(instr.op != "scalar" or 0 <= instr.slot < plan.slots, f"slot {instr.slot} is one of {plan.slots}")
            for index in (*(g.index for g in instr.guards), *(() if instr.index is None else (instr.index,))):
                _check_index(plan, kernel, index)
        stores = (*level.row_stores, *level.stores)
        stored = (
            *(s.value for s in stores),
            *(i.value for s in stores for i in s.load.index if i.value is not None),
            *(r.value for r in level.reduces),
        )
        _need(known.issuperset(stored), f"kernel {kernel.id} stores values of its own")


def _check_index(plan: Plan, kernel: Kernel, index: Index) -> None:
    _need(all(0 <= a < len(kernel.axes) for a, _ in index.terms), f"indices of kernel {kernel.id} are in its axes")
    _need_symbols(plan, [index.offset, *(c for _, c in index.terms)], f"kernel {kernel.id}")


def _loads(kernel: Kernel) -> Iterator[Read]:
    """Everything that a kernel reads or writes, and under which conditions."""
    yield from kernel.body.reads()
    yield from ((load, ()) for load in kernel.body.stores())


def _buffer(plan: Plan, id: int | None, what: str) -> Buffer:
    _need(id is not None and 0 <= id < len(plan.buffers), f"{what} is a buffer of the plan; received {id}")
    assert id is not None
    return plan.buffers[id]


def _need_symbols(plan: Plan, extents: Iterable[Extent], where: str) -> None:
    unknown = symbols_of(extents) - set(plan.symbols)
    _need(not unknown, f"{where} uses symbols of the plan; {sorted(unknown)} are not")
