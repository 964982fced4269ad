"""Do products, scatters, calls and windows get what their native code takes?

A kernel with native code is planned again from its operands: blocks, extents, workspace and geometry follow from them,
and must be what the file says.  Native code then stays inside the buffers it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import blocks_of, queries_of
from wholestep.compiler.backends.cpu.layout.operand_layout import keeps_panels
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.tiling import INNER_AXES, SCORES, block_size, head_of, query_block, room_of
from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.model.bodies import Call, Dot, Scatter
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Layout, Load, Operand, Plan, Space
from wholestep.compiler.plan.model.layout import layout_bytes

Need = Callable[[bool, str], None]


@dataclass(frozen=True)
class Routine:
    """What a native routine takes: each operand under its name, with its axes; those of queries have `group` first."""

    operands: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    optional: frozenset[str]  # of the operands


_QUERIED = ("group", "queries")
_INPUTS = {
    "q": (*_QUERIED, "width"),
    "k": ("keys", "width"),
    "v": ("keys", "values"),
    "mask": (*_QUERIED, "keys"),
}
ROUTINES: Mapping[str, Routine] = {
    "attention": Routine(_INPUTS, {"out": (*_QUERIED, "values"), "lse": _QUERIED}, frozenset({"mask"})),
    "attention_grad": Routine(
        {**_INPUTS, "lse": _QUERIED, "gradient": (*_QUERIED, "values")},
        {
            "dq": (*_QUERIED, "width"),
            "dk": ("keys", "width"),
            "dv": ("keys", "values"),
            "dmask": (*_QUERIED, "keys"),
        },
        frozenset({"mask"}),
    ),
}
ONE_BY_ONE = frozenset({"lse"})  # every other operand is read along its last axis by vectors
SETTINGS = Settings()  # a file has the blocks of these; others are for trying out


def check_call(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A call of a routine: its operands, extents and numbers are those that the routine declares."""
    call, queries, where = kernel.body, queries_of(kernel), f"the call of kernel {kernel.id}"
    assert isinstance(call, Call)
    need(call.routine in ROUTINES, f"{where} is of a routine; received {call.routine!r}")
    routine, lead = ROUTINES[call.routine], len(kernel.axes) - INNER_AXES
    need(lead >= 0 and call.rows == tuple(range(lead)), f"{where} runs over its rows")
    group = kernel.axes[lead]
    need(isinstance(group, int) and call.dtype.is_float, f"{where} has a number of heads and a dtype of floats")
    assert isinstance(group, int)
    head = head_of(kernel)
    given = [o.name for o in call.operands]
    wanted = [name for name in routine.operands if name in given or name not in routine.optional]
    need(given == wanted, f"{where} has the operands {', '.join(wanted)}")
    results = [o.name for o in call.results]
    need(bool(results) and len(set(results)) == len(results), f"{where} has results")
    for item, declared in [
        *((o, routine.operands.get(o.name)) for o in call.operands),
        *((o, routine.results.get(o.name)) for o in call.results),
    ]:
        need(declared is not None and item.axes == head.inner(*declared), f"{where} takes {item.name!r} along its axes")
        _check_view(plan, kernel, item, need)
    block = query_block(head, call.dtype.size, plan.sizes, SETTINGS)
    need(call.extents in (head.extents(False), head.extents(True)), f"{where} has the extents of its axes")
    need(queries.block == block, f"{where} has blocks of {block} queries")
    need([n for n, _ in call.numbers] == ["scale"] and isfinite(call.numbers[0][1]), f"{where} has a scale")
    need("dmask" not in results or "mask" in given, f"{where} has the gradient of a mask that it has")
    room = room_of(head, SCORES[call.routine], block)
    check_room(plan, queries.work, room, call, where, need)


def check_room(plan: Plan, id: int, room: Extent, call: Call, where: str, need: Need) -> None:
    need(0 <= id < len(plan.buffers), f"{where} has a workspace")
    work = plan.buffers[id]
    need(work.space is Space.WORK and work.layout == Layout.ROWS, f"{where} has a workspace of the thread's")
    need(work.type.dtype == call.dtype, f"{where} has a workspace of its dtype")
    need(
        evaluate(work.type.elements, plan.sizes) >= evaluate(room, plan.sizes), f"{where} has room for {room} elements"
    )


def _check_view(plan: Plan, kernel: Kernel, item: Operand, need: Need) -> None:
    """Along its last axis an operand lies element by element, or in panels of which it has whole ones."""
    assert isinstance(kernel.body, Call)
    where, buffer = f"{item.name!r} of kernel {kernel.id}", plan.buffers[item.load.buffer]
    need(buffer.type.dtype == kernel.body.dtype, f"{where} has the dtype of the call")
    known = {*kernel.rows, *item.axes}
    need(all(a in known for i in item.load.index for a, _ in i.terms), f"{where} moves along its axes")
    need(all(i.value is None and i.over == 1 for i in item.load.index), f"{where} has indices of axes")
    if item.name in ONE_BY_ONE:
        need(buffer.layout == Layout.ROWS, f"{where} lies in rows")
        return
    last = item.axes[-1]
    *others, columns = [dict(i.terms).get(last, 0) for i in item.load.index] or [0]
    alone = columns == 1 and not any(others)
    need(alone or kernel.axes[last] == 1, f"the elements of {where} lie side by side")
    if buffer.layout == PANELS:
        need(keeps_panels(item.load.index, last), f"{where} begins at a panel")


