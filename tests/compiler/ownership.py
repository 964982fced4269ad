"""Who touches what: every (thread, byte) of a step, enumerated from the plan's data alone.

`violations(plan, sizes, threads)` walks the kernels as kernel.py documents them and lists every broken promise:

- within a region, a byte that one thread writes is touched by no other thread;
- what is read was written before, in this step, by the buffer that owns the bytes (arena, outputs), or is still as it
  was when the step began (states and their copies);
- no index leaves its dimension, and no byte its buffer;
- every output, every updated state and its copy is written, whole and once; of a state that rows are written into,
  as many as come, all of them (behind a start of 0: another one moves all threads alike).

It shares no code with the planner's own reasoning (`touch.free`), so that one checks the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np

from wholestep.compiler.backends.cpu.kernel_schedule import schedule_of
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.ir.types import Dim, evaluate
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Scatter, Window
from wholestep.compiler.plan.model.kernel import Buffer, Guard, Index, Instr, Kernel, Layout, Load, Plan, Space

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

ROW_LOAD, ROW_STORE, LOAD, STORE, PHASES = range(5)  # the order within one level of a kernel
BEFORE_LEVELS = -1  # operands of a contraction or a scatter: no place in the loops that follow
LANES = 16
READ_ONLY = (Space.INPUT, Space.CONSTANT)
OLD_VALUE = (Space.INPUT, Space.CONSTANT, Space.STATE, Space.COPY)  # reads see what was there when the step began


@dataclass(frozen=True)
class Event:
    """One load or store of a kernel, over all iterations that one thread runs."""

    buffer: int
    write: bool
    phase: int  # level * PHASES + (ROW_LOAD ... STORE), or BEFORE_LEVELS
    cells: Array  # positions in the stored buffer, in elements
    rows: Array  # the iteration of the outer loops in which each cell is touched
    lanes: Array  # the same for the inner loop


class OutOfRangeError(Exception):
    """An index that leaves its dimension."""


# -- the iteration space ---------------------------------------------------------------------------------------------


def owned(extent: int, granule: int, thread: int, threads: int) -> range:
    """Whole granules, contiguous, as even as they come: what ws.h promises of `ws_own`."""
    granules = -(-extent // granule)
    bounds = [min(extent, granules * t // threads * granule) for t in (thread, thread + 1)]
    return range(*bounds)


def ranges(kernel: Kernel, sizes: Sizes, thread: int, threads: int) -> list[range] | None:
    """What a thread runs over, axis by axis; None if it has no part in the kernel."""
    spans = [range(evaluate(e, sizes)) for e in kernel.axes]
    how = schedule_of(kernel)
    if how.split is None:
        return spans if thread == 0 else None
    spans[how.split] = owned(len(spans[how.split]), how.granule, thread, threads)
    return spans if len(spans[how.split]) else None


def grid(spans: Sequence[range], axes: Sequence[int]) -> dict[int, Array]:
    """The coordinates of every point of the space of some axes, flat."""
    mesh = np.meshgrid(*[np.asarray(spans[a], np.int64) for a in axes], indexing="ij") if axes else []
    return {a: m.reshape(-1) for a, m in zip(axes, mesh, strict=True)}


def count(spans: Sequence[range], axes: Sequence[int]) -> int:
    return prod(len(spans[a]) for a in axes)


def number(points: Mapping[int, Array], axes: Sequence[int], kernel: Kernel, sizes: Sizes, length: int) -> Array:
    """One number per combination of some axes, the same for every thread."""
    out = np.zeros(length, np.int64)
    for a in axes:
        out = out * evaluate(kernel.axes[a], sizes) + points[a]
    return out


# -- where an access is ----------------------------------------------------------------------------------------------


def positions(index: Index, points: Mapping[int, Array], sizes: Sizes, length: int) -> Array:
    out = np.full(length, evaluate(index.offset, sizes), np.int64)
    for axis, coefficient in index.terms:
        out = out + points[axis] * evaluate(coefficient, sizes)
    return out // index.over


def inside(guards: Sequence[Guard], points: Mapping[int, Array], sizes: Sizes, length: int) -> Array:
    keep = np.ones(length, bool)
    for g in guards:
        at = positions(g.index, points, sizes, length)
        keep &= (evaluate(g.lo, sizes) <= at) & (at < evaluate(g.hi, sizes))
    return keep


def cells_of(
    load: Load, buffer: Buffer, points: Mapping[int, Array], sizes: Sizes, length: int, keep: Array
) -> tuple[Array, Array]:
    """(stored position, number of the point) of everything an access touches; a computed index may be anything."""
    found, which = np.zeros((int(keep.sum()), 0), np.int64), np.flatnonzero(keep)
    for i, extent in zip(load.index, load.shape, strict=True):
        size = evaluate(extent, sizes)
        if i.value is None:
            column = positions(i, points, sizes, length)[which]
        elif i.terms:  # after a start; elements outside the range are dropped
            column = positions(i, points, sizes, length)[which]
            kept = column < size
            found, which, column = found[kept], which[kept], column[kept]
        else:
            assert (i.terms, i.offset) == ((), 0), "a computed index stands alone"
            column = np.tile(np.arange(size), len(which))
            found, which = np.repeat(found, size, axis=0), np.repeat(which, size)
        if column.size and (column.min() < 0 or column.max() >= size):
            raise OutOfRangeError(f"index {column.min()} to {column.max()} of {size} in buffer {buffer.id}")
        found = np.column_stack([found, column])
    return stored_position(found, [evaluate(e, sizes) for e in load.shape], buffer.layout), which


def stored_position(index: Array, shape: Sequence[int], layout: Layout) -> Array:
    """Row-major, or by panels of 16 columns."""
    if layout == PANELS:
        column = index[:, -1]
        index = np.column_stack([index[:, :-2], column // LANES, index[:, -2], column % LANES])
        shape = [*shape[:-2], -(-shape[-1] // LANES), shape[-2], LANES]
    out = np.zeros(len(index), np.int64)
    for d, extent in enumerate(shape):
        out = out * extent + index[:, d]
    return out


def whole(buffer: Buffer, sizes: Sizes, rows: int | None = None) -> Array:
    """The positions of all elements of a buffer, or of its first rows."""
    shape = [evaluate(e, sizes) for e in buffer.type.shape]
    index = np.indices(shape).reshape(len(shape), -1).T if shape else np.zeros((1, 0), np.int64)
    index = index if rows is None else index[index[:, 0] < rows]
    return stored_position(index, shape, buffer.layout)


# -- what a kernel does ----------------------------------------------------------------------------------------------


class Walk:
    """The events of one kernel on one thread."""

    def __init__(self, plan: Plan, kernel: Kernel, sizes: Sizes, spans: list[range]) -> None:
        self.plan, self.kernel, self.sizes, self.spans = plan, kernel, sizes, spans
        self.events: list[Event] = []
        self.seen: dict[tuple[int, ...], tuple[dict[int, Array], Array, Array]] = {}
        self.levels()
        if isinstance(d := kernel.body, Dot):
            self.touch(d.a, False, BEFORE_LEVELS, (*d.batch, d.m, d.k))
            self.touch(d.b, False, BEFORE_LEVELS, (*d.batch, d.k, d.n))
        if isinstance(kernel.body, Scatter):
            self.scatter(kernel.body)
        if isinstance(called := kernel.body, Call | Window):
            for item, write in [(o, False) for o in called.operands] + [(o, True) for o in called.results]:
                used = sorted({a for i in item.load.index for a, _ in i.terms})
                self.touch(item.load, write, STORE if write else BEFORE_LEVELS, used)

    def levels(self) -> None:
        k = self.kernel
        for number, level in enumerate(k.levels):
            inner = (*k.rows, *([] if k.vector is None else [k.vector]))
            if isinstance(k.body, Columns) and number == 0:
                inner = (*inner, k.body.reduced)
            if isinstance(k.body, Dot) and number:  # sums of the columns of the right operand; what follows them
                inner = (k.body.n, k.body.k) if number == 1 else (k.body.n,)
            if (
                isinstance(k.body, Window) and k.body.pooled is not None and number == 0
            ):  # every pixel of a pool's window
                inner = (*inner, 4, 5)
            first = number * PHASES
            self.loads(level.row, first + ROW_LOAD, k.rows)
            self.loads(level.body, first + LOAD, inner)
            for s in level.row_stores:
                self.touch(s.load, True, first + ROW_STORE, k.rows)
            for s in level.stores:
                self.touch(s.load, True, first + STORE, inner)

    def loads(self, instrs: Sequence[Instr], phase: int, axes: Sequence[int]) -> None:
        for i in instrs:
            if i.load is not None:
                self.touch(i.load, False, phase, axes, i.guards)

    def scatter(self, s: Scatter) -> None:
        """The whole indexed dimension of the target is zeroed, then added to."""
        self.touch(s.updates, False, BEFORE_LEVELS, range(len(self.kernel.axes)))
        self.touch(s.index, False, BEFORE_LEVELS, s.over)
        anywhere = (*s.target.index[: s.at], Index(value=0), *s.target.index[s.at + 1 :])
        kept = [a for a in range(len(self.kernel.axes)) if a not in s.over]
        self.touch(Load(s.target.buffer, s.target.shape, anywhere), True, BEFORE_LEVELS, kept)

    def touch(self, load: Load, write: bool, phase: int, axes: Sequence[int], guards: Sequence[Guard] = ()) -> None:
        buffer = self.plan.buffers[load.buffer]
        points, rows, lanes = self.iterations(tuple(axes))
        length = len(rows)
        keep = inside(guards, points, self.sizes, length)
        cells, which = cells_of(load, buffer, points, self.sizes, length, keep)
        self.events.append(Event(load.buffer, write, phase, cells, rows[which], lanes[which]))

    def iterations(self, axes: tuple[int, ...]) -> tuple[dict[int, Array], Array, Array]:
        """The points of the space of some axes, and the numbers of their rows and lanes."""
        if axes not in self.seen:
            k, points, length = self.kernel, grid(self.spans, axes), count(self.spans, axes)
            rows = number(points, [a for a in k.rows if a in points], k, self.sizes, length)
            lanes = number(points, [a for a in points if a not in k.rows], k, self.sizes, length)
            self.seen[axes] = points, rows, lanes
        return self.seen[axes]


def distinct(cells: Array) -> Array:
    """Each position once, in order: `np.unique`, which sorts, took a third of the time of all these tests."""
    seen = np.zeros(int(cells.max(initial=-1)) + 1, bool)
    seen[cells] = True
    return np.flatnonzero(seen)


def shared(a: Array, b: Array) -> Array:
    """The positions that both have."""
    seen = np.zeros((2, int(max(a.max(initial=-1), b.max(initial=-1))) + 1), bool)
    seen[0, a] = True
    seen[1, b] = True
    return np.flatnonzero(seen[0] & seen[1])


def extremes(cells: Array, values: Array, size: int) -> tuple[Array, Array]:
    """The smallest and largest value that each cell is touched with."""
    low, high = np.full(size, np.iinfo(np.int64).max), np.full(size, -1, np.int64)
    np.minimum.at(low, cells, values)
    np.maximum.at(high, cells, values)
    return low, high


def same_iteration(read: Event, write: Event, numbers: str, size: int) -> bool:
    """Are the cells that both touch always touched in the same iteration?"""
    both = shared(read.cells, write.cells)
    low_r, high_r = extremes(read.cells, getattr(read, numbers), size)
    low_w, high_w = extremes(write.cells, getattr(write, numbers), size)
    low, high = np.minimum(low_r, low_w)[both], np.maximum(high_r, high_w)[both]
    return bool(np.all(low == high))


def in_place_faults(kernel: Kernel, events: Sequence[Event], buffers: Sequence[Buffer]) -> Iterator[str]:
    """A kernel that reads what it writes: states before they are overwritten, its own results after."""
    for read in (e for e in events if not e.write):
        buffer = buffers[read.buffer]
        for write in (e for e in events if e.write and e.buffer == read.buffer):
            where = f"kernel {kernel.id} reads and writes buffer {buffer.id}"
            size = 1 + int(max(read.cells.max(initial=0), write.cells.max(initial=0)))
            if not shared(read.cells, write.cells).size:
                continue
            if BEFORE_LEVELS in (read.phase, write.phase):
                yield f"{where} in no order"
            elif buffer.space in OLD_VALUE:
                if read.phase > write.phase:
                    yield f"{where}, which is then no longer the old value"
                if not same_iteration(read, write, "rows", size):
                    yield f"{where} in different rows"
                same_loop = read.phase // PHASES == write.phase // PHASES and read.phase % PHASES == LOAD
                if same_loop and not same_iteration(read, write, "lanes", size):
                    yield f"{where} in different lanes"
            elif write.phase > read.phase:
                yield f"{where} before it is computed"
            elif buffer.space is not Space.WORK and not same_iteration(read, write, "rows", size):
                yield f"{where} in different rows"


# -- a step ----------------------------------------------------------------------------------------------------------


class Memory:
    """All bytes of a step: which buffer wrote each, and who touched each in the current region."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.base: dict[int, int] = {}
        end = plan.arena_bytes
        for b in plan.buffers:
            if b.space is Space.ARENA:
                self.base[b.id] = b.offset
            elif b.space is not Space.WORK:
                self.base[b.id] = end
                end += b.bytes
        self.owner = np.full(end, -1, np.int32)
        self.touched = np.zeros(end, np.uint64)
        self.written = np.zeros(end, np.uint64)

    def bytes(self, buffer: Buffer, cells: Array) -> Array:
        size = buffer.type.dtype.size
        if cells.size and (cells.max() + 1) * size > buffer.bytes:
            raise OutOfRangeError(f"element {cells.max()} of buffer {buffer.id}, which has {buffer.bytes} bytes")
        return (self.base[buffer.id] + distinct(cells)[:, None] * size + np.arange(size)).reshape(-1)

    def shared_bytes(self) -> int:
        """Bytes that one thread wrote and another touched since the last barrier."""
        several = (self.touched & (self.touched - np.uint64(1))) != 0
        return int(np.count_nonzero(several & (self.written != 0)))

    def forget(self, buffers: Collection[int], thread: int) -> None:
        """What a thread, or everybody before the last barrier, wrote there is not to be read any more."""
        if not buffers:
            return
        mine = (self.written == 0) | (self.written == np.uint64(1 << thread))
        self.owner[np.isin(self.owner, list(buffers)) & mine] = -1

    def barrier(self) -> None:
        self.touched[:] = 0
        self.written[:] = 0


