"""Draft -> Plan for a GPU: kernels in their order, each with its grid; offsets; what long sums leave behind the arena.

How a sum is cut depends on its own length and on sizes that no call changes, never on a capacity or on the number of
multiprocessors: so do the bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.cuda.libraries import cudnn_convolution, gemm_library
from wholestep.compiler.backends.cuda.libraries.attention import notes_of, schedule_attention
from wholestep.compiler.backends.cuda.runtime.collectives import room_of
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu import gemm_medium
from wholestep.compiler.backends.gpu.arena import in_good_order, place
from wholestep.compiler.backends.gpu.chunked_loss import in_parts
from wholestep.compiler.backends.gpu.convolution import direct
from wholestep.compiler.backends.gpu.fusion import horizontal, row_fusion
from wholestep.compiler.backends.gpu.kernel_schedule import (
    COLUMNS,
    ELEMENTS,
    EXCHANGE,
    LIBRARY,
    PRODUCT,
    ROWS,
    SCATTER,
    SCATTER_ROWS,
    SCATTER_SORTED,
    SUMS,
    CudaSchedule,
    schedule_of,
)
from wholestep.compiler.backends.gpu.leading_dimension import align_rows
from wholestep.compiler.backends.gpu.persistent import eligibility, scan
from wholestep.compiler.backends.gpu.row_loads import bytes_ahead
from wholestep.compiler.backends.gpu.scatter_accumulate import add_onto
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, float64, product, symbols_of
from wholestep.compiler.plan.lower.draft import make_draft
from wholestep.compiler.plan.memory import sequential_schedule
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan, Reduce, Space
from wholestep.compiler.plan.model.layout import align_up
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.errors import PlanError

THREADS = 256  # of a block, but of rows that one block has for itself
MOST_BLOCKS = 4096  # of a grid whose blocks go on to further elements
WARP = 32
WARP_ROW = 1024  # the longest row that one warp has
LONG_ROW = 1024  # threads of a block that has a longer one
SHARED = 40 << 10  # bytes of a block
MOST_PACKS = 1 << 20  # the same of blocks whose threads have elements side by side: none goes on
COLUMN_CHUNK = 128  # of a sum over columns
SHORT_SUM = 32  # of a sum over columns that one thread makes
MANY_SUMMED = 1 << 20  # elements of a sum from which on a thread has columns side by side
MOST_PACKED_SUMS = 5  # whose parts fit a block's shared memory
FEW_PIXELS = 16  # of an image, or rows of something else that no call changes
DEEP = 128  # of a product's k that the groups of a block share at a time
ENOUGH = 128  # blocks that fill a GPU, for choosing how a product is cut
MANY_PLACES = 1 << 24  # rows of a scatter's target times indices from which on those are sorted before,
MOST_SORTED = 1 << 15  # but no more indices than this: each is compared with each
SORTED_PIECES = 4  # pieces of 16 bytes of a row that a thread has
LARGE = 256 << 20  # bytes of an arena from which on kernels run as early as they can, not as late
LITTLE = 0.01  # of an arena that may be larger for fewer launches, where memory is short
UPDATES, SOONER = 6, 0.95  # launches of updates instead of one, where the arena is smaller by so much
SCRATCH = 64 << 20  # bytes in which kernels have scratch memory side by side
COUNTERS = 1 << 16  # of the blocks that share a sum; all zero between kernels
TINY_BLOCKS = 1056  # eight for each multiprocessor
# Rows, columns, and groups of threads that share k.
TINY_TILE, SMALL_TILE, NARROW_TILE = (16, 16, 8), (32, 32, 8), (32, 8, 8)
# Of products of few tiles and a fixed k up to the deepest, whose chunks one block adds by itself.
WHOLE_TILES, DEEPEST = ((16, 8, 8), (8, 8, 8), (8, 4, 8)), 1024


def make_plan(request: PlanRequest) -> Plan:
    """The plan of one entry point."""
    return schedule(make_draft(request), request.frugal, request.halvings)


def schedule(draft: Draft, frugal: bool = False, halvings: int = 0) -> Plan:
    """A barrier lies between any two launches: the end of the one before."""
    sorting = [k.id for k in draft.kernels if isinstance(k.body, Scatter) and _scatter(draft, k).form == SCATTER_SORTED]
    draft = in_good_order(align_rows(in_parts(add_onto(draft, sorting), halvings)))
    own = schedule_kernels(sequential_schedule.schedule(draft, place=False))
    plain = _together(draft, [[[k]] for k in own])
    large = frugal or plain.arena_bytes > LARGE or _shares_scratch(own)
    launches = horizontal.updates_last(draft, own) if large else horizontal.launches_of(draft, own)
    plan = _together(draft, launches) if len(launches) < len(own) else plain
    if large and plan is not plain:
        sooner = _together(draft, horizontal.updates_last(draft, own, UPDATES))
        plan = sooner if sooner.arena_bytes <= SOONER * plan.arena_bytes else plan
    # Gradients may wait for a launch of all updates, as they do where nothing is computed early.
    gradients = sum(b.bytes for b in plan.buffers if b.space is Space.STATE) // 3 if large else 0
    most = (1 + horizontal.SHARE) * plain.arena_bytes + horizontal.ROOM + gradients
    if plan.arena_bytes > (most if not frugal else (1 + LITTLE) * plain.arena_bytes):
        plan = plain
    kernels = schedule_kernels(plan)
    scratch = max((schedule_of(k).scratch_at + schedule_of(k).scratch for k in kernels), default=0)
    plan = replace(plan, kernels=kernels)
    own_notes = (
        *notes_of(plan),
        *cudnn_convolution.notes_of(plan),
        *eligibility.notes_of(plan),
        *horizontal.notes_of(plan),
    )
    notes = (*plan.notes, *own_notes, *scan.notes_of(plan))
    return replace(plan, arena_bytes=arena_end(plan) + scratch, notes=notes)


def _together(draft: Draft, launches: Sequence[horizontal.Launch]) -> Plan:
    """The plan of kernels in the order of their launches; what a launch uses is nobody else's meanwhile."""
    kernels = horizontal.renumber_by_launch(launches)
    plan = sequential_schedule.schedule(replace(draft, kernels=kernels), horizontal.together(kernels), place=False)
    arena = place(plan.buffers, plan.kernels)
    placed = tuple(
        replace(k, schedule=replace(schedule_of(k), workspace_at=arena.workspaces.get(k.id, 0))) for k in plan.kernels
    )
    return replace(plan, kernels=placed, buffers=arena.buffers, arena_bytes=arena.bytes, regions=max(1, len(launches)))


