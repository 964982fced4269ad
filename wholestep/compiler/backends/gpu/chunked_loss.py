"""Chunked loss head: logits, loss and their gradients are computed for one slice of the rows at a time, in one buffer.

The logits of a language model and their gradient are larger than all other buffers.  Each row of them depends on one
row of the hidden states, and contributes to one row of their gradient or to a sum over rows.  So the kernels

    product, loss and gradient, both gradients of the product      run for the first half of the rows, then the second

and the second sum over rows accumulates into the first.  If memory is short, quarters or smaller chunks are used: each
adds one pass over that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import Dim, Extent, TensorType
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Index, Instr, Kernel, Level, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes


@dataclass(frozen=True)
class _Cut:
    """The chunked computation: two buffers, the kernel between them, and the row axis of every kernel involved."""

    values: int
    gradient: int
    rows: Extent
    part: Extent  # number of rows of one chunk
    parts: int
    axes: dict[int, int]  # kernel -> the axis that is chunked, in execution order
    summed: frozenset[int]  # kernels that reduce over the chunked axis


def chunk_loss_head(draft: Draft, halvings: int = 0) -> Draft:
    """Chunks the largest buffer, if it is large enough and all kernels that access it work row by row.

    Args:
        halvings: how often the chunks are halved to save memory; smaller buffers are then chunked as well.
    """
    least, parts = costs_of(draft).memory.chunked_loss >> 6 * halvings, 2 << halvings
    candidates = [b for b in draft.buffers if b.space is Space.ARENA and b.bytes >= least and b.type.rank == 2]
    for buffer in sorted(candidates, key=lambda b: -b.bytes):
        cut = None if draft.loops else _find(draft, buffer.id, parts)
        if cut is not None:
            return _cut(draft, cut)
    return draft


def _find(draft: Draft, values: int, parts: int) -> _Cut | None:
    writers, readers = _writers_and_readers(draft, values)
    if len(writers) != 1 or len(readers) != 1 or not isinstance(readers[0].body, Nest):
        return None
    # The pattern: product -> values -> loss kernel -> gradient (of the same type) -> gradients of the product.
    product, loss_kernel = writers[0], readers[0]
    rows = draft.buffers[values].type.shape[0]
    part = _divide_extent(rows, parts)
    same_type_results = [
        s.load.buffer
        for level in loss_kernel.levels
        for s in level.stores
        if draft.buffers[s.load.buffer].type == draft.buffers[values].type
    ]
    if (
        part is None
        or len(same_type_results) != 1
        or not isinstance(product.body, Dot)
        or draft.buffers[same_type_results[0]].space is not Space.ARENA
    ):
        return None
    (gradient,) = same_type_results
    gradient_writers, gradient_readers = _writers_and_readers(draft, gradient)
    if [k.id for k in gradient_writers] != [loss_kernel.id] or not all(
        isinstance(k.body, Dot) for k in gradient_readers
    ):
        return None
    # Every kernel of the pattern must have one axis that runs over the rows, and access them at that index only: then a
    # kernel over a slice of the rows is the same kernel with a shorter axis.
    axes: dict[int, int] = {}
    for kernel in (product, loss_kernel, *gradient_readers):
        axis = _axis_of(kernel, values if kernel is product or kernel is loss_kernel else gradient)
        if axis is None or kernel.axes[axis] != rows or not _goes_by_rows(kernel, axis, rows):
            return None
        axes[kernel.id] = axis
    summed = frozenset(k.id for k in gradient_readers if isinstance(k.body, Dot) and axes[k.id] == k.body.k)
    # A chunk is computed completely before the next one.  So no chunk may read what a kernel after the chunks writes;
    # and products that sum over the rows must store plain sums, into which the next chunk accumulates.
    late_results = {x.buffer for k in _dependents_of_chunks(draft, axes) for x in draft.kernels[k].body.stores()}
    chunk_inputs = {x.buffer for id in axes for x, _ in draft.kernels[id].body.reads()}
    accumulable = all(_is_plain(draft.kernels[k]) for k in summed)
    return (
        _Cut(values, gradient, rows, part, parts, axes, summed)
        if accumulable and not late_results & chunk_inputs
        else None
    )


def _writers_and_readers(draft: Draft, buffer: int) -> tuple[list[Kernel], list[Kernel]]:
    """Kernels that write a buffer, and kernels that read it."""
    writers = [k for k in draft.kernels if any(x.buffer == buffer for x in k.body.stores())]
    readers = [k for k in draft.kernels if any(x.buffer == buffer for x, _ in k.body.reads())]
    return writers, readers


def _dependents_of_chunks(draft: Draft, cut: Mapping[int, int]) -> set[int]:
    """Kernels between chunked kernels that depend on a chunked kernel: they run after all chunks."""
    results = {x.buffer for id in cut for x in draft.kernels[id].body.stores()}
    dependents: set[int] = set()
    for k in draft.kernels[min(cut) : max(cut)]:
        if k.id not in cut and any(x.buffer in results for x, _ in k.body.reads()):
            dependents.add(k.id)
            results |= {x.buffer for x in k.body.stores()}
    return dependents


def _divide_extent(extent: Extent, parts: int) -> Extent | None:
    if isinstance(extent, Dim):
        even = all(c % parts == 0 for _, c in extent.terms)
        return Dim(tuple((names, c // parts) for names, c in extent.terms)) if even else None
    return extent // parts if extent % parts == 0 else None


def _accesses(kernel: Kernel) -> list[Load]:
    return [*(x for x, _ in kernel.body.reads()), *kernel.body.stores()]


def _axis_of(kernel: Kernel, buffer: int) -> int | None:
    """The kernel's axis along the rows of a buffer; None if that is ambiguous."""
    axes = {x.index[0].plain for x in _accesses(kernel) if x.buffer == buffer}
    return axes.pop() if len(axes) == 1 else None


