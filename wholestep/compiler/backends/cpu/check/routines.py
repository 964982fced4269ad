"""Checks that products, scatters and calls pass arguments that their native code accepts.

Blocks, extents and workspace of a kernel with native code are derived again from its operands, and must be equal to
those in the file.  Native code then never leaves the buffers it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import blocks_of, queries_of
from wholestep.compiler.backends.cpu.layout.operand_layout import keeps_panels
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.backends.cpu.tiling import (
    INNER_AXES,
    SCORES,
    attention_workspace,
    block_size,
    head_of,
    query_block,
)
from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.model.bodies import Call, Dot, Scatter
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Layout, Load, Operand, Plan, Space
from wholestep.compiler.plan.model.layout import layout_bytes

Need = Callable[[bool, str], None]


@dataclass(frozen=True)
class Routine:
    """The signature of a native routine: its operands by name, with their axes; axes of queries begin with `group`."""

    operands: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    optional: frozenset[str]  # operands that may be missing


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
ONE_BY_ONE = frozenset({"lse"})  # read element by element; every other operand is read along its last axis by vectors
SETTINGS = Settings()  # plan files have the default block sizes; others are only for experiments


def check_call(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A call: its operands, extents and scalars must be those that the routine declares."""
    call, queries, where = kernel.body, queries_of(kernel), f"the call of kernel {kernel.id}"
    assert isinstance(call, Call)
    need(call.routine in ROUTINES, f"{where} must be to a known routine; received {call.routine!r}")
    routine, lead = ROUTINES[call.routine], len(kernel.axes) - INNER_AXES
    need(lead >= 0 and call.rows == tuple(range(lead)), f"{where} must loop over its leading axes")
    group = kernel.axes[lead]
    need(
        isinstance(group, int) and call.dtype.is_float,
        f"{where} must have an integer number of heads and a float dtype",
    )
    assert isinstance(group, int)
    head = head_of(kernel)
    operands = [o.name for o in call.operands]
    expected = [name for name in routine.operands if name in operands or name not in routine.optional]
    need(operands == expected, f"{where} must have the operands {', '.join(expected)}")
    results = [o.name for o in call.results]
    need(bool(results) and len(set(results)) == len(results), f"{where} must have distinct results")
    for item, declared in [
        *((o, routine.operands.get(o.name)) for o in call.operands),
        *((o, routine.results.get(o.name)) for o in call.results),
    ]:
        need(
            declared is not None and item.axes == head.inner(*declared),
            f"{where} must pass {item.name!r} with its axes",
        )
        _check_view(plan, kernel, item, need)
    block = query_block(head, call.dtype.size, plan.sizes, SETTINGS)
    need(call.extents in (head.extents(False), head.extents(True)), f"{where} must have the extents of its axes")
    need(queries.block == block, f"{where} must have blocks of {block} queries")
    need(
        [n for n, _ in call.numbers] == ["scale"] and isfinite(call.numbers[0][1]), f"{where} must have a finite scale"
    )
    need("dmask" not in results or "mask" in operands, f"{where} computes the gradient of a mask that it does not have")
    room = attention_workspace(head, SCORES[call.routine], block)
    check_room(plan, queries.work, room, call, where, need)


def check_room(plan: Plan, id: int, room: Extent, call: Call, where: str, need: Need) -> None:
    need(0 <= id < len(plan.buffers), f"{where} must have a workspace")
    work = plan.buffers[id]
    need(
        work.space is Space.WORK and work.layout == Layout.ROWS, f"the workspace of {where} must be private to a thread"
    )
    need(work.type.dtype == call.dtype, f"the workspace of {where} must have its dtype")
    need(
        evaluate(work.type.elements, plan.sizes) >= evaluate(room, plan.sizes),
        f"the workspace of {where} must have {room} elements",
    )


def _check_view(plan: Plan, kernel: Kernel, item: Operand, need: Need) -> None:
    """Along its last axis an operand must be contiguous, or consist of complete panels."""
    assert isinstance(kernel.body, Call)
    where, buffer = f"{item.name!r} of kernel {kernel.id}", plan.buffers[item.load.buffer]
    need(buffer.type.dtype == kernel.body.dtype, f"{where} must have the dtype of the call")
    axes = {*kernel.rows, *item.axes}
    need(
        all(a in axes for i in item.load.index for a, _ in i.terms),
        f"the indices of {where} must depend on its axes only",
    )
    need(all(i.value is None and i.over == 1 for i in item.load.index), f"the indices of {where} must be affine")
    if item.name in ONE_BY_ONE:
        need(buffer.layout == Layout.ROWS, f"{where} must be stored in rows")
        return
    last = item.axes[-1]
    *others, columns = [dict(i.terms).get(last, 0) for i in item.load.index] or [0]
    contiguous = columns == 1 and not any(others)
    need(contiguous or kernel.axes[last] == 1, f"{where} must be contiguous along its last axis")
    if buffer.layout == PANELS:
        need(keeps_panels(item.load.index, last), f"{where} must begin at a panel boundary")


# -- products ----------------------------------------------------------------------------------------------------