# -- products ----------------------------------------------------------------------------------------------------


def check_dot(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A product: axes, layouts and blocks are those that its operands ask for."""
    dot, blocks, where = kernel.body, blocks_of(kernel), f"the product of kernel {kernel.id}"
    assert isinstance(dot, Dot)
    rank = len(kernel.axes) - 1
    need(rank >= 2 and dot.batch == tuple(range(rank - 2)), f"{where} has its batch first")
    need((dot.m, dot.n, dot.k) == (rank - 2, rank - 1, rank), f"{where} has rows, columns and a depth")
    need(len(kernel.levels) in (1, 3), f"{where} has an epilogue, and column sums and theirs")
    a, b = (plan.buffers[x.buffer] for x in (dot.a, dot.b))
    need(a.type.dtype.is_float and a.type.dtype == b.type.dtype, f"{where} is of floats of one dtype")
    for load, axes in ((dot.a, (*dot.batch, dot.m, dot.k)), (dot.b, (*dot.batch, dot.k, dot.n))):
        need(all(x in axes for i in load.index for x, _ in i.terms), f"{where} reads its operands along their axes")
        need(all(i.value is None and i.over == 1 for i in load.index), f"{where} has indices of axes")
    down = a.layout == PANELS
    need(not down or dot.a.index[-1].plain in (dot.m, dot.k), f"{where} reads its left operand by whole panels")
    need(_has_columns(dot.b, dot.n, b), f"{where} reads its right operand row by row")
    wanted = block_size(dot.a, a, dot.m, SETTINGS)
    need((blocks.rows, blocks.columns) == (wanted.rows, wanted.columns), f"{where} has blocks as its operands ask for")
    level = kernel.levels[0]
    sources = [i for i in level.body if i.op == "acc"]
    total = a.type.dtype.accumulate
    need(len(sources) == 1 and sources[0].dtype == total, f"{where} is what one value is")
    paired = b.type.dtype.is_half and b.layout != PAIRS
    need((blocks.pairs is not None) == paired, f"{where} has room for pairs where its right operand is not in them")
    if blocks.pairs is not None:
        need(0 <= blocks.pairs < len(plan.buffers), f"{where} has room for pairs")
        pairs, columns = plan.buffers[blocks.pairs], TensorType((kernel.axes[dot.k], blocks.columns), b.type.dtype)
        need(pairs.space is Space.WORK and pairs.layout == PAIRS, f"{where} has pairs of the thread's")
        need(pairs.type == columns, f"{where} has room for its columns in pairs")
    if dot.is_direct:
        (store,) = level.stores
        target = plan.buffers[store.load.buffer]
        need(store.value == sources[0].id and target.type.dtype == total, f"{where} is stored as it is")
        need(_has_columns(store.load, dot.n, target), f"{where} is stored row by row")
        need(all(i.value is None and i.over == 1 for i in store.load.index), f"{where} is stored at its place")
        return
    need(blocks.work is not None and 0 <= blocks.work < len(plan.buffers), f"{where} has a block of workspace")
    assert blocks.work is not None
    block = plan.buffers[blocks.work]
    need(block.space is Space.WORK and block.type.dtype == total, f"{where} has a block of the thread's")
    wide = -(-blocks.columns // LANES) * LANES * blocks.rows * block.type.dtype.size
    need(layout_bytes(block.type, block.layout, plan.sizes) >= wide, f"{where} has room for a block")


def _has_columns(load: Load, axis: int, buffer: Buffer) -> bool:
    """Are the columns of a matrix its last dimension, whole and in order?"""
    if not load.index or load.index[-1].plain == axis:
        return bool(load.index)
    steps = [dict(i.terms).get(axis, 0) for i in load.index]
    return buffer.layout == Layout.ROWS and steps[-1] == 1 and not any(steps[:-1])


# -- scatters ----------------------------------------------------------------------------------------------------


def check_scatter(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A scatter: one dimension of the target is looked up, the others are axes of the updates."""
    scatter, where = kernel.body, f"the scatter of kernel {kernel.id}"
    assert isinstance(scatter, Scatter)
    target, axes = scatter.target, range(len(kernel.axes))
    need(all(a in axes for a in scatter.over), f"{where} runs over its axes")
    need(0 <= scatter.at < len(target.index), f"{where} looks up a dimension of its target")
    at = target.index[scatter.at]
    need(not at.terms and at.offset == 0 and at.value is None, f"{where} has nothing but the index there")
    others = [i for d, i in enumerate(target.index) if d != scatter.at]
    need(all(i.plain is not None or (not i.terms and i.value is None) for i in others), f"{where} has plain places")
    buffers = [plan.buffers[x.buffer] for x in (scatter.target, scatter.updates, scatter.index)]
    need(all(b.layout == Layout.ROWS for b in buffers), f"{where} is over rows")
    need(buffers[0].type.dtype == buffers[1].type.dtype, f"{where} adds numbers of one dtype")
    need(buffers[2].type.dtype.is_integer, f"{where} is at integers")
    for load in (scatter.updates, scatter.index):
        need(all(i.value is None for i in load.index), f"{where} has indices of axes")
    seen = range(max(scatter.over, default=-1) + 1 if scatter.over else len(kernel.axes))
    need(all(a in seen for i in scatter.index.index for a, _ in i.terms), f"{where} finds its index where it is used")
