"""The largest value of a step in two halves, or more parts: one after the other has its place.

The scores of a language model and their gradient are larger than everything else.  Each row of them is made of one row
of what is before, and needed for one row of what is behind, or for a sum over rows.  So

    product, loss and gradient, both gradients of the product      for the first half of the rows, then for the second

where the second sum over rows is added to the first.  Where memory is short, quarters or less take the place of halves:
each adds a pass over that sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from wholestep.compiler.ir.types import Dim, Extent, TensorType
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Index, Instr, Kernel, Level, Load, Space, Store
from wholestep.compiler.plan.model.layout import layout_bytes

LEAST_BYTES = 1 << 30  # of what is cut


@dataclass(frozen=True)
class _Cut:
    """What is made in parts: two buffers, the kernel between them, and all kernels with the axis of their rows."""

    values: int
    gradient: int
    rows: Extent
    part: Extent  # rows of one
    parts: int
    axes: dict[int, int]  # kernel -> the axis that is cut, in order
    summed: frozenset[int]  # kernels that add up over it


def in_parts(draft: Draft, halvings: int = 0) -> Draft:
    """The draft with its largest value in parts, where it is large and everything about it goes by rows.

    Args:
        halvings: of the parts, to save memory; then smaller values are cut as well.
    """
    least, parts = LEAST_BYTES >> 6 * halvings, 2 << halvings
    held = [b for b in draft.buffers if b.space is Space.ARENA and b.bytes >= least and b.type.rank == 2]
    for buffer in sorted(held, key=lambda b: -b.bytes):
        cut = None if draft.loops else _find(draft, buffer.id, parts)
        if cut is not None:
            return _cut(draft, cut)
    return draft


def _find(draft: Draft, values: int, parts: int) -> _Cut | None:
    writers, readers = _writers_and_readers(draft, values)
    if len(writers) != 1 or len(readers) != 1 or not isinstance(readers[0].body, Nest):
        return None
    product, middle = writers[0], readers[0]
    rows = draft.buffers[values].type.shape[0]
    part = _divide_extent(rows, parts)
    same = [
        s.load.buffer
        for level in middle.levels
        for s in level.stores
        if draft.buffers[s.load.buffer].type == draft.buffers[values].type
    ]
    if (
        part is None
        or len(same) != 1
        or not isinstance(product.body, Dot)
        or draft.buffers[same[0]].space is not Space.ARENA
    ):
        return None
    (gradient,) = same
    made, behind = _writers_and_readers(draft, gradient)
    if [k.id for k in made] != [middle.id] or not all(isinstance(k.body, Dot) for k in behind):
        return None
    axes: dict[int, int] = {}
    for kernel in (product, middle, *behind):
        axis = _axis_of(kernel, values if kernel is product or kernel is middle else gradient)
        if axis is None or kernel.axes[axis] != rows or not _goes_by_rows(kernel, axis, rows):
            return None
        axes[kernel.id] = axis
    summed = frozenset(k.id for k in behind if isinstance(k.body, Dot) and axes[k.id] == k.body.k)
    made_later = {x.buffer for k in _dependents_of_chunks(draft, axes) for x in draft.kernels[k].body.stores()}
    needed = {x.buffer for id in axes for x, _ in draft.kernels[id].body.reads()}
    plain = all(_is_plain(draft.kernels[k]) for k in summed)
    return _Cut(values, gradient, rows, part, parts, axes, summed) if plain and not made_later & needed else None


def _writers_and_readers(draft: Draft, buffer: int) -> tuple[list[Kernel], list[Kernel]]:
    """Who writes a buffer, and who reads it."""
    writers = [k for k in draft.kernels if any(x.buffer == buffer for x in k.body.stores())]
    readers = [k for k in draft.kernels if any(x.buffer == buffer for x, _ in k.body.reads())]
    return writers, readers


def _dependents_of_chunks(draft: Draft, cut: Mapping[int, int]) -> set[int]:
    """Kernels that stand among those that are cut and need one of them: they wait for all parts."""
    made = {x.buffer for id in cut for x in draft.kernels[id].body.stores()}
    found: set[int] = set()
    for k in draft.kernels[min(cut) : max(cut)]:
        if k.id not in cut and any(x.buffer in made for x, _ in k.body.reads()):
            found.add(k.id)
            made |= {x.buffer for x in k.body.stores()}
    return found


def _divide_extent(extent: Extent, parts: int) -> Extent | None:
    if isinstance(extent, Dim):
        even = all(c % parts == 0 for _, c in extent.terms)
        return Dim(tuple((names, c // parts) for names, c in extent.terms)) if even else None
    return extent // parts if extent % parts == 0 else None


def _places(kernel: Kernel) -> list[Load]:
    return [*(x for x, _ in kernel.body.reads()), *kernel.body.stores()]


def _axis_of(kernel: Kernel, buffer: int) -> int | None:
    """The axis of a kernel along the rows of a buffer."""
    found = {x.index[0].plain for x in _places(kernel) if x.buffer == buffer}
    return found.pop() if len(found) == 1 else None


def _goes_by_rows(kernel: Kernel, axis: int, rows: Extent) -> bool:
    """Does a kernel use nothing but the row itself of whatever has rows?"""

    def is_row(load: Load) -> bool:
        first = load.index[0].plain == axis and load.shape[0] == rows if load.index else False
        rest = load.index[1:] if first else load.index
        return not any(a == axis for i in rest for a, _ in i.terms)

    instrs = [i for level in kernel.levels for i in (*level.row, *level.body)]
    counted = any(a == axis for i in instrs if i.index is not None for a, _ in i.index.terms)
    guarded = any(a == axis for i in instrs for g in i.guards for a, _ in g.index.terms)
    sums = any(level.sums for level in kernel.levels)
    return all(map(is_row, _places(kernel))) and not (counted or guarded or sums)


def _is_plain(kernel: Kernel) -> bool:
    return isinstance(kernel.body, Dot) and kernel.body.is_direct and len(kernel.body.levels) == 1


def _cut(draft: Draft, cut: _Cut) -> Draft:
    ids = list(cut.axes)
    own = [draft.kernels[id] for id in ids]
    elsewhere = _further(draft, cut)
    parts = [_part(k, cut, n, elsewhere[n]) for n in range(cut.parts) for k in sorted(own, key=lambda k: k.id)]
    late = {*_dependents_of_chunks(draft, cut.axes), *range(max(ids), len(draft.kernels))}
    others = [k for k in draft.kernels if k.id not in cut.axes]
    ordered = [*(k for k in others if k.id not in late), *parts, *(k for k in others if k.id in late)]
    buffers = list(draft.buffers)
    for id in (cut.values, cut.gradient):
        type = TensorType((cut.part, *buffers[id].type.shape[1:]), buffers[id].type.dtype)
        buffers[id] = replace(buffers[id], type=type, bytes=layout_bytes(type, buffers[id].layout, draft.sizes))
    for further in elsewhere[1:]:
        buffers += [replace(buffers[id], id=other) for id, other in further.items()]
    numbered = tuple(replace(k, id=n) for n, k in enumerate(ordered))
    return replace(draft, kernels=numbered, buffers=tuple(buffers))


def _further(draft: Draft, cut: _Cut) -> list[dict[int, int]]:
    """The buffers of each part, by those of the first: alive when no other part's are."""
    count = len(draft.buffers)
    return [
        {cut.values: count + 2 * n, cut.gradient: count + 2 * n + 1} if n >= 0 else {} for n in range(-1, cut.parts - 1)
    ]