def _shares_scratch(kernels: Sequence[Kernel]) -> bool:
    """Do kernels have scratch memory or counters in the same place?"""
    used = [schedule_of(k) for k in kernels if schedule_of(k).scratch]
    return sum(s.scratch for s in used) > SCRATCH or sum(s.counters for s in used) > COUNTERS


def schedule_kernels(plan: Plan) -> tuple[Kernel, ...]:
    """Kernels with their grids.

    What chunks leave lies side by side where they may run at once: in a launch, and in small plans everywhere.
    """
    kernels, scratch, counters, launch = [], 0, 0, -1
    placed = all(isinstance(k.schedule, CudaSchedule) for k in plan.kernels)
    large = placed and arena_end(plan) > LARGE
    for kernel in plan.kernels:
        found = schedule_kernel(plan, kernel)
        if isinstance(kernel.schedule, CudaSchedule):  # it is known which launch it is in
            known = kernel.schedule
            found = replace(found, launch=known.launch, workspace_at=known.workspace_at, owns=known.owns)
            if kernel.schedule.chained:
                found = row_fusion.in_rows(plan, kernel, found, kernel.schedule.chained)
        if found.scratch or found.counters:
            scratch = 0 if scratch + found.scratch > SCRATCH or (large and found.launch != launch) else scratch
            used = found.counters
            counters = 0 if counters + used > COUNTERS else counters
            found = replace(found, scratch_at=scratch, counters_at=counters)
            scratch, counters, launch = scratch + found.scratch, counters + used, found.launch
        kernels.append(replace(kernel, schedule=found))
    return tuple(kernels)


def arena_end(plan: Plan) -> int:
    """Where the scratch memory of chunks begins."""
    used = [b.offset + b.bytes for b in plan.buffers if b.space is Space.ARENA]
    used += [schedule_of(k).workspace_at + schedule_of(k).workspace for k in plan.kernels]
    return align_up(max(used, default=0))


def schedule_kernel(plan: Plan, kernel: Kernel) -> CudaSchedule:
    return SCHEDULE[type(kernel.body)](plan, kernel)