def _goes_by_rows(kernel: Kernel, axis: int, rows: Extent) -> bool:
    """Does a kernel access only its own row of every buffer that has these rows?"""

    def is_row(load: Load) -> bool:
        first = load.index[0].plain == axis and load.shape[0] == rows if load.index else False
        rest = load.index[1:] if first else load.index
        return not any(a == axis for i in rest for a, _ in i.terms)

    instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
    uses_row_index = any(a == axis for i in instrs if i.index is not None for a, _ in i.index.terms)
    guarded = any(a == axis for i in instrs for g in i.guards for a, _ in g.index.terms)
    sums = any(level.sums for level in kernel.levels)
    return all(map(is_row, _accesses(kernel))) and not (uses_row_index or guarded or sums)


def _is_plain(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Dot) and kernel.body.is_direct and len(kernel.body.levels) == 1


def _cut(draft: Draft, cut: _Cut) -> Draft:
    ids = list(cut.axes)
    chunked = [draft.kernels[id] for id in ids]
    buffer_copies = _chunk_buffers(draft, cut)
    parts = [_part(k, cut, n, buffer_copies[n]) for n in range(cut.parts) for k in sorted(chunked, key=lambda k: k.id)]
    late = {*_dependents_of_chunks(draft, cut.axes), *range(max(ids), len(draft.kernels))}
    others = [k for k in draft.kernels if k.id not in cut.axes]
    ordered = [*(k for k in others if k.id not in late), *parts, *(k for k in others if k.id in late)]
    buffers = list(draft.buffers)
    for id in (cut.values, cut.gradient):
        type = TensorType((cut.part, *buffers[id].type.shape[1:]), buffers[id].type.dtype)
        buffers[id] = replace(buffers[id], type=type, bytes=layout_bytes(type, buffers[id].layout, draft.sizes))
    for copies in buffer_copies[1:]:
        buffers += [replace(buffers[id], id=other) for id, other in copies.items()]
    numbered = tuple(replace(k, id=n) for n, k in enumerate(ordered))
    return replace(draft, kernels=numbered, buffers=tuple(buffers))


def _chunk_buffers(draft: Draft, cut: _Cut) -> list[dict[int, int]]:
    """Chunk -> the copies of the two buffers; copies for different chunks are never live at the same time."""
    count = len(draft.buffers)
    return [
        {cut.values: count + 2 * n, cut.gradient: count + 2 * n + 1} if n >= 0 else {} for n in range(-1, cut.parts - 1)
    ]


def _part(kernel: Kernel, cut: _Cut, chunk: int, copies: Mapping[int, int]) -> Kernel:
    """One chunk of a kernel; accesses to unchunked buffers are offset by the chunk's first row."""
    axis, start = cut.axes[kernel.id], cut.part * chunk

    def chunk_load(load: Load) -> Load:
        if not load.index or load.index[0].plain != axis:
            return load
        if load.buffer in (cut.values, cut.gradient):
            return replace(load, buffer=copies.get(load.buffer, load.buffer), shape=(cut.part, *load.shape[1:]))
        return replace(load, index=(Index(load.index[0].terms, start), *load.index[1:]))

    def instr(i: Instr) -> Instr:
        return i if i.load is None else replace(i, load=chunk_load(i.load))

    def level(v: Level) -> Level:
        return replace(
            v,
            row=tuple(map(instr, v.row)),
            row_stores=tuple(replace(s, load=chunk_load(s.load)) for s in v.row_stores),
            body=tuple(map(instr, v.body)),
            stores=tuple(replace(s, load=chunk_load(s.load)) for s in v.stores),
        )

    body = kernel.body
    assert isinstance(body, Nest | Dot)
    levels = tuple(map(level, body.levels))
    if kernel.id in cut.summed and chunk:
        levels = (_accumulate_into(levels[0]),)
    if isinstance(body, Dot):
        new: Nest | Dot = replace(body, a=chunk_load(body.a), b=chunk_load(body.b), levels=levels)
    else:
        new = replace(body, levels=levels)
    axes = tuple(cut.part if a == axis else e for a, e in enumerate(kernel.axes))
    return replace(kernel, axes=axes, body=new)


def _accumulate_into(level: Level) -> Level:
    """Adds the product to the values already stored at its destination."""
    (acc,), (store,) = level.body, level.stores
    previous = Instr(acc.id + 1, "load", acc.dtype, load=store.load)
    total = Instr(acc.id + 2, "add", acc.dtype, (acc.id, previous.id))
    return replace(level, body=(acc, previous, total), stores=(Store(store.load, total.id),))
