"""Verifies that a plan is sound: ids exist, buffers are inside their segments, accesses inside their buffers.

A plan is checked before code is generated from it, since generated code has no bounds checks.  `check` is for plans of
our own planner; `check_file` is for untrusted files and assumes nothing: names must be rows of our tables, sizes must
follow from types, bounds must hold at every size, and routines get only arguments that they support.  A backend checks
its own schedules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

from wholestep.compiler.frontend.initializers import is_valid_for
from wholestep.compiler.ir.types import Extent, evaluate, symbols_of
from wholestep.compiler.plan.model.bodies import Columns, Read
from wholestep.compiler.plan.model.kernel import Buffer, Guard, Index, Kernel, Layout, Load, Plan, Space
from wholestep.compiler.plan.model.layout import ALIGNMENT, layout_bytes
from wholestep.compiler.plan.model.target_formats import format_of_plan
from wholestep.errors import PlanError

MOST = 1 << 48  # bound of elements and bytes: the range of addresses, far below the overflow of 64-bit integers


def check(plan: Plan) -> None:
    """Raise PlanError unless the plan is sound."""
    need(len(plan.symbols) == len(plan.capacity), "one capacity per symbol")
    need(all(c >= 1 for c in plan.capacity), "capacities are at least 1")
    for position, buffer in enumerate(plan.buffers):
        need(buffer.id == position, f"the buffer at position {position} has this id; received {buffer.id}")
        _check_buffer(plan, buffer)
    _check_names(plan)
    _check_host(plan)
    _check_loops(plan)
    format = format_of_plan(plan)
    for kernel in plan.kernels:
        need(type(kernel.schedule) is format.schedule, f"kernel {kernel.id} has a schedule for {plan.target}")
        for scope in _scopes(plan, kernel):
            _check_kernel(scope, kernel)
    format.check(plan)


def check_file(plan: Plan) -> None:
    """Raise PlanError unless our own planner could have written the plan: for files from untrusted sources."""
    from wholestep.compiler.plan.check.access import is_nonnegative, leaves, ranges_of
    from wholestep.compiler.plan.check.values import check_host, check_shape_of_kind, check_values

    _check_sizes(plan)
    check(plan)
    for buffer in plan.buffers:
        _check_storage(plan, buffer)
    _check_owned_names(plan)
    for value in plan.host:
        check_host(value, need)
    for position, kernel in enumerate(plan.kernels):
        need(kernel.id == position, f"the kernel at position {position} has this id; received {kernel.id}")
        check_shape_of_kind(kernel, need)
        check_values(plan, kernel, need)
        ranges = ranges_of(plan, kernel)
        for load, guards in loads_of(kernel):
            wrong = leaves(load, guards, kernel, plan.buffers[load.buffer], ranges)
            need(wrong is None, f"kernel {position} stays inside buffer {load.buffer} at every size: {wrong}")
    for loop in plan.loops:
        sizes: dict[str, tuple[Extent, Extent]] = {s: (1, c) for s, c in plan.sizes.items()}
        need(is_nonnegative(loop.length, sizes), f"loop {loop.id} has a nonnegative length at every size")
    format_of_plan(plan).check_file(plan)


def _check_sizes(plan: Plan) -> None:
    """Sizes must fit into addresses and C integers."""
    need(len(set(plan.symbols)) == len(plan.symbols), "names of symbols are unique")
    numbers = (*plan.capacity, plan.arena_bytes, plan.copy_bytes, plan.work_bytes, plan.slots, plan.regions)
    need(all(0 <= n < MOST for n in numbers), f"sizes are integers from 0 to below {MOST}")
    used = [e for k in plan.kernels for e in k.axes]
    used += [e for b in plan.buffers for e in b.type.shape]
    for extent in used:
        _need_symbols(plan, [extent], "a size")
        need(abs(evaluate(extent, plan.sizes)) < MOST, f"sizes are below {MOST}; received {extent}")


def _check_storage(plan: Plan, buffer: Buffer) -> None:
    """The memory of a buffer must follow from its type and layout."""
    where = f"buffer {buffer.id}"
    need(buffer.layout.columns >= 0 and buffer.layout.rows >= 1, f"{where} has a valid block size")
    need(buffer.layout == Layout.ROWS or buffer.type.rank >= 2, f"{where} has rank 2 or more if its layout has blocks")
    need(
        buffer.bytes == layout_bytes(buffer.type, buffer.layout, plan.sizes), f"{where} has the bytes of {buffer.type}"
    )
    need(buffer.offset % ALIGNMENT == 0, f"{where} starts at a multiple of {ALIGNMENT} bytes")
    need(all(evaluate(e, plan.sizes) >= 0 for e in buffer.type.shape), f"{where} has no negative extent")
    columns = buffer.type.shape[-1] if buffer.type.rank else 1
    need(buffer.layout == Layout.ROWS or isinstance(columns, int), f"{where} has a fixed number of blocks")
    need(not buffer.columns or (isinstance(columns, int) and 0 < buffer.columns < columns), f"{where} has padded rows")
    if buffer.space in (Space.INPUT, Space.OUTPUT, Space.CONSTANT):
        need(buffer.layout == Layout.ROWS, f"{where} is stored in dense rows")
    if buffer.space is Space.STATE:
        need(not symbols_of(buffer.type.shape), f"{where} has a fixed size")
        need(not buffer.transposed or buffer.by_columns, f"{where} is transposed only if it was declared by columns")
        if buffer.is_part:
            from wholestep.compiler.ir.state_partition import (
                AxisSplit,
                StatePartition,
            )  # imported here: most plans have no partitioned state

            full_shape = tuple(evaluate(e, {}) for e in buffer.whole)
            need(buffer.parts != 1 and bool(full_shape), f"{where} is one of at least two parts of a known shape")
            if buffer.split:
                need(len(buffer.split) >= 3, f"{where} is split along an axis")
                need(AxisSplit.of(buffer.split).fits(full_shape), f"{where} has a shape that its split divides")
            # Only the backend knows whether a state declared by columns is also stored by columns: accept both.
            divisions = [
                StatePartition(full_shape, by, buffer.parts, buffer.split) for by in {False, buffer.by_columns}
            ]
            need(
                buffer.part_type.shape in [division.shape for division in divisions],
                f"{where} has the shape of one rank's part",
            )
            need(not buffer.parts or not buffer.transposed, f"{where} is not both partitioned and transposed")
    need((buffer.source is not None) == (buffer.space is Space.COPY), f"{where} has a source exactly if it is a copy")
    if buffer.space is Space.COPY:
        source = buffer_of(plan, buffer.source, f"the source of {where}").type
        half = buffer.type.dtype.is_half and not source.dtype.is_half
        shape = tuple(reversed(source.shape)) if buffer.transposed else source.shape
        matrix = source.rank == 2 or (source.rank == 1 and not buffer.transposed)  # a matrix, or a bias
        padded = len(shape) == buffer.type.rank and all(
            evaluate(stored, {}) >= evaluate(own, {}) for stored, own in zip(buffer.type.shape, shape, strict=True)
        )
        need(matrix and padded, f"{where} has the shape of its state or of the transpose, and padding if any")
        need(
            half or (buffer.transposed and buffer.type.dtype == source.dtype),
            f"{where} is in half precision or transposed",
        )


def _check_owned_names(plan: Plan) -> None:
    """Every input and state buffer must have a unique name."""
    for pairs, space in ((plan.inputs, Space.INPUT), (plan.states, Space.STATE)):
        named_ids, ids_in_space = [id for _, id in pairs], [b.id for b in plan.buffers if b.space is space]
        need(sorted(named_ids) == ids_in_space, f"every buffer of {space.value} has a name")
        need(all(plan.buffers[id].name == name for name, id in pairs), f"buffers of {space.value} have their names")
        need(len({name for name, _ in pairs}) == len(pairs), f"names of {space.value} are unique")
    need(len({name for name, _ in plan.outputs}) == len(plan.outputs), "names of outputs are unique")
    need(
        all(plan.buffers[id].space in (Space.OUTPUT, Space.STATE) for _, id in plan.outputs),
        "outputs are output or state buffers",
    )
    need(len({s.name for s in plan.scalars}) == len(plan.scalars), "names of scalars are unique")
    need(len(plan.initial) == len(plan.states), "every state has an initializer")
    for (name, id), init in zip(plan.states, plan.initial, strict=True):
        shape = tuple(evaluate(e, {}) for e in plan.buffers[id].user_type.shape)
        need(is_valid_for(init, shape), f"{name!r} has a known initializer")
    need(len({id for id, _ in plan.constants}) == len(plan.constants), "each constant has its own buffer")
    for id, data in plan.constants:
        need(
            len(data) == evaluate(plan.buffers[id].type.elements, plan.sizes) * plan.buffers[id].type.dtype.size,
            f"constant {id} has the bytes of its type",
        )
    for bound in plan.bounds:
        type = plan.buffers[dict(plan.inputs)[bound.input]].type
        need(type.dtype.is_integer, f"{bound.input!r} has an integer dtype, as it holds indices")
        need(
            len(bound.part) in (0, type.rank) and all(step > 0 for *_, step in bound.part),
            f"{bound} has one slice per axis",
        )
    for least in plan.least:
        need(
            not least.batch or (least.batch in plan.symbols and least.part >= 1),
            "a minimum size per micro-batch names a symbol and at least one row",
        )
    ids = [v.id for v in plan.host]
    need(len(set(ids)) == len(ids) and min(ids, default=0) >= 0, "ids of host values are unique")


def _check_loops(plan: Plan) -> None:
    """The kernels of a loop must be consecutive."""
    for position, loop in enumerate(plan.loops):
        need(
            loop.id == position and loop.symbol not in plan.symbols,
            f"loop {loop.id} has the id {position} and its own symbol",
        )
        _need_symbols(plan, [loop.length], f"loop {loop.id}")
        need(evaluate(loop.length, plan.sizes) >= 0, f"loop {loop.id} has a nonnegative length")
    finished: list[int | None] = []
    for before, after in pairwise(plan.kernels):
        if before.loop != after.loop:
            need(after.loop is None or after.loop not in finished, f"the kernels of loop {after.loop} are consecutive")
            finished.append(before.loop)
    for kernel in plan.kernels:
        need(kernel.loop is None or 0 <= kernel.loop < len(plan.loops), f"kernel {kernel.id} is in a loop of the plan")


def _scopes(plan: Plan, kernel: Kernel) -> list[Plan]:
    """The plan with the symbols of a kernel: in a loop also the iteration number, at its first and last value."""
    if kernel.loop is None:
        return [plan]
    loop = plan.loops[kernel.loop]
    ends = {0, max(0, evaluate(loop.length, plan.sizes) - 1)}
    return [replace(plan, symbols=(*plan.symbols, loop.symbol), capacity=(*plan.capacity, e)) for e in sorted(ends)]


def need(condition: bool, rule: str) -> None:
    if not condition:
        raise PlanError(
            f"the plan is not sound; required: {rule}. Build it again; if it was just built, this is a bug of "
            "Wholestep."
        )


def _check_buffer(plan: Plan, buffer: Buffer) -> None:
    where = f"buffer {buffer.id}"
    _need_symbols(plan, buffer.type.shape, where)
    need(
        buffer.bytes >= layout_bytes(buffer.type, buffer.layout, plan.sizes),
        f"{where} holds all elements of {buffer.type}",
    )
    limit = {Space.ARENA: plan.arena_bytes, Space.COPY: plan.copy_bytes, Space.WORK: plan.work_bytes}.get(buffer.space)
    if limit is not None:
        end = buffer.offset + buffer.bytes
        need(
            buffer.offset >= 0 and end <= limit,
            f"{where} ends inside its segment; it ends at {end} of {limit} bytes of {buffer.space.value}",
        )
    if buffer.space is Space.COPY:
        source = buffer_of(plan, buffer.source, f"the source of {where}")
        need(source.space is Space.STATE, f"{where} is a copy of a state")


def _check_names(plan: Plan) -> None:
    for pairs, space in ((plan.inputs, Space.INPUT), (plan.states, Space.STATE)):
        for name, id in pairs:
            need(buffer_of(plan, id, repr(name)).space is space, f"{name!r} is a buffer of {space.value}")
    for name, id in plan.outputs:
        buffer_of(plan, id, repr(name))
    names = {name for name, _ in plan.states}
    need(set(plan.updated) <= names, "updated states are states")
    for bound in plan.bounds:
        need(bound.input in dict(plan.inputs), f"the bound on {bound.input!r} is of an input")
        _need_symbols(plan, [bound.size], f"the bound on {bound.input!r}")
    for least in plan.least:
        _need_symbols(plan, [least.extent], f"the least size of {least.extent}")
    for id, data in plan.constants:
        buffer = buffer_of(plan, id, "a constant")
        need(buffer.space is Space.CONSTANT and len(data) <= buffer.bytes, f"constant {id} fits its buffer")
    for parameter, gradient in plan.param_grad_pairs:
        buffer_of(plan, parameter, "a parameter")
        if gradient is not None:
            buffer_of(plan, gradient, "a gradient")
    for parameter in plan.param_buffers:
        buffer_of(plan, parameter, "a parameter")


def _check_host(plan: Plan) -> None:
    computed: set[int] = set()
    for value in plan.host:
        need(computed.issuperset(value.args), f"host value {value.id} reads only earlier values")
        need(value.slot is None or 0 <= value.slot < plan.slots, f"slot {value.slot} is one of {plan.slots}")
        need(value.op != "scalar" or 0 <= value.index < len(plan.scalars), f"host value {value.id} reads a scalar")
        _need_symbols(plan, [value.extent], f"host value {value.id}")
        computed.add(value.id)


def _check_kernel(plan: Plan, kernel: Kernel) -> None:
    where = f"kernel {kernel.id}"
    axes = range(len(kernel.axes))
    _need_symbols(plan, kernel.axes, where)
    reduced = kernel.body.reduced if isinstance(kernel.body, Columns) else None
    named = (*kernel.rows, *(a for a in (kernel.vector, reduced) if a is not None))
    need(all(a in axes for a in named), f"{where} has axes {tuple(axes)}")
    for load, guards in loads_of(kernel):
        buffer = buffer_of(plan, load.buffer, f"each operand and result of {where}")
        need(len(load.index) == len(load.shape), f"{where} has one index per dimension of buffer {buffer.id}")
        _need_symbols(plan, load.shape, where)
        for index in load.index:
            _check_index(plan, kernel, index)
        _check_inside(plan, kernel, load, guards)
    _check_values(plan, kernel)


def _check_inside(plan: Plan, kernel: Kernel, load: Load, guards: tuple[Guard, ...]) -> None:
    """At capacity, every element that a load or store can access must be inside its buffer."""
    sizes, buffer = plan.sizes, plan.buffers[load.buffer]
    where = f"kernel {kernel.id} stays inside buffer {buffer.id}"
    shape = [evaluate(e, sizes) for e in load.shape]
    if buffer.layout != Layout.ROWS:
        need(load.shape == buffer.type.shape, where)
    need(prod(shape) * buffer.type.dtype.size <= buffer.bytes, where)
    ranges = [(0, evaluate(e, sizes) - 1) for e in kernel.axes]
    for guard in guards:
        if (axis := guard.index.plain) is not None:
            low, high = ranges[axis]
            ranges[axis] = max(low, evaluate(guard.lo, sizes)), min(high, evaluate(guard.hi, sizes) - 1)
    if any(low > high for low, high in ranges):
        return  # the guards exclude every element
    for index, extent in zip(load.index, shape, strict=True):
        if index.is_behind_start:
            continue  # the store drops elements that are out of range
        ends = [(evaluate(c, sizes) * ranges[a][0], evaluate(c, sizes) * ranges[a][1]) for a, c in index.terms]
        low, high = ((evaluate(index.offset, sizes) + sum(f(e) for e in ends)) // index.over for f in (min, max))
        # A computed index is clamped into the dimension; it cannot be combined with axes or an offset.
        need(
            low >= 0 and high < extent and (index.value is None or low == high == 0),
            f"{where}: an index reaches {low}..{high} of {extent}",
        )


def _check_values(plan: Plan, kernel: Kernel) -> None:
    defined = {i.id for level in kernel.levels for i in (*level.row, *level.body)}
    defined |= {r.id for level in kernel.levels for r in level.reduces}
    for level in kernel.levels:
        for instr in (*level.row, *level.body):
            used = (*instr.args, *(() if instr.fill is None else (instr.fill,)))
            indices = instr.load.index if instr.load else ()
            need(
                not any(i.is_behind_start for i in indices),
                f"computed indices of loads in kernel {kernel.id} are clamped",
            )
            need(defined.issuperset(used), f"value {instr.id} of kernel {kernel.id} reads only values of this kernel")
            need(instr.op != "scalar" or 0 <= instr.slot < plan.slots, f"slot {instr.slot} is one of {plan.slots}")
            for index in (*(g.index for g in instr.guards), *(() if instr.index is None else (instr.index,))):
                _check_index(plan, kernel, index)
        stores = (*level.row_stores, *level.stores, *level.sums)
        stored = (
            *(s.value for s in stores),
            *(i.value for s in stores for i in s.load.index if i.value is not None),
            *(r.value for r in level.reduces),
        )
        need(defined.issuperset(stored), f"kernel {kernel.id} stores only its own values")


def _check_index(plan: Plan, kernel: Kernel, index: Index) -> None:
    need(all(0 <= a < len(kernel.axes) for a, _ in index.terms), f"indices of kernel {kernel.id} use its axes only")
    _need_symbols(plan, [index.offset, *(c for _, c in index.terms)], f"kernel {kernel.id}")


def loads_of(kernel: Kernel) -> Iterator[Read]:
    """Every address that a kernel reads or writes, and under which conditions."""
    yield from kernel.body.reads()
    yield from ((load, ()) for load in kernel.body.stores())


def buffer_of(plan: Plan, id: int | None, subject: str) -> Buffer:
    need(id is not None and 0 <= id < len(plan.buffers), f"{subject} is a buffer of the plan; received {id}")
    assert id is not None
    return plan.buffers[id]


def _need_symbols(plan: Plan, extents: Iterable[Extent], where: str) -> None:
    unknown = symbols_of(extents) - set(plan.symbols)
    need(not unknown, f"{where} uses only symbols of the plan; received {sorted(unknown)}")
