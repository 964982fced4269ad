"""In-place scatter-add into a GEMM result, without a table-sized temporary.

A weight that is both embedding and output layer (tied embedding) has two gradients: a GEMM result as large as the
table, and one row per token.  Adding these rows to the GEMM result touches as many rows as there are tokens; a separate
table would be zeroed, written and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.backends.gpu.grids.scatter import schedule_scatter
from wholestep.compiler.backends.gpu.kernel_schedule import Form
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.bodies import Nest, Scatter
from wholestep.compiler.plan.model.kernel import Draft, Instr, Kernel, Level, Space
from wholestep.compiler.plan.model.layout import align_up


def accumulate_scatters_in_place(draft: Draft) -> Draft:
    """Redirects sorted scatters into the buffer that their result is added to, if nothing else reads either buffer."""
    kernels, buffers = list(draft.kernels), list(draft.buffers)
    scatters = [k for k in draft.kernels if isinstance(k.body, Scatter)]
    for id in [k.id for k in scatters if schedule_scatter(draft, k).form == Form.SCATTER_SORTED]:
        scatter = kernels[id].body
        assert isinstance(scatter, Scatter)
        target = scatter.target.buffer
        # target = scatter(...); y = target + other  becomes  other += scatter(...); y = other.  It is sound if the
        # addition is the only reader of both, and `other` is complete before the scatter runs.
        readers = [k for k in kernels if any(load.buffer == target for load, _ in k.body.reads())]
        if len(readers) != 1 or buffers[target].space is not Space.ARENA:
            continue
        rewritten = _without_addition(readers[0], target)
        if rewritten is None or not _has_single_use(kernels, buffers[rewritten[1]].space, rewritten[1], readers[0], id):
            continue
        reader, other = rewritten
        if buffers[other].type != buffers[target].type:
            continue
        kernels[reader.id] = reader
        accumulating = replace(scatter, target=replace(scatter.target, buffer=other), onto=True)
        kernels[id] = replace(kernels[id], body=accumulating)
        unused = TensorType((), buffers[target].type.dtype)
        buffers[target] = replace(buffers[target], type=unused, bytes=align_up(unused.dtype.size))
    return replace(draft, kernels=tuple(kernels), buffers=tuple(buffers))


def _has_single_use(kernels: Sequence[Kernel], space: Space, buffer: int, reader: Kernel, scatter: int) -> bool:
    """Is a buffer written by one kernel before the scatter and read by one kernel after it?"""
    writers = [k.id for k in kernels if any(load.buffer == buffer for load in k.body.stores())]
    readers = [k.id for k in kernels if any(load.buffer == buffer for load, _ in k.body.reads())]
    return space is Space.ARENA and len(writers) == 1 and writers[0] < scatter < reader.id and readers == [reader.id]


def _without_addition(kernel: Kernel, target: int) -> tuple[Kernel, int] | None:
    """Removes `target + other` from a kernel, which then reads `other` instead; returns the kernel and that buffer."""
    body = kernel.body
    if not isinstance(body, Nest) or len(body.levels) != 1 or kernel.loop is not None:
        return None
    (level,) = body.levels
    loads = {i.id: i for i in level.body if i.load is not None and not i.guards}
    target_loads = [i for i in loads.values() if i.load is not None and i.load.buffer == target]
    sums = [
        i
        for i in level.body
        if i.op == "add" and target_loads and target_loads[0].id in i.args and i.args[0] != i.args[1]
    ]
    if len(target_loads) != 1 or len(sums) != 1 or _uses(level, target_loads[0].id) != 1:
        return None
    other = loads.get(next(a for a in sums[0].args if a != target_loads[0].id))
    if other is None or other.load is None or target_loads[0].load is None or _uses(level, other.id) != 1:
        return None
    if replace(other.load, buffer=target) != target_loads[0].load or other.dtype != sums[0].dtype:
        return None
    removed = {target_loads[0].id, sums[0].id}
    return replace(
        kernel, body=replace(body, levels=(_without(level, removed, sums[0].id, other.id),))
    ), other.load.buffer


def _uses(level: Level, value: int) -> int:
    stored = [s.value for s in (*level.stores, *level.sums)] + [r.value for r in level.reduces]
    return sum(i.args.count(value) for i in level.body) + stored.count(value)


def _without(level: Level, removed: set[int], old: int, new: int) -> Level:
    """Removes instructions from a level and replaces uses of the value `old` by `new`."""

    def value(v: int) -> int:
        return new if v == old else v

    def instr(i: Instr) -> Instr:
        return replace(i, args=tuple(map(value, i.args)))

    return replace(
        level,
        body=tuple(instr(i) for i in level.body if i.id not in removed),
        stores=tuple(replace(s, value=value(s.value)) for s in level.stores),
        sums=tuple(replace(s, value=value(s.value)) for s in level.sums),
        reduces=tuple(replace(r, value=value(r.value)) for r in level.reduces),
    )