def violations(plan: Plan, sizes: Sizes | None = None, threads: int = 3) -> list[str]:
    """Every broken promise of a plan at these sizes (its capacity by default) on so many threads."""
    return list(_violations(plan, plan.sizes if sizes is None else sizes, threads))


def is_unsound(plan: Plan, threads: int = 3) -> bool:
    """Is any promise broken at its capacity?"""
    return any(True for _ in _violations(plan, plan.sizes, threads))


def _violations(plan: Plan, sizes: Sizes, threads: int) -> Iterator[str]:
    memory = Memory(plan)
    order = [schedule_of(k).region for k in plan.kernels]
    if order != sorted(order):
        yield f"kernels are not in the order of their regions: {order}"
        return
    for stretch in stretches(plan, sizes):
        memory.barrier()
        # Threads one after the other: had one read what another wrote, `shared_bytes` reports it.
        for thread in range(threads):
            for kernel, here, fresh in stretch:
                memory.forget(fresh, thread)
                spans = ranges(kernel, here, thread, threads)
                if spans is not None:
                    yield from _run(memory, kernel, here, spans, thread)
        if shared := memory.shared_bytes():
            region = schedule_of(stretch[0][0]).region
            yield f"region {region}: {shared} bytes are written by one thread and touched by another"
    yield from _incomplete(memory, sizes)


