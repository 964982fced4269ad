"""Sums at computed places that are added to a product's result: into it, where it lies.

A table that is both embedding and output layer has two gradients: a product as large as the table, and rows at the
places of the tokens.  Adding these rows to the product's result touches as many rows as there are tokens; a table of
their own would be zeroed, written and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.bodies import Nest, Scatter
from wholestep.compiler.plan.model.kernel import Draft, Instr, Kernel, Level, Space
from wholestep.compiler.plan.model.layout import align_up


def add_onto(draft: Draft, wanted: Sequence[int]) -> Draft:
    """The draft with these scatters into what they are added to, where nobody else reads either."""
    kernels, buffers = list(draft.kernels), list(draft.buffers)
    for id in wanted:
        scatter = kernels[id].body
        assert isinstance(scatter, Scatter)
        target = scatter.target.buffer
        readers = [k for k in kernels if any(load.buffer == target for load, _ in k.body.reads())]
        if len(readers) != 1 or buffers[target].space is not Space.ARENA:
            continue
        found = _without_addition(readers[0], target)
        if found is None or not _is_own(kernels, buffers[found[1]].space, found[1], readers[0], id):
            continue
        reader, other = found
        if buffers[other].type != buffers[target].type:
            continue
        kernels[reader.id] = reader
        onto = replace(scatter, target=replace(scatter.target, buffer=other), onto=True)
        kernels[id] = replace(kernels[id], body=onto)
        unused = TensorType((), buffers[target].type.dtype)
        buffers[target] = replace(buffers[target], type=unused, bytes=align_up(unused.dtype.size))
    return replace(draft, kernels=tuple(kernels), buffers=tuple(buffers))


def _is_own(kernels: Sequence[Kernel], space: Space, buffer: int, reader: Kernel, scatter: int) -> bool:
    """Is a buffer written by one kernel before the scatter, and read by one behind it?"""
    writers = [k.id for k in kernels if any(load.buffer == buffer for load in k.body.stores())]
    readers = [k.id for k in kernels if any(load.buffer == buffer for load, _ in k.body.reads())]
    return space is Space.ARENA and len(writers) == 1 and writers[0] < scatter < reader.id and readers == [reader.id]


def _without_addition(kernel: Kernel, target: int) -> tuple[Kernel, int] | None:
    """A kernel without the sum of a buffer and another one, which is read in its place; and that other one."""
    body = kernel.body
    if not isinstance(body, Nest) or len(body.levels) != 1 or kernel.loop is not None:
        return None
    (level,) = body.levels
    loads = {i.id: i for i in level.body if i.load is not None and not i.guards}
    mine = [i for i in loads.values() if i.load is not None and i.load.buffer == target]
    sums = [i for i in level.body if i.op == "add" and mine and mine[0].id in i.args and i.args[0] != i.args[1]]
    if len(mine) != 1 or len(sums) != 1 or _uses(level, mine[0].id) != 1:
        return None
    other = loads.get(next(a for a in sums[0].args if a != mine[0].id))
    if other is None or other.load is None or mine[0].load is None or _uses(level, other.id) != 1:
        return None
    if replace(other.load, buffer=target) != mine[0].load or other.dtype != sums[0].dtype:
        return None
    gone = {mine[0].id, sums[0].id}
    return replace(kernel, body=replace(body, levels=(_without(level, gone, sums[0].id, other.id),))), other.load.buffer


def _uses(level: Level, value: int) -> int:
    stored = [s.value for s in (*level.stores, *level.sums)] + [r.value for r in level.reduces]
    return sum(i.args.count(value) for i in level.body) + stored.count(value)


def _without(level: Level, gone: set[int], old: int, new: int) -> Level:
    """A level without some instructions, of which one is replaced by another value."""

    def value(v: int) -> int:
        return new if v == old else v

    def instr(i: Instr) -> Instr:
        return replace(i, args=tuple(map(value, i.args)))

    return replace(
        level,
        body=tuple(instr(i) for i in level.body if i.id not in gone),
        stores=tuple(replace(s, value=value(s.value)) for s in level.stores),
        sums=tuple(replace(s, value=value(s.value)) for s in level.sums),
        reduces=tuple(replace(r, value=value(r.value)) for r in level.reduces),
    )
