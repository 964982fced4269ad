"""Vertical fusion in a block: dependent kernels run one after the other in the same blocks, one block per row.

It is sound if row i of each kernel depends only on row i of the earlier ones; a block barrier replaces the end of a
launch.  Products use `ws_row_product`, which adds in the same order as the tiled kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, WARP, Form, GpuSchedule, schedule_of
from wholestep.compiler.backends.gpu.target import costs_of
from wholestep.compiler.ir.types import Extent, evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Space


def row_axis(kernel: Kernel) -> int | None:
    """The axis that is distributed over blocks; None if a kernel has none."""
    body = kernel.body
    if isinstance(body, Dot):
        return None if body.batch else body.m
    return body.rows[0] if isinstance(body, Nest) and body.rows else None


def row_extent(kernel: Kernel) -> Extent:
    """Number of rows of a kernel that can run row by row."""
    axis = row_axis(kernel)
    assert axis is not None, "the kernel has a row axis"
    return kernel.axes[axis]


def stays_in_row(load: Load, axis: int, extent: Extent) -> bool:
    """Does an access stay within the block's own row?"""
    if not load.index or load.index[0].plain != axis or load.shape[0] != extent:
        return False
    return all(axis not in {a for a, _ in i.terms} and i.value is None for i in load.index[1:])


def can_be_rows(draft: Draft, kernel: Kernel) -> bool:
    """Can a kernel run with one block per row without taking longer than a launch of its own?"""
    axis, schedule, sizes = row_axis(kernel), schedule_of(kernel), draft.sizes
    if axis is None or schedule.form not in (Form.ELEMENTS, Form.ROWS, Form.PRODUCT) or schedule.threads != THREADS:
        return False
    extent, costs = kernel.axes[axis], costs_of(draft).fusion
    if kernel.flops > costs.most_flops or kernel.bytes > costs.most_bytes:
        return False
    if kernel.loop is not None or evaluate(extent, sizes) > costs.rows:
        return False
    if schedule.form == Form.ROWS and 1 < schedule.width < WARP:
        return False  # rows that share a warp need a grid of their own
    # The block that computes row i must be the only one that writes it.  Work rows are private to a block.
    if not all(stays_in_row(load, axis, extent) for load in kernel.body.stores() if not _is_work(draft, load)):
        return False
    body = kernel.body
    if isinstance(body, Dot):
        n, k = kernel.axes[body.n], kernel.axes[body.k]
        # A block multiplies one row by the whole weights, without tiles: worthwhile only for short sums and weights
        # that remain in the cache.  The chunks of the tiled kernel are kept, so that the order of additions is the
        # same.
        if (
            not isinstance(n, int)
            or not isinstance(k, int)
            or k > costs.row_depth
            or k > costs.row_chunks * (schedule.chunk or k)
        ):
            return False
        weight_axes = {a for i in body.b.index for a, _ in i.terms}
        dtypes = {draft.buffers[load.buffer].type.dtype for load in (body.a, body.b)}
        if dtypes != {float32}:
            return False
        size = float32.size
        return axis not in weight_axes and n * k * size <= costs.row_weights and len(body.levels) == 1
    assert isinstance(body, Nest)
    inner = [kernel.axes[a] for a in (*body.rows[1:], *(() if body.vector is None else (body.vector,)))]
    return (
        not schedule.scratch
        and all(isinstance(e, int) for e in inner)
        and prod(map(_static, inner)) <= costs.row_elements
    )


def _static(extent: Extent) -> int:
    assert isinstance(extent, int)
    return extent


def _is_work(draft: Draft, load: Load) -> bool:
    return draft.buffers[load.buffer].space is Space.WORK


def may_follow(draft: Draft, chain: Sequence[Kernel], kernel: Kernel) -> bool:
    """Does each row of a kernel depend on the same row of the chain's kernels only?"""
    extent = row_extent(kernel)
    if row_extent(chain[0]) != extent or chain[0].loop != kernel.loop:
        return False
    written = {load.buffer for k in chain for load in k.body.stores()}
    stored = {load.buffer for load in kernel.body.stores()}
    # Accesses of the new kernel and of the chain that meet in a buffer: read after write, write after read, write after
    # write.  Blocks are not synchronized with each other, so each must be to the block's own row.
    shared_accesses = [(kernel, load) for load, _ in kernel.body.reads() if load.buffer in written]
    shared_accesses += [(k, load) for k in chain for load, _ in k.body.reads() if load.buffer in stored]
    shared_accesses += [(k, load) for k in chain for load in k.body.stores() if load.buffer in stored]
    for k, load in shared_accesses:
        axis = row_axis(k)
        assert axis is not None
        if not _is_work(draft, load) and not stays_in_row(load, axis, extent):
            return False
    return bool(written & {load.buffer for load, _ in kernel.body.reads()})


def chains_of(draft: Draft, kernels: Sequence[Kernel], predecessors: Mapping[int, set[int]]) -> Iterator[list[Kernel]]:
    """Partitions kernels into chains that can run in the same blocks (often of length one), in a valid order."""
    chain_of = {k.id: {k.id} for k in kernels}  # per kernel: the kernels of its chain

    def depends_on_itself(chain: set[int]) -> bool:
        """Would a chain depend on itself through kernels outside of the chain?"""
        pending, seen = [o for k in chain for o in predecessors[k] if o not in chain], set(chain)
        while pending:
            for other in chain_of[pending.pop()]:
                if other not in seen:
                    seen.add(other)
                    pending += predecessors[other]
                    if predecessors[other] & chain:
                        return True
        return False

    # Greedy: each chain is extended by later kernels that read it, unless the chain would then wait for a kernel that
    # waits for the chain (a cycle between launches).
    taken: set[int] = set()
    rows = {k.id for k in kernels if can_be_rows(draft, k)}
    for k in kernels:
        if k.id in taken:
            continue
        chain, inside = [k], {k.id}
        for later in kernels if k.id in rows else ():
            is_candidate = later.id in rows and later.id not in taken | inside and predecessors[later.id] & inside
            if is_candidate and may_follow(draft, chain, later) and not depends_on_itself(inside | {later.id}):
                chain.append(later)
                inside.add(later.id)
        chain_of |= dict.fromkeys(inside, inside)
        taken |= inside
        yield chain


def is_sound(draft: Draft, chain: Sequence[Kernel]) -> bool:
    """May each kernel of a chain follow the kernels before it?"""
    return all(may_follow(draft, chain[:i], chain[i]) for i in range(1, len(chain)))


def rows_of(draft: Draft, kernel: Kernel) -> int:
    """Number of rows of a kernel in a chain, at capacity."""
    return max(1, evaluate(row_extent(kernel), draft.sizes))


def with_row_grid(plan: Draft, kernel: Kernel, schedule: GpuSchedule, position: int) -> GpuSchedule:
    """Changes the schedule of a kernel in a chain to one block per row."""
    rows = rows_of(plan, kernel)
    return replace(schedule, blocks=rows, chunks=1, scratch=0, scratch_at=0, counters_at=0, chained=position)