def _part(kernel: Kernel, cut: _Cut, number: int, elsewhere: Mapping[int, int]) -> Kernel:
    """One part of a kernel: its rows begin somewhere in whatever has all of them."""
    axis, start = cut.axes[kernel.id], cut.part * number

    def place(load: Load) -> Load:
        if not load.index or load.index[0].plain != axis:
            return load
        if load.buffer in (cut.values, cut.gradient):
            return replace(load, buffer=elsewhere.get(load.buffer, load.buffer), shape=(cut.part, *load.shape[1:]))
        return replace(load, index=(Index(load.index[0].terms, start), *load.index[1:]))

    def instr(i: Instr) -> Instr:
        return i if i.load is None else replace(i, load=place(i.load))

    def level(v: Level) -> Level:
        return replace(
            v,
            row=tuple(map(instr, v.row)),
            row_stores=tuple(replace(s, load=place(s.load)) for s in v.row_stores),
            body=tuple(map(instr, v.body)),
            stores=tuple(replace(s, load=place(s.load)) for s in v.stores),
        )

    body = kernel.body
    assert isinstance(body, Nest | Dot)
    levels = tuple(map(level, body.levels))
    if kernel.id in cut.summed and number:
        levels = (_accumulate_into(levels[0]),)
    if isinstance(body, Dot):
        new: Nest | Dot = replace(body, a=place(body.a), b=place(body.b), levels=levels)
    else:
        new = replace(body, levels=levels)
    axes = tuple(cut.part if a == axis else e for a, e in enumerate(kernel.axes))
    return replace(kernel, axes=axes, body=new)


def _accumulate_into(level: Level) -> Level:
    """A product that is added to what is there."""
    (acc,), (store,) = level.body, level.stores
    held = Instr(acc.id + 1, "load", acc.dtype, load=store.load)
    both = Instr(acc.id + 2, "add", acc.dtype, (acc.id, held.id))
    return replace(level, body=(acc, held, both), stores=(Store(store.load, both.id),))
