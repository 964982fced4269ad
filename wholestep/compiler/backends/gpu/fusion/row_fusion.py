"""Kernels that run one after the other in the same blocks, since each row of one needs the same row of those before.

A block has one row of all of them, so that a barrier of the block stands where a launch would end.  Products are made
by `ws_row_product`, in the order of sums that their tiles would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.gpu.kernel_schedule import ELEMENTS, PRODUCT, ROWS, CudaSchedule, schedule_of
from wholestep.compiler.ir.types import Extent, evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Plan, Space

THREADS = 256  # of a block
MOST_FLOPS = 50_000_000  # of a kernel that shares a launch: a larger one gains nothing, and needs the registers
MOST_BYTES = 8 << 20
MOST_ROWS = 264  # blocks: two for each multiprocessor
MOST_WEIGHTS = 64 << 10  # bytes of the other operand of a product, which every block reads
MOST_WORK = 16 << 10  # elements of a row of a nest
MOST_DEPTH, MOST_CHUNKS = 1024, 8  # of a product's k


def row_axis(kernel: Kernel) -> int | None:
    """The axis whose points can have a block each; None where a kernel has none."""
    body = kernel.body
    if isinstance(body, Dot):
        return None if body.batch else body.m
    return body.rows[0] if isinstance(body, Nest) and body.rows else None


def row_extent(kernel: Kernel) -> Extent:
    """Of a kernel that can be rows: how many."""
    axis = row_axis(kernel)
    assert axis is not None, "it can be rows"
    return kernel.axes[axis]


def stays_in_row(load: Load, axis: int, extent: Extent) -> bool:
    """Is a place one of the row's own?"""
    if not load.index or load.index[0].plain != axis or load.shape[0] != extent:
        return False
    return all(axis not in {a for a, _ in i.terms} and i.value is None for i in load.index[1:])


def can_be_rows(draft: Draft, kernel: Kernel) -> bool:
    """Can a kernel be made row by row, with a block for each, without taking longer than a launch of its own?"""
    axis, own, sizes = row_axis(kernel), schedule_of(kernel), draft.sizes
    if axis is None or own.form not in (ELEMENTS, ROWS, PRODUCT) or own.threads != THREADS:
        return False
    extent = kernel.axes[axis]
    if kernel.flops > MOST_FLOPS or kernel.bytes > MOST_BYTES:
        return False
    if kernel.loop is not None or evaluate(extent, sizes) > MOST_ROWS:
        return False
    if not all(stays_in_row(load, axis, extent) for load in kernel.body.stores() if not _is_work(draft, load)):
        return False
    body = kernel.body
    if isinstance(body, Dot):
        n, k = kernel.axes[body.n], kernel.axes[body.k]
        if not isinstance(n, int) or not isinstance(k, int) or k > MOST_DEPTH or k > MOST_CHUNKS * (own.chunk or k):
            return False
        other = {a for i in body.b.index for a, _ in i.terms}
        dtypes = {draft.buffers[load.buffer].type.dtype for load in (body.a, body.b)}
        if dtypes != {float32}:
            return False
        size = float32.size
        return axis not in other and n * k * size <= MOST_WEIGHTS and len(body.levels) == 1
    assert isinstance(body, Nest)
    inner = [kernel.axes[a] for a in (*body.rows[1:], *(() if body.vector is None else (body.vector,)))]
    return not own.scratch and all(isinstance(e, int) for e in inner) and prod(map(_whole, inner)) <= MOST_WORK


def _whole(extent: Extent) -> int:
    assert isinstance(extent, int)
    return extent


def _is_work(draft: Draft, load: Load) -> bool:
    return draft.buffers[load.buffer].space is Space.WORK


def may_follow(draft: Draft, chain: Sequence[Kernel], kernel: Kernel) -> bool:
    """Does a row of a kernel need nothing of a chain but the same row?"""
    extent = row_extent(kernel)
    if row_extent(chain[0]) != extent or chain[0].loop != kernel.loop:
        return False
    written = {load.buffer for k in chain for load in k.body.stores()}
    stored = {load.buffer for load in kernel.body.stores()}
    places = [(kernel, load) for load, _ in kernel.body.reads() if load.buffer in written]
    places += [(k, load) for k in chain for load, _ in k.body.reads() if load.buffer in stored]
    places += [(k, load) for k in chain for load in k.body.stores() if load.buffer in stored]
    for k, load in places:
        own = row_axis(k)
        assert own is not None
        if not _is_work(draft, load) and not stays_in_row(load, own, extent):
            return False
    return bool(written & {load.buffer for load, _ in kernel.body.reads()})


def chains_of(draft: Draft, kernels: Sequence[Kernel], before: Mapping[int, set[int]]) -> Iterator[list[Kernel]]:
    """Kernels one by one, or several that can run in the same blocks; nobody else stands between these."""
    part = {k.id: {k.id} for k in kernels}  # of each kernel, those of its chain

    def needs(chain: set[int]) -> bool:
        """Does a chain wait for itself, by way of others?"""
        left, seen = [o for k in chain for o in before[k] if o not in chain], set(chain)
        while left:
            for other in part[left.pop()]:
                if other not in seen:
                    seen.add(other)
                    left += before[other]
                    if before[other] & chain:
                        return True
        return False

    taken: set[int] = set()
    rows = {k.id for k in kernels if can_be_rows(draft, k)}
    for k in kernels:
        if k.id in taken:
            continue
        chain, inside = [k], {k.id}
        for later in kernels if k.id in rows else ():
            wanted = later.id in rows and later.id not in taken | inside and before[later.id] & inside
            if wanted and may_follow(draft, chain, later) and not needs(inside | {later.id}):
                chain.append(later)
                inside.add(later.id)
        part |= dict.fromkeys(inside, inside)
        taken |= inside
        yield chain


def is_sound(draft: Draft, chain: Sequence[Kernel]) -> bool:
    """May each kernel of a chain follow those before it?"""
    return all(may_follow(draft, chain[:i], chain[i]) for i in range(1, len(chain)))


def rows_of(draft: Draft, kernel: Kernel) -> int:
    """How many rows a kernel of a chain has, at capacity."""
    return max(1, evaluate(row_extent(kernel), draft.sizes))


def in_rows(plan: Plan, kernel: Kernel, schedule: CudaSchedule, position: int) -> CudaSchedule:
    """The schedule of a kernel that stands in a chain."""
    rows = rows_of(plan, kernel)
    return replace(schedule, blocks=rows, chunks=1, scratch=0, scratch_at=0, counters_at=0, chained=position)
