"""Draft -> Plan for a GPU: launch order, a grid per kernel, arena offsets, and split-sum scratch after the arena.

Each kernel body has one scheduling function (`SCHEDULE`), which chooses the form, the grid and the split of its sums.
Invariant: how our kernels split a sum (split-K, chunks of rows) depends on its own length and on static extents only,
never on the batch capacity or on the number of multiprocessors, so the bits do not depend on either.  The exception is
medium GEMMs, whose tile, and so the order of the sums, depends on the capacity (`gemm_medium.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from wholestep.compiler.backends.gpu import direct_convolution as direct
from wholestep.compiler.backends.gpu import gemm_library, gemm_medium
from wholestep.compiler.backends.gpu.arena import hoist_off_critical_path, place
from wholestep.compiler.backends.gpu.attention import schedule_attention
from wholestep.compiler.backends.gpu.chunked_loss import chunk_loss_head
from wholestep.compiler.backends.gpu.fusion import horizontal, row_fusion
from wholestep.compiler.backends.gpu.kernel_schedule import COUNTERS, THREADS, WARP, Form, GpuSchedule, schedule_of
from wholestep.compiler.backends.gpu.leading_dimension import pad_leading_dimensions
from wholestep.compiler.backends.gpu.persistent import eligibility, scan
from wholestep.compiler.backends.gpu.row_loads import prefetch_bytes
from wholestep.compiler.backends.gpu.scatter_accumulate import accumulate_scatters_in_place
from wholestep.compiler.backends.gpu.target import target_of
from wholestep.compiler.ir.types import DType, Extent, evaluate, float32, float64, product, symbols_of
from wholestep.compiler.plan.lower.draft import make_draft
from wholestep.compiler.plan.memory import sequential_schedule
from wholestep.compiler.plan.model.bodies import Call, Columns, Dot, Exchange, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Plan, Reduce, Space
from wholestep.compiler.plan.model.layout import align_up
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.errors import PlanError

MOST_BLOCKS = 4096  # largest grid of a grid-stride loop, in blocks
WARP_ROW = 1024  # elements of the longest row that a single warp reduces
LONG_ROW = 1024  # threads per block for rows longer than 4 * WARP_ROW
SHARED = 40 << 10  # bytes of shared memory per block that a scatter may use
# largest grid, in blocks, of kernels with vectorised accesses: enough that none needs a second pass
MOST_PACKS = 1 << 20
COLUMN_CHUNK = 128  # rows that one block adds up in a column reduction that is split
SHORT_SUM = 32  # rows of a column sum that a single thread adds up
MANY_SUMMED = 1 << 20  # elements: in larger column sums each thread reduces 8 adjacent columns
MOST_PACKED_SUMS = 5  # sums of one kernel whose partial results fit a block's shared memory
FEW_PIXELS = 16  # rows per sample (pixels of an image): with at least as many, a warp covers several rows at a time
DEEP = 128  # k elements that the thread groups of a block process per iteration of a GEMM
ENOUGH = 128  # blocks that fill a GPU; used to choose the split of a GEMM along k
MANY_PLACES = 1 << 24  # table rows times indices: a scatter with at least as many sorts its indices first,
MOST_SORTED = 1 << 15  # but at most this many indices: the sort compares every pair
SORTED_PIECES = 4  # 16-byte pieces of a row per thread
LARGE = 256 << 20  # bytes of arena: in larger plans kernels run as early as possible, otherwise as late as possible
LITTLE = 0.01  # relative arena growth that fewer launches may cost if memory is short
UPDATES, SOONER = 6, 0.95  # update launches instead of one, if that shrinks the arena to this share
SCRATCH = 64 << 20  # bytes of scratch that kernels of different launches may use without overlapping
EXCHANGE_ROOM = 64 << 10  # bytes in which every rank receives the small vectors of all others whole
TINY_BLOCKS = 1056  # eight blocks per multiprocessor of a GPU with 132
# GEMM tiles: rows, columns, and the number of thread groups that split k among them.
TINY_TILE, SMALL_TILE, NARROW_TILE = (16, 16, 8), (32, 32, 8), (32, 8, 8)
# Tiles of small GEMMs with a static k of at most DEEPEST, in which a single block adds up all chunks of k.
WHOLE_TILES, DEEPEST = ((16, 8, 8), (8, 8, 8), (8, 4, 8)), 1024


def make_plan(request: PlanRequest) -> Plan:
    """The plan of one entry point."""
    return schedule(make_draft(request), request.frugal, request.halvings)


def schedule(draft: Draft, frugal: bool = False, halvings: int = 0) -> Plan:
    """Orders the kernels, assigns launches, grids and arena offsets.

    Consecutive launches are separated by an implicit barrier.  Up to three candidate plans are compared by arena bytes:
    one launch per kernel (`plain`), horizontally fused launches, and fused launches with several groups of updates.
    """
    sorted_scatters = [
        k.id for k in draft.kernels if isinstance(k.body, Scatter) and _scatter(draft, k).form == Form.SCATTER_SORTED
    ]
    draft = hoist_off_critical_path(
        pad_leading_dimensions(chunk_loss_head(accumulate_scatters_in_place(draft, sorted_scatters), halvings))
    )
    kernels_alone = schedule_kernels(sequential_schedule.schedule(draft, place=False))
    plain = _place_launches(draft, [[[k]] for k in kernels_alone])
    large = frugal or plain.arena_bytes > LARGE or _shares_scratch(kernels_alone)
    launches = horizontal.defer_updates(draft, kernels_alone) if large else horizontal.launches_of(draft, kernels_alone)
    plan = _place_launches(draft, launches) if len(launches) < len(kernels_alone) else plain
    if large and plan is not plain:
        grouped_updates = _place_launches(draft, horizontal.defer_updates(draft, kernels_alone, UPDATES))
        plan = grouped_updates if grouped_updates.arena_bytes <= SOONER * plan.arena_bytes else plan
    # All gradients may stay alive until a single launch of all updates: a third of the state bytes (weights, moments).
    gradients = sum(b.bytes for b in plan.buffers if b.space is Space.STATE) // 3 if large else 0
    arena_limit = (1 + horizontal.SHARE) * plain.arena_bytes + horizontal.ROOM + gradients
    if plan.arena_bytes > (arena_limit if not frugal else (1 + LITTLE) * plain.arena_bytes):
        plan = plain
    kernels = schedule_kernels(plan)
    scratch = max((schedule_of(k).scratch_at + schedule_of(k).scratch for k in kernels), default=0)
    plan = replace(plan, kernels=kernels)
    backend_notes = (
        *library_notes(plan),
        *eligibility.notes_of(plan),
        *horizontal.notes_of(plan),
    )
    notes = (*plan.notes, *backend_notes, *scan.notes_of(plan))
    return replace(plan, arena_bytes=arena_end(plan) + scratch, notes=notes)


def _place_launches(draft: Draft, launches: Sequence[horizontal.Launch]) -> Plan:
    """Places kernels in launch order; buffers used within one launch never share bytes."""
    kernels = horizontal.renumber_by_launch(launches)
    plan = sequential_schedule.schedule(replace(draft, kernels=kernels), horizontal.together(kernels), place=False)
    arena = place(plan.buffers, plan.kernels)
    placed = tuple(
        replace(k, schedule=replace(schedule_of(k), workspace_at=arena.workspaces.get(k.id, 0))) for k in plan.kernels
    )
    return replace(plan, kernels=placed, buffers=arena.buffers, arena_bytes=arena.bytes, regions=max(1, len(launches)))


def _shares_scratch(kernels: Sequence[Kernel]) -> bool:
    """Would kernels reuse the same scratch bytes or counters, because they exceed the budget together?"""
    schedules = [schedule_of(k) for k in kernels if schedule_of(k).scratch]
    return sum(s.scratch for s in schedules) > SCRATCH or sum(s.counters for s in schedules) > COUNTERS


def schedule_kernels(plan: Plan) -> tuple[Kernel, ...]:
    """Assigns each kernel its grid, scratch offset and counters.

    Kernels that may run concurrently (those of one launch; in small plans all of them) get disjoint scratch.
    """
    kernels, scratch, counters, launch = [], 0, 0, -1
    placed = all(isinstance(k.schedule, GpuSchedule) for k in plan.kernels)
    large = placed and arena_end(plan) > LARGE
    for kernel in plan.kernels:
        result = schedule_kernel(plan, kernel)
        if isinstance(kernel.schedule, GpuSchedule):  # a second pass: keep launch and workspace
            earlier = kernel.schedule
            result = replace(result, launch=earlier.launch, workspace_at=earlier.workspace_at, owns=earlier.owns)
            if kernel.schedule.chained:
                result = row_fusion.with_row_grid(plan, kernel, result, kernel.schedule.chained)
        if result.scratch or result.counters:
            scratch = 0 if scratch + result.scratch > SCRATCH or (large and result.launch != launch) else scratch
            counter_count = result.counters
            counters = 0 if counters + counter_count > COUNTERS else counters
            result = replace(result, scratch_at=scratch, counters_at=counters)
            scratch, counters, launch = scratch + result.scratch, counters + counter_count, result.launch
        kernels.append(replace(kernel, schedule=result))
    return tuple(kernels)


def arena_end(plan: Plan) -> int:
    """Offset after the last arena buffer and library workspace, where the scratch memory begins."""
    ends = [b.offset + b.bytes for b in plan.buffers if b.space is Space.ARENA]
    ends += [schedule_of(k).workspace_at + schedule_of(k).workspace for k in plan.kernels]
    return align_up(max(ends, default=0))


def schedule_kernel(plan: Plan, kernel: Kernel) -> GpuSchedule:
    return SCHEDULE[type(kernel.body)](plan, kernel)


def sizes_in(plan: Draft, kernel: Kernel) -> Mapping[str, int]:
    """Capacities of the plan; inside a loop also the last value of the step index."""
    if kernel.loop is None:
        return plan.sizes
    loop = plan.loops[kernel.loop]
    return {**plan.sizes, loop.symbol: max(0, evaluate(loop.length, plan.sizes) - 1)}


def _blocks(count: int, per_block: int, most: int = MOST_BLOCKS) -> int:
    return max(1, min(most, -(-count // per_block)))


def _nest(plan: Plan, kernel: Kernel) -> GpuSchedule:
    nest, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(nest, Nest)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in nest.rows)
    length: Extent = 1 if nest.vector is None else kernel.axes[nest.vector]
    uses_work_rows = any(plan.buffers[load.buffer].space is Space.WORK for load in nest.stores())
    sums = [s for level in nest.levels for s in level.sums]
    if sums:  # partial column sums: one block per slice of the rows, or per tile of columns of a slice
        slices, width = sums[0].load.shape[0], WARP if isinstance(length, int) and length <= WARP_ROW else THREADS
        assert isinstance(slices, int)
        assert isinstance(length, int)
        elements_per_thread = _row_vector(length)
        if _only_sums(nest):
            return GpuSchedule(
                Form.SUMS,
                THREADS,
                slices * -(-length // (WARP * elements_per_thread)),
                width=WARP,
                vector=elements_per_thread,
            )
        return GpuSchedule(Form.ROWS, THREADS, slices, width=width, vector=elements_per_thread)
    if not uses_work_rows and not any(level.reduces for level in nest.levels):
        element_count, elements_per_thread = rows * evaluate(length, sizes), _elementwise_vector(plan, nest, length)
        return GpuSchedule(
            Form.ELEMENTS,
            THREADS,
            _blocks(element_count // elements_per_thread, THREADS, MOST_PACKS),
            vector=elements_per_thread,
        )
    elements_per_thread = _row_vector(length)
    if isinstance(length, int) and length <= WARP_ROW:
        return GpuSchedule(Form.ROWS, THREADS, _blocks(rows, THREADS // WARP), width=WARP, vector=elements_per_thread)
    threads = LONG_ROW if isinstance(length, int) and length > 4 * WARP_ROW else THREADS
    by_row = GpuSchedule(Form.ROWS, threads, _blocks(rows, 1), width=threads, vector=elements_per_thread)
    return _prefetch_next_row(plan, kernel, nest, by_row, rows) if threads == LONG_ROW else by_row


def _only_sums(nest: Nest) -> bool:
    """Does a nest compute partial column sums and nothing else?"""
    first, *others = nest.levels
    return not (others or first.stores or first.row_stores or first.reduces)


def _prefetch_next_row(plan: Plan, kernel: Kernel, nest: Nest, schedule: GpuSchedule, rows: int) -> GpuSchedule:
    """One resident block per multiprocessor that prefetches its next row into shared memory; the bits do not change."""
    multiprocessors = target_of(plan).multiprocessors
    bytes = prefetch_bytes(plan, kernel, nest, schedule) if rows > multiprocessors else 0
    return replace(schedule, blocks=multiprocessors, ahead=bytes) if bytes else schedule


def _elementwise_vector(plan: Plan, nest: Nest, length: Extent) -> int:
    """Adjacent elements per thread of an elementwise kernel: 16 bytes of the narrowest type."""
    if not isinstance(length, int) or nest.vector is None or len(nest.levels) > 1:
        return 1
    accesses = [*(load for load, _ in nest.reads()), *nest.stores()]
    vector_accesses = [a for a in accesses if any(axis == nest.vector for i in a.index for axis, _ in i.terms)]
    has_half = any(plan.buffers[a.buffer].type.dtype.is_half for a in vector_accesses)
    return next((n for n in ((8, 4) if has_half else (4,)) if length % n == 0), 1)


def _row_vector(length: Extent) -> int:
    """Adjacent elements per thread of a row reduction.

    It depends on the row length alone, because it determines the order of the row's sums.
    """
    if not isinstance(length, int):
        return 1
    return next((n for n in (8, 4) if length % n == 0 and length >= n * WARP), 1)


def _columns(plan: Plan, kernel: Kernel) -> GpuSchedule:
    columns, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(columns, Columns)
    rows = prod(evaluate(kernel.axes[a], sizes) for a in columns.rows)
    column_count, reduces = kernel.axes[columns.vector], columns.levels[0].reduces
    length = evaluate(kernel.axes[columns.reduced], sizes)
    lanes, per_thread = _column_packs(column_count, kernel.axes[columns.reduced], length, reduces)
    chunk = COLUMN_CHUNK if lanes in (WARP, THREADS) else 16 * THREADS // lanes
    tiles = rows * -(-evaluate(column_count, sizes) // (lanes * per_thread))
    if length <= chunk or any(r.op == "argmax" for r in reduces):
        return GpuSchedule(Form.COLUMNS, THREADS, _blocks(tiles, 1), width=lanes, vector=per_thread)
    chunks = -(-length // chunk)
    bytes = sum(align_up(chunks * tiles * lanes * per_thread * r.dtype.size) for r in reduces)
    unsplit = GpuSchedule(Form.COLUMNS, THREADS, max(1, tiles), width=lanes, vector=per_thread)
    return replace(unsplit, chunk=chunk, chunks=chunks, scratch=bytes)


def _column_packs(across: Extent, depth: Extent, length: int, reduces: Sequence[Reduce]) -> tuple[int, int]:
    """Threads of a block along the columns, and adjacent columns per thread.

    Several columns per thread, which no bit depends on, if there is enough work.  For few channels with many pixels a
    warp covers several rows at a time.
    """
    is_packable = not any(r.op == "argmax" or r.dtype.size > 4 for r in reduces)
    if not isinstance(across, int) or across % 8 or not is_packable or len(reduces) > MOST_PACKED_SUMS:
        return WARP, 1
    if across >= THREADS and length <= SHORT_SUM:
        return THREADS, 1  # one thread per column, in the order in which the warps would add
    if across >= 8 * WARP:
        return WARP, 8 if length * across >= MANY_SUMMED else 1
    pixels = evaluate(depth, dict.fromkeys(symbols_of((depth,)), 1))
    return (across // 8, 8) if across & (across - 1) == 0 and pixels >= FEW_PIXELS else (WARP, 1)


def _tiled_gemm(
    sizes: Mapping[str, int],
    batch: Extent,
    m: Extent,
    n: Extent,
    k: Extent,
    dtype: DType,
    *,
    single_block_chunks: bool = False,
) -> GpuSchedule:
    """Tiles of m x n, with split-K if the tiles of one call would be too few to fill a GPU.

    The chunks of k depend on k and on static extents only; the tile shape, which no bit depends on, on the capacity.
    """
    static_sizes = [e if isinstance(e, int) else 1 for e in (m, n)]
    static_tiles = -(-static_sizes[0] // 32) * -(-static_sizes[1] // 32)
    depth = evaluate(k, sizes)
    per_sample = evaluate(
        k, dict.fromkeys(symbols_of((k,)), 1)
    )  # a weight gradient sums over pixels: those of one image
    chunk = (
        -(-k // max(1, ENOUGH // static_tiles))
        if isinstance(k, int)
        else max(per_sample, DEEP * max(1, static_tiles // 32))
    )
    chunk = -(-max(chunk, DEEP) // DEEP) * DEEP
    single = isinstance(batch, int) and batch == 1
    chunks = max(1, -(-depth // chunk)) if single else 1

    def blocks(tile: Sequence[int]) -> int:
        count = prod(-(-evaluate(e, sizes) // t) for e, t in zip((m, n), tile[:2], strict=True))
        return max(1, count * evaluate(batch, sizes))

    tile = NARROW_TILE if isinstance(n, int) and n <= NARROW_TILE[1] else SMALL_TILE
    if dtype == float64 or blocks(TINY_TILE) * chunks <= TINY_BLOCKS:
        tile = TINY_TILE  # the operands of a larger tile would exceed a block's shared memory in float64
    if chunks == 1:
        return GpuSchedule(Form.PRODUCT, THREADS, blocks(tile), tile=tile)
    if single_block_chunks and isinstance(k, int) and k <= DEEPEST:
        unsplit_tile = next((t for t in WHOLE_TILES if blocks(t) >= ENOUGH), WHOLE_TILES[-1])
        if blocks(unsplit_tile) <= TINY_BLOCKS // 2:
            return GpuSchedule(Form.PRODUCT, THREADS, blocks(unsplit_tile), tile=unsplit_tile, chunk=chunk)
    bytes = align_up(chunks * blocks(tile) * tile[0] * tile[1] * dtype.size)
    return GpuSchedule(Form.PRODUCT, THREADS, blocks(tile), tile=tile, chunk=chunk, chunks=chunks, scratch=bytes)


def _dot(plan: Plan, kernel: Kernel) -> GpuSchedule:
    dot, axes = kernel.body, kernel.axes
    assert isinstance(dot, Dot)
    if len(dot.levels) > 1:
        raise PlanError("a GPU matrix product cannot have fused column sums; the target's fusion rules exclude them.")
    acc = next(i.dtype for i in dot.levels[0].body if i.op == "acc")
    batch, sizes = product([axes[a] for a in dot.batch]), sizes_in(plan, kernel)
    if gemm_medium.takes(plan, kernel, sizes):
        return gemm_medium.schedule_medium_gemm(kernel, sizes)
    operand_dtypes = {plan.buffers[load.buffer].type.dtype for load in (dot.a, dot.b)}
    if gemm_library.takes(plan, kernel, sizes):
        elements = prod(evaluate(axes[a], sizes) for a in (*dot.batch, dot.m, dot.n))
        scratch = 0 if gemm_library.is_direct(plan, dot) else align_up(elements * acc.size)
        blocks, result = _blocks(elements, THREADS), plan.buffers[next(dot.stores()).buffer].type.dtype.size
        workspace = gemm_library.workspace_of(elements * (acc.size if scratch else result))
        return GpuSchedule(Form.LIBRARY, THREADS, blocks, scratch=scratch, workspace=workspace)
    return _tiled_gemm(
        sizes, batch, axes[dot.m], axes[dot.n], axes[dot.k], acc, single_block_chunks=operand_dtypes == {float32}
    )


def scatter_row(plan: Draft, kernel: Kernel, scatter: Scatter) -> int | None:
    """Elements of a target row if all of them share the same indices, else None."""
    row_axes = [i.plain for d, i in enumerate(scatter.target.index) if d != scatter.at]
    index_axes = {a for i in scatter.index.index for a, _ in i.terms}
    row = product([kernel.axes[a] for a in row_axes if a is not None])
    size = max(4, plan.buffers[scatter.target.buffer].type.dtype.size)
    fits = isinstance(row, int) and row * size * (THREADS // WARP) <= SHARED
    return row if isinstance(row, int) and fits and not index_axes & set(row_axes) else None


def _scatter(plan: Draft, kernel: Kernel) -> GpuSchedule:
    scatter, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(scatter, Scatter)
    row = scatter_row(plan, kernel, scatter)
    if row is not None:
        target_rows = evaluate(scatter.target.shape[scatter.at], sizes)
        indices = prod(evaluate(kernel.axes[a], sizes) for a in scatter.over)
        elements_per_thread = next((n for n in (8, 4) if row % n == 0), 1)
        if target_rows * indices >= MANY_PLACES and indices <= MOST_SORTED and kernel.loop is None:
            across = -(-row // (WARP * elements_per_thread * SORTED_PIECES))
            blocks = _blocks((indices if scatter.onto else target_rows) * across, THREADS // WARP, MOST_PACKS)
            scratch = align_up(8 * indices)
            return GpuSchedule(
                Form.SCATTER_SORTED, THREADS, blocks, width=row, vector=elements_per_thread, scratch=scratch
            )
        return GpuSchedule(Form.SCATTER_ROWS, THREADS, _blocks(target_rows, 1), width=row)
    elements = prod(evaluate(e, sizes) for e in scatter.target.shape)
    return GpuSchedule(Form.SCATTER, THREADS, _blocks(elements, THREADS))


def _window(plan: Plan, kernel: Kernel) -> GpuSchedule:
    window, sizes = kernel.body, sizes_in(plan, kernel)
    assert isinstance(window, Window)
    if window.op == "pooled_grad_weight":
        return direct.schedule_pooled_weights(direct.shape(kernel, window), evaluate(kernel.axes[0], sizes))
    libraries = target_of(plan).load_libraries()
    if libraries.why_not(plan, kernel, sizes) is None:
        return libraries.schedule(plan, kernel)
    if window.op in direct.PRODUCTS:
        dtype = plan.buffers[window.operands[0].load.buffer].type.dtype
        own_schedule = direct.schedule_direct(kernel, window, sizes, dtype)
        if own_schedule is None and (window.pooled is not None or window.op == "pooled_grad_input"):
            raise PlanError(f"no GPU kernel computes {window.op!r} fused with its pool; see `pool_fusion.py`.")
        return own_schedule or _tiled_gemm(sizes, *direct.product_sizes(kernel, window), dtype.accumulate)
    elements = prod(evaluate(e, sizes) for e in kernel.axes[:4])
    return GpuSchedule(Form.ELEMENTS, THREADS, _blocks(elements, THREADS))


def _call(plan: Plan, kernel: Kernel) -> GpuSchedule:
    return schedule_attention(plan, kernel, sizes_in(plan, kernel))


def _exchange(plan: Plan, kernel: Kernel) -> GpuSchedule:
    assert isinstance(kernel.body, Exchange)
    sizes = sizes_in(plan, kernel)
    largest = max(evaluate(count, sizes) for count in kernel.axes)
    workspace = exchange_workspace(kernel.body, sizes)
    return GpuSchedule(Form.EXCHANGE, THREADS, _blocks(largest, THREADS), workspace=workspace)


def exchange_workspace(exchange: Exchange, sizes: Mapping[str, int]) -> int:
    """Workspace bytes for what the other ranks send, however many there are."""
    if exchange.collective not in ("all_reduce", "reduce_scatter"):
        return 0
    return sum(evaluate(load.shape[0], sizes) for load in exchange.operands) * exchange.dtype.size + EXCHANGE_ROOM


def library_notes(plan: Plan) -> tuple[str, ...]:
    """Report notes: how many convolutions and attention calls a library or our kernels compute, and why."""
    libraries, counts = target_of(plan).load_libraries(), Counter[str]()
    for kernel in plan.kernels:
        if isinstance(kernel.body, Call):
            reason = libraries.why_not(plan, kernel, plan.sizes)
            kind = "attention" if kernel.body.routine == "attention" else "attention backward"
            by = (
                f"our flash attention kernel: {reason}"
                if reason
                else f"{libraries.name}, with a deterministic algorithm"
            )
            counts[f"x {kind} by {by}"] += 1
    for kernel in plan.kernels:
        if isinstance(kernel.body, Window) and "max_pool" not in kernel.body.op:
            reason = libraries.why_not(plan, kernel, plan.sizes)
            form = "our implicit GEMM" if schedule_of(kernel).form == Form.PRODUCT else "our direct kernels"
            by = f"{form}: {reason}" if reason else f"{libraries.name}, channels-last, with deterministic algorithms"
            counts[f"convolutions and adjoints by {by}"] += 1
    return tuple(f"{count} {text}" for text, count in counts.items())


SCHEDULE: Mapping[type, Callable[[Plan, Kernel], GpuSchedule]] = {
    Nest: _nest,
    Columns: _columns,
    Dot: _dot,
    Scatter: _scatter,
    Window: _window,
    Call: _call,
    Exchange: _exchange,
}