def check_dot(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A product: its axes, layouts and blocks must be those that its operands require."""
    dot, blocks, where = kernel.body, blocks_of(kernel), f"the product of kernel {kernel.id}"
    assert isinstance(dot, Dot)
    rank = len(kernel.axes) - 1
    need(rank >= 2 and dot.batch == tuple(range(rank - 2)), f"{where} must have its batch axes first")
    need((dot.m, dot.n, dot.k) == (rank - 2, rank - 1, rank), f"the last axes of {where} must be m, n and k")
    need(len(kernel.levels) in (1, 3), f"{where} must have an epilogue, or that and column sums with their own")
    a, b = (plan.buffers[x.buffer] for x in (dot.a, dot.b))
    need(a.type.dtype.is_float and a.type.dtype == b.type.dtype, f"the operands of {where} must have one float dtype")
    for load, axes in ((dot.a, (*dot.batch, dot.m, dot.k)), (dot.b, (*dot.batch, dot.k, dot.n))):
        need(
            all(x in axes for i in load.index for x, _ in i.terms),
            f"operands of {where} must depend on their axes only",
        )
        need(all(i.value is None and i.over == 1 for i in load.index), f"the indices of {where} must be affine")
    down = a.layout == PANELS
    need(not down or dot.a.index[-1].plain in (dot.m, dot.k), f"{where} must read its left operand in complete panels")
    need(_has_columns(dot.b, dot.n, b), f"{where} must read its right operand row by row")
    expected = block_size(dot.a, a, dot.m, SETTINGS)
    need((blocks.rows, blocks.columns) == (expected.rows, expected.columns), f"{where} must have the default blocks")
    level = kernel.levels[0]
    sources = [i for i in level.body if i.op == "acc"]
    total = a.type.dtype.accumulate
    need(len(sources) == 1 and sources[0].dtype == total, f"{where} must have one accumulator of type {total}")
    paired = b.type.dtype.is_half and b.layout != PAIRS
    need((blocks.pairs is not None) == paired, f"{where} must pack its right operand if and only if it is not in pairs")
    if blocks.pairs is not None:
        need(0 <= blocks.pairs < len(plan.buffers), f"{where} must have a workspace for pairs")
        pairs, columns = plan.buffers[blocks.pairs], TensorType((kernel.axes[dot.k], blocks.columns), b.type.dtype)
        need(pairs.space is Space.WORK and pairs.layout == PAIRS, f"the pairs of {where} must be private to a thread")
        need(pairs.type == columns, f"the pairs of {where} must have room for its columns")
    if dot.is_direct:
        (store,) = level.stores
        target = plan.buffers[store.load.buffer]
        need(store.value == sources[0].id and target.type.dtype == total, f"{where} must be stored without conversion")
        need(_has_columns(store.load, dot.n, target), f"{where} must be stored row by row")
        need(all(i.value is None and i.over == 1 for i in store.load.index), f"the indices of {where} must be affine")
        return
    need(blocks.work is not None and 0 <= blocks.work < len(plan.buffers), f"{where} must have a workspace for a block")
    assert blocks.work is not None
    block = plan.buffers[blocks.work]
    need(block.space is Space.WORK and block.type.dtype == total, f"the block of {where} must be private to a thread")
    wide = -(-blocks.columns // LANES) * LANES * blocks.rows * block.type.dtype.size
    need(layout_bytes(block.type, block.layout, plan.sizes) >= wide, f"the workspace of {where} must fit a block")


def _has_columns(load: Load, axis: int, buffer: Buffer) -> bool:
    """Are the columns of a matrix its last dimension, complete and in order?"""
    if not load.index or load.index[-1].plain == axis:
        return bool(load.index)
    steps = [dict(i.terms).get(axis, 0) for i in load.index]
    return buffer.layout == Layout.ROWS and steps[-1] == 1 and not any(steps[:-1])


# -- scatters ----------------------------------------------------------------------------------------------------


def check_scatter(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A scatter: one dimension of the target is indexed by values, the other dimensions are axes of the updates."""
    scatter, where = kernel.body, f"the scatter of kernel {kernel.id}"
    assert isinstance(scatter, Scatter)
    target, axes = scatter.target, range(len(kernel.axes))
    need(all(a in axes for a in scatter.over), f"{where} must loop over its own axes")
    need(0 <= scatter.at < len(target.index), f"{where} must index a dimension of its target")
    at = target.index[scatter.at]
    need(not at.terms and at.offset == 0 and at.value is None, f"{where} must index that dimension by values alone")
    other_indices = [i for d, i in enumerate(target.index) if d != scatter.at]
    need(
        all(i.plain is not None or (not i.terms and i.value is None) for i in other_indices),
        f"the other indices of {where} must be axes or constants",
    )
    buffers = [plan.buffers[x.buffer] for x in (scatter.target, scatter.updates, scatter.index)]
    need(all(b.layout == Layout.ROWS for b in buffers), f"the buffers of {where} must be stored in rows")
    need(buffers[0].type.dtype == buffers[1].type.dtype, f"the target and updates of {where} must have one dtype")
    need(buffers[2].type.dtype.is_integer, f"the indices of {where} must be integers")
    for load in (scatter.updates, scatter.index):
        need(all(i.value is None for i in load.index), f"the loads of {where} must have no computed indices")
    outer_axes = range(max(scatter.over, default=-1) + 1 if scatter.over else len(kernel.axes))
    need(
        all(a in outer_axes for i in scatter.index.index for a, _ in i.terms), f"{where} must load its index before use"
    )