# A kernel, the sizes it sees, and the buffers that a new step begins without.
Turn = tuple[Kernel, Sizes, frozenset[int]]


def stretches(plan: Plan, sizes: Sizes) -> Iterator[list[Turn]]:
    """What runs between two barriers, one after the other; all steps of a loop without barriers are one."""
    for loop, group in groupby(plan.kernels, key=lambda k: k.loop):
        kernels = list(group)
        if loop is None:
            for _, region in groupby(kernels, key=lambda k: schedule_of(k).region):
                yield [(k, sizes, frozenset()) for k in region]
            continue
        steps = steps_of(plan, loop, kernels, sizes)
        if plan.loops[loop].barrier:
            for step in steps:
                for _, region in groupby(step, key=lambda turn: schedule_of(turn[0]).region):
                    yield list(region)
        elif len({schedule_of(k).region for k in kernels}) == 1:
            yield [turn for step in steps for turn in step]
        else:
            raise AssertionError(f"loop {loop} has barriers inside and none between its steps")


def steps_of(plan: Plan, loop: int, kernels: Sequence[Kernel], sizes: Sizes) -> list[list[Turn]]:
    """The turns of each step; what only a step uses is not there yet when the next one begins."""
    outside = {e.buffer for k in plan.kernels if k.loop != loop for e in accessed(k)}
    stacked = {e.buffer for k in kernels for e in accessed(k) if any(isinstance(i.offset, Dim) for i in e.index)}
    own = frozenset({e.buffer for k in kernels for e in accessed(k)} - outside - stacked)
    own = frozenset(b for b in own if plan.buffers[b].space is Space.ARENA)
    count = evaluate(plan.loops[loop].length, sizes)
    order = reversed(range(count)) if plan.loops[loop].reverse else range(count)
    nothing: frozenset[int] = frozenset()
    return [
        [(k, {**sizes, plan.loops[loop].symbol: n}, nothing if i else own) for i, k in enumerate(kernels)]
        for n in order
    ]