def sizes_in(plan: Draft, kernel: Kernel) -> Mapping[str, int]:
    """Capacities; inside of a loop the number of a step is one more size."""
    if kernel.loop is None:
        return plan.sizes
    loop = plan.loops[kernel.loop]
    return {**plan.sizes, loop.symbol: max(0, evaluate(loop.length, plan.sizes) - 1)}


def _blocks(count: int, each: int, most: int = MOST_BLOCKS) -> int:
    return max(1, min(most, -(-count // each)))


def _nest(plan: Plan, kernel: Kernel) -> CudaSchedule:
    nest, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(nest, Nest)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in nest.rows)
    length: Extent = 1 if nest.vector is None else kernel.axes[nest.vector]
    carried = any(plan.buffers[load.buffer].space is Space.WORK for load in nest.stores())
    sums = [s for level in nest.levels for s in level.sums]
    if sums:  # a block has one part of the rows, or some columns of one
        parts, width = sums[0].load.shape[0], WARP if isinstance(length, int) and length <= WARP_ROW else THREADS
        assert isinstance(parts, int)
        assert isinstance(length, int)
        count = _of_row(length)
        if _only_adds(nest):
            return CudaSchedule(SUMS, THREADS, parts * -(-length // (WARP * count)), width=WARP, vector=count)
        return CudaSchedule(ROWS, THREADS, parts, width=width, vector=count)
    if not carried and not any(level.reduces for level in nest.levels):
        elements, count = rows * evaluate(length, sizes), _side_by_side(plan, nest, length)
        return CudaSchedule(ELEMENTS, THREADS, _blocks(elements // count, THREADS, MOST_PACKS), vector=count)
    count = _of_row(length)
    if isinstance(length, int) and length <= WARP_ROW:
        return CudaSchedule(ROWS, THREADS, _blocks(rows, THREADS // WARP), width=WARP, vector=count)
    threads = LONG_ROW if isinstance(length, int) and length > 4 * WARP_ROW else THREADS
    own = CudaSchedule(ROWS, threads, _blocks(rows, 1), width=threads, vector=count)
    return _with_next_row(plan, kernel, nest, own, rows) if threads == LONG_ROW else own


def _only_adds(nest: Nest) -> bool:
    """Does a nest leave parts of sums, and nothing else?"""
    first, *others = nest.levels
    return not (others or first.stores or first.row_stores or first.reduces)


def _with_next_row(plan: Plan, kernel: Kernel, nest: Nest, own: CudaSchedule, rows: int) -> CudaSchedule:
    """Blocks of which a multiprocessor has one read their next row meanwhile; no bit depends on it."""
    most = TARGETS[plan.target].limits.threads
    bytes = bytes_ahead(plan, kernel, nest, own) if rows > most else 0
    return replace(own, blocks=most, ahead=bytes) if bytes else own


def _side_by_side(plan: Plan, nest: Nest, length: Extent) -> int:
    """Elements that a thread has at once: 16 bytes of the narrowest."""
    if not isinstance(length, int) or nest.vector is None or len(nest.levels) > 1:
        return 1
    accesses = [*(load for load, _ in nest.reads()), *nest.stores()]
    along = [a for a in accesses if any(axis == nest.vector for i in a.index for axis, _ in i.terms)]
    narrow = any(plan.buffers[a.buffer].type.dtype.is_half for a in along)
    return next((n for n in ((8, 4) if narrow else (4,)) if length % n == 0), 1)


def _of_row(length: Extent) -> int:
    """The same in a row: it follows from the length alone, since the order of its sums does."""
    if not isinstance(length, int):
        return 1
    return next((n for n in (8, 4) if length % n == 0 and length >= n * WARP), 1)


def _columns(plan: Plan, kernel: Kernel) -> CudaSchedule:
    columns, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(columns, Columns)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in columns.rows)
    across, reduces = kernel.axes[columns.vector], columns.levels[0].reduces
    length = evaluate(kernel.axes[columns.reduced], sizes)
    lanes, each = _column_packs(across, kernel.axes[columns.reduced], length, reduces)
    chunk = COLUMN_CHUNK if lanes in (WARP, THREADS) else 16 * THREADS // lanes
    tiles = rows * -(-evaluate(across, sizes) // (lanes * each))
    if length <= chunk or any(r.op == "argmax" for r in reduces):
        return CudaSchedule(COLUMNS, THREADS, _blocks(tiles, 1), width=lanes, vector=each)
    chunks = -(-length // chunk)
    bytes = sum(align_up(chunks * tiles * lanes * each * r.dtype.size) for r in reduces)
    one = CudaSchedule(COLUMNS, THREADS, max(1, tiles), width=lanes, vector=each)
    return replace(one, chunk=chunk, chunks=chunks, scratch=bytes)


def _column_packs(across: Extent, depth: Extent, length: int, reduces: Sequence[Reduce]) -> tuple[int, int]:
    """Threads side by side along columns, and columns of each.

    Columns side by side, which no bit depends on, where there is enough to do for all.  Of the channels of images,
    which are few and have many pixels, a warp has several rows at a time.
    """
    plain = not any(r.op == "argmax" or r.dtype.size > 4 for r in reduces)
    if not isinstance(across, int) or across % 8 or not plain or len(reduces) > MOST_PACKED_SUMS:
        return WARP, 1
    if across >= THREADS and length <= SHORT_SUM:
        return THREADS, 1  # a thread adds up a column by itself, in the order that warps would
    if across >= 8 * WARP:
        return WARP, 8 if length * across >= MANY_SUMMED else 1
    pixels = evaluate(depth, dict.fromkeys(symbols_of((depth,)), 1))
    return (across // 8, 8) if across & (across - 1) == 0 and pixels >= FEW_PIXELS else (WARP, 1)


def _product(
    sizes: Mapping[str, int],
    batch: Extent,
    m: Extent,
    n: Extent,
    k: Extent,
    dtype: DType,
    *,
    whole_chunks: bool = False,
) -> CudaSchedule:
    """Tiles of m x n; k in chunks where a call's tiles would be too few to fill a GPU.

    Chunks follow from k and from sizes that no call changes; the shape of a tile, which no bit depends on, from the
    capacity.
    """
    fixed = [e if isinstance(e, int) else 1 for e in (m, n)]
    known = -(-fixed[0] // 32) * -(-fixed[1] // 32)
    depth = evaluate(k, sizes)
    one = evaluate(k, dict.fromkeys(symbols_of((k,)), 1))  # of a sum over pixels: those of an image
    chunk = -(-k // max(1, ENOUGH // known)) if isinstance(k, int) else max(one, DEEP * max(1, known // 32))
    chunk = -(-max(chunk, DEEP) // DEEP) * DEEP
    single = isinstance(batch, int) and batch == 1
    chunks = max(1, -(-depth // chunk)) if single else 1

    def blocks(tile: Sequence[int]) -> int:
        count = prod(-(-evaluate(e, sizes) // t) for e, t in zip((m, n), tile[:2], strict=True))
        return max(1, count * evaluate(batch, sizes))

    tile = NARROW_TILE if isinstance(n, int) and n <= NARROW_TILE[1] else SMALL_TILE
    if dtype == float64 or blocks(TINY_TILE) * chunks <= TINY_BLOCKS:
        tile = TINY_TILE  # two of the others would not fit the shared memory of a block in float64
    if chunks == 1:
        return CudaSchedule(PRODUCT, THREADS, blocks(tile), tile=tile)
    if whole_chunks and isinstance(k, int) and k <= DEEPEST:
        whole = next((t for t in WHOLE_TILES if blocks(t) >= ENOUGH), WHOLE_TILES[-1])
        if blocks(whole) <= TINY_BLOCKS // 2:
            return CudaSchedule(PRODUCT, THREADS, blocks(whole), tile=whole, chunk=chunk)
    bytes = align_up(chunks * blocks(tile) * tile[0] * tile[1] * dtype.size)
    return CudaSchedule(PRODUCT, THREADS, blocks(tile), tile=tile, chunk=chunk, chunks=chunks, scratch=bytes)


def _dot(plan: Plan, kernel: Kernel) -> CudaSchedule:
    dot, axes = kernel.body, kernel.axes
    assert isinstance(dot, Dot)
    if len(dot.levels) > 1:
        raise PlanError("a product for a GPU makes no column sums; the target's fusion says so.")
    acc = next(i.dtype for i in dot.levels[0].body if i.op == "acc")
    batch, sizes = product([axes[a] for a in dot.batch]), sizes_in(plan, kernel)
    if gemm_medium.takes(plan, kernel, sizes):
        return gemm_medium.schedule_middle(kernel, sizes)
    own_dtypes = {plan.buffers[load.buffer].type.dtype for load in (dot.a, dot.b)}
    if gemm_library.takes(plan, kernel, sizes):
        elements = prod(evaluate(axes[a], sizes) for a in (*dot.batch, dot.m, dot.n))
        scratch = 0 if gemm_library.is_direct(plan, dot) else align_up(elements * acc.size)
        blocks, result = _blocks(elements, THREADS), plan.buffers[next(dot.stores()).buffer].type.dtype.size
        workspace = gemm_library.workspace_of(elements * (acc.size if scratch else result))
        return CudaSchedule(LIBRARY, THREADS, blocks, scratch=scratch, workspace=workspace)
    return _product(sizes, batch, axes[dot.m], axes[dot.n], axes[dot.k], acc, whole_chunks=own_dtypes == {float32})


def scatter_row(plan: Draft, kernel: Kernel, scatter: Scatter) -> int | None:
    """The elements of a row of the target where the same indices are those of all of them; None where they are not."""
    own = [i.plain for d, i in enumerate(scatter.target.index) if d != scatter.at]
    read = {a for i in scatter.index.index for a, _ in i.terms}
    row = product([kernel.axes[a] for a in own if a is not None])
    size = max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    fits = isinstance(row, int) and row * size * (THREADS // WARP) <= SHARED
    return row if isinstance(row, int) and fits and not read & set(own) else None


def _scatter(plan: Draft, kernel: Kernel) -> CudaSchedule:
    scatter, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(scatter, Scatter)
    row = scatter_row(plan, kernel, scatter)
    if row is not None:
        count = evaluate(scatter.target.shape[scatter.at], sizes)
        indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
        each = next((n for n in (8, 4) if row % n == 0), 1)
        if count * indices >= MANY_PLACES and indices <= MOST_SORTED and kernel.loop is None:
            across = -(-row // (WARP * each * SORTED_PIECES))
            blocks = _blocks((indices if scatter.onto else count) * across, THREADS // WARP, MOST_PACKS)
            scratch = align_up(8 * indices)
            return CudaSchedule(SCATTER_SORTED, THREADS, blocks, width=row, vector=each, scratch=scratch)
        return CudaSchedule(SCATTER_ROWS, THREADS, _blocks(count, 1), width=row)
    elements = prod(evaluate(e, sizes) for e in scatter.target.shape)
    return CudaSchedule(SCATTER, THREADS, _blocks(elements, THREADS))


def _window(plan: Plan, kernel: Kernel) -> CudaSchedule:
    window, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(window, Window)
    if window.op == "pooled_grad_weight":
        return direct.schedule_pooled_weights(direct.shape(kernel, window), evaluate(kernel.axes[0], sizes))
    if cudnn_convolution.takes(plan, kernel, window):
        return cudnn_convolution.schedule(kernel)
    if window.op in direct.PRODUCTS:
        dtype = plan.buffers[window.operands[0].load.buffer].type.dtype
        found = direct.schedule_own(kernel, window, sizes, dtype)
        if found is None and (window.pooled is not None or window.op == "pooled_grad_input"):
            raise PlanError(
                f"no kernel for a GPU makes {window.op!r} with its pool; `convolution/pool_fusion.py` says which ones do."
            )
        return found or _product(sizes, *direct.product_sizes(kernel, window), dtype.accumulate)
    elements = prod(evaluate(e, sizes) for e in kernel.axes[:4])
    return CudaSchedule(ELEMENTS, THREADS, _blocks(elements, THREADS))


def _call(plan: Plan, kernel: Kernel) -> CudaSchedule:
    return schedule_attention(plan, kernel, sizes_in(plan, kernel))


def _exchange(plan: Plan, kernel: Kernel) -> CudaSchedule:
    assert isinstance(kernel.body, Exchange)
    sizes = sizes_in(plan, kernel)
    most = max(evaluate(count, sizes) for count in kernel.axes)
    return CudaSchedule(EXCHANGE, THREADS, _blocks(most, THREADS), workspace=room_of(kernel.body, sizes))


SCHEDULE: Mapping[type, Callable[[Plan, Kernel], CudaSchedule]] = {
    Nest: _nest,
    Columns: _columns,
    Dot: _dot,
    Scatter: _scatter,
    Window: _window,
    Call: _call,
    Exchange: _exchange,
}