def accessed(kernel: Kernel) -> list[Load]:
    """Every place that a kernel reads or writes."""
    found = [i.load for level in kernel.levels for i in (*level.row, *level.body) if i.load is not None]
    found += [s.load for level in kernel.levels for s in (*level.row_stores, *level.stores)]
    if isinstance(kernel.body, Dot):
        found += [kernel.body.a, kernel.body.b]
    if isinstance(kernel.body, Scatter):
        found += [kernel.body.target, kernel.body.updates, kernel.body.index]
    if isinstance(kernel.body, Call | Window):
        found += [o.load for o in (*kernel.body.operands, *kernel.body.results)]
    return found


def _run(memory: Memory, kernel: Kernel, sizes: Sizes, spans: list[range], thread: int) -> Iterator[str]:
    plan = memory.plan
    try:
        events = Walk(plan, kernel, sizes, spans).events
        yield from in_place_faults(kernel, events, plan.buffers)
        yield from _reads(memory, kernel, events, thread)
        yield from _writes(memory, kernel, events, thread)
    except OutOfRangeError as error:
        yield f"kernel {kernel.id}: {error}"


def _reads(memory: Memory, kernel: Kernel, events: Sequence[Event], thread: int) -> Iterator[str]:
    for e in (e for e in events if not e.write):
        buffer = memory.plan.buffers[e.buffer]
        own = [w.cells for w in events if w.write and w.buffer == e.buffer and w.phase < e.phase]
        if buffer.space is Space.WORK:
            if not np.isin(e.cells, np.concatenate([*own, []])).all():
                yield f"kernel {kernel.id} reads workspace {buffer.id} that it did not write"
            continue
        at = memory.bytes(buffer, e.cells)
        memory.touched[at] |= np.uint64(1 << thread)
        if buffer.space in OLD_VALUE:
            if (memory.owner[at] != -1).any():
                yield f"kernel {kernel.id} reads the {buffer.space.value} {buffer.id} after it was overwritten"
        else:
            foreign = at[memory.owner[at] != buffer.id]
            covered = memory.bytes(buffer, np.concatenate([*own, []]).astype(np.int64))
            if not np.isin(foreign, covered).all():
                yield f"kernel {kernel.id} reads buffer {buffer.id} where nobody has written it"


def _writes(memory: Memory, kernel: Kernel, events: Sequence[Event], thread: int) -> Iterator[str]:
    plan, seen = memory.plan, set()
    updated = {id for name, id in plan.states if name in plan.updated}
    for e in (e for e in events if e.write):
        buffer = plan.buffers[e.buffer]
        if buffer.space is Space.WORK:
            continue
        at = memory.bytes(buffer, e.cells)
        state = buffer.source if buffer.space is Space.COPY else buffer.id
        if buffer.space in READ_ONLY or (buffer.space in (Space.STATE, Space.COPY) and state not in updated):
            yield f"kernel {kernel.id} writes the {buffer.space.value} {buffer.id}"
        mine = memory.written[at] == np.uint64(1 << thread)
        if e.buffer not in seen and ((memory.owner[at] == buffer.id) & (mine | (memory.written[at] == 0))).any():
            yield f"kernel {kernel.id} writes buffer {buffer.id} a second time"
        seen.add(e.buffer)
        memory.owner[at] = buffer.id
        memory.touched[at] |= np.uint64(1 << thread)
        memory.written[at] |= np.uint64(1 << thread)


def _incomplete(memory: Memory, sizes: Sizes) -> Iterator[str]:
    plan = memory.plan
    results = {id for _, id in plan.outputs} | {id for name, id in plan.states if name in plan.updated}
    results |= {b.id for b in plan.buffers if b.space is Space.COPY and b.source in results}
    written_rows = {
        load.buffer: evaluate(k.axes[i.terms[0][0]], sizes)
        for k in plan.kernels for load in accessed(k) for i in load.index if i.value is not None and i.terms
    }  # fmt: skip
    for id in sorted(results):
        at = memory.bytes(plan.buffers[id], whole(plan.buffers[id], sizes, written_rows.get(id)))
        if (memory.owner[at] != id).any():
            yield f"buffer {id} ({plan.buffers[id].space.value}) is not written everywhere"
