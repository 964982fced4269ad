"""The work of a kernel as its schedule divides it: rounds of loads, threads with work, memory that warps touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, prod

from wholestep.compiler.backends.gpu.efficiency.coalescing import (
    SECTOR,
    Numbers,
    decompose,
    first_points,
    touched_memory,
    warps_of,
)
from wholestep.compiler.backends.gpu.grids.convolution import product_sizes
from wholestep.compiler.backends.gpu.grids.row_loads import (
    has_vector_loads,
    is_uniform,
    register_loads,
    vectors_per_thread,
)
from wholestep.compiler.backends.gpu.kernel_schedule import (
    JOINED,
    JOINED_CHUNKS,
    WARP,
    Form,
    GpuSchedule,
    schedule_of,
    sizes_in,
)
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.io.traffic import elements_touched
from wholestep.compiler.plan.model.bodies import Columns, Dot, Nest, Scatter, Window
from wholestep.compiler.plan.model.kernel import Guard, Kernel, Level, Load, Plan, Space
from wholestep.records import dataclass

Points = Mapping[int, Numbers]


@dataclass(frozen=True)
class KernelWork:
    """What the schedule makes of a kernel's work."""

    rounds: float  # dependent loads of a thread, each of which waits for the previous load
    active: float  # threads of the grid that have work, at the same time
    moving: float = 0.0  # nanoseconds to move the memory sectors that the warps touch
    last: float = 0.0  # rounds of the last block alone, which adds the sums of the other blocks


# -- addresses -------------------------------------------------------------------------------------------------------


def extents_of(plan: Plan, kernel: Kernel) -> dict[int, int]:
    sizes = sizes_in(plan, kernel)
    return {axis: max(1, evaluate(extent, sizes)) for axis, extent in enumerate(kernel.axes)}


@dataclass(frozen=True)
class Warps:
    """The threads of some warps, and the elements that all threads together access."""

    points: tuple[Points, ...]  # the axis indices of the 32 threads of each warp
    elements: int
    axis: int | None  # the axis along which a thread has `each` adjacent elements
    each: int
    vector: int  # elements that one instruction reads, if their addresses allow it


def moving_ns(plan: Plan, kernel: Kernel, warps: Warps, levels: Sequence[Level]) -> float:
    """Nanoseconds in which the accesses of the inner loops move sectors, or issue one line per cycle."""
    sizes, machine = sizes_in(plan, kernel), costs_of(plan).efficiency
    axis = -1 if warps.axis is None else warps.axis
    moved = lines = 0.0
    for load, guards in accesses(plan, levels):
        dtype, each = plan.buffers[load.buffer].type.dtype, warps.each
        size = dtype.size
        if elements_touched(load, (), kernel, sizes) * size <= machine.nearest_bytes:
            continue  # a small table is read from the nearest cache
        is_whole = all(is_uniform(guard, axis, warps.vector) for guard in guards)
        packed = is_whole and warps.vector > 1 and has_vector_loads(load, dtype, axis, warps.vector)
        touched = [touched_memory(load, p, sizes, size, axis, each, packed) for p in warps.points]
        count = warps.elements / (each * WARP) / len(touched) * guarded_share(guards, kernel, sizes)
        moved += count * sum(t.sectors for t in touched) * SECTOR
        lines += count * sum(t.lines for t in touched)
    return max(moved * machine.sector_byte, lines * machine.line / target_of(plan).multiprocessors)


def accesses(plan: Plan, levels: Sequence[Level]) -> Iterator[tuple[Load, tuple[Guard, ...]]]:
    """Every distinct address of the inner loops, with the guards of a load."""
    loads: dict[Load, tuple[Guard, ...]] = {}
    for level in levels:
        loads |= {i.load: i.guards for i in level.body if i.load is not None}
        loads |= {s.load: () for s in level.stores}
    return ((load, guards) for load, guards in loads.items() if plan.buffers[load.buffer].space is not Space.WORK)


def guarded_share(guards: Sequence[Guard], kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """The fraction of the elements for which the guards of a load hold (a load from one part of a concatenation)."""
    share = 1.0
    for guard in guards:
        if guard.index.value is None and guard.index.over == 1 and len(guard.index.terms) == 1:
            ((axis, _),) = guard.index.terms
            inside = evaluate(guard.hi, sizes) - evaluate(guard.lo, sizes)
            share *= min(1.0, inside / evaluate(kernel.axes[axis], sizes))
    return share


# -- forms -----------------------------------------------------------------------------------------------------------


def elements(plan: Plan, kernel: Kernel) -> KernelWork:
    """One thread per element or vector; loads of one element are issued together."""
    schedule, extents = schedule_of(kernel), extents_of(plan, kernel)
    if isinstance(kernel.body, Window):
        return pixels(kernel.body, schedule, prod(extents[a] for a in range(4)))
    depth = extents[kernel.body.reduced] if isinstance(kernel.body, Columns) else 1
    axis, each = kernel.vector, schedule.vector
    axes = (*kernel.rows, *(() if axis is None else (axis,)))
    total = prod(extents[a] for a in axes if a != axis) * (1 if axis is None else max(1, extents[axis] // each))
    points = warps_of(schedule.order or axes, extents, axis, each)
    levels = kernel.levels if depth == 1 else kernel.levels[:1]
    moved = moving_ns(plan, kernel, Warps(tuple(points), total * each * depth, axis, each, each), levels)
    threads = schedule.blocks * schedule.threads
    return KernelWork(ceil(total / threads) * ceil(depth / IN_FLIGHT), min(total, threads), moved)


def pixels(window: Window, schedule: GpuSchedule, total: int) -> KernelWork:
    """One thread per element of a pool, which loads the elements of its window."""
    threads, taps = schedule.blocks * schedule.threads, max(1, window.work // total)
    total //= schedule.vector
    return KernelWork(ceil(total / threads) * ceil(taps / IN_FLIGHT), min(total, threads))


def rows(plan: Plan, kernel: Kernel) -> KernelWork:
    """One warp or block per row: one round per eight vectors of each pass over the row, and one per reduction."""
    nest, schedule, extents = kernel.body, schedule_of(kernel), extents_of(plan, kernel)
    assert isinstance(nest, Nest)
    row_count = prod(extents[a] for a in nest.rows)
    length = 1 if nest.vector is None else extents[nest.vector]
    vectors = vectors_per_thread(kernel, nest, schedule) or ceil(length / (schedule.width * schedule.vector))
    in_flight = costs_of(plan).reductions.unrolled_vectors
    resident = register_loads(plan, kernel, nest, schedule)
    loading = [level for level in nest.levels if any(i.load is not None and i.load not in resident for i in level.body)]
    join = 0.0 if schedule.width == 1 else SHUFFLES if schedule.width <= WARP else BARRIERS
    joins = sum(len(level.reduces) for level in nest.levels) * join
    rounds = ceil(vectors / in_flight) * (len(loading) + bool(resident)) + joins
    workers = schedule.blocks * (schedule.threads // schedule.width)
    lanes = min(1.0, length / (schedule.width * schedule.vector))
    points = row_points(nest, schedule, extents, length)
    each = length if schedule.width == 1 else schedule.vector
    warps = Warps(points, row_count * length, nest.vector, each, schedule.vector)
    moved = moving_ns(plan, kernel, warps, nest.levels)
    active = min(row_count, workers) * schedule.width * lanes
    return KernelWork(ceil(row_count / workers) * rounds, active, moved)


def row_points(nest: Nest, schedule: GpuSchedule, extents: Mapping[int, int], length: int) -> tuple[Points, ...]:
    """The threads of some warps: along one row, or along several that share the warp."""
    if nest.vector is None or schedule.width >= WARP:
        return ({nest.vector or 0: np_lanes(schedule.vector, length)},)
    packs = {**extents, nest.vector: schedule.width}
    total = prod(extents[a] for a in nest.rows) * schedule.width
    warps = [decompose(at, (*nest.rows, nest.vector), packs) for at in first_points(total)]
    last = max(0, length - schedule.vector)
    return tuple({**p, nest.vector: (p[nest.vector] * schedule.vector).clip(0, last)} for p in warps)


SHUFFLES, BARRIERS = 0.1, 0.5  # rounds that a reduction over a warp, and over a block, takes


def np_lanes(each: int, length: int) -> Numbers:
    """The first elements of the threads of a warp along a row; threads past its end repeat the last one."""
    lanes = decompose(0, (0,), {0: WARP})[0] * each
    return lanes.clip(0, max(0, length - each))


def sums(plan: Plan, kernel: Kernel) -> KernelWork:
    """Partial column sums: warps share the rows of a slice, and load several of them at a time."""
    nest, schedule, extents = kernel.body, schedule_of(kernel), extents_of(plan, kernel)
    assert isinstance(nest, Nest)
    assert nest.vector is not None
    length = extents[nest.vector]
    across = ceil(length / (WARP * schedule.vector))
    row_count = prod(extents[a] for a in nest.rows)
    parallel_rows = max(1, schedule.blocks // across) * (schedule.threads // WARP)
    point = {nest.vector: np_lanes(schedule.vector, length)}
    warps = Warps((point,), row_count * length, nest.vector, schedule.vector, schedule.vector)
    moved = moving_ns(plan, kernel, warps, nest.levels)
    in_flight = costs_of(plan).reductions.loads_in_flight // 32
    active = schedule.blocks * schedule.threads * min(1.0, length / (WARP * schedule.vector * across))
    return KernelWork(ceil(row_count / parallel_rows / in_flight), active, moved)


def columns(plan: Plan, kernel: Kernel) -> KernelWork:
    """One block per tile of columns: its parts share the reduced axis, or the chunk of it that the block adds up."""
    body, schedule, extents = kernel.body, schedule_of(kernel), extents_of(plan, kernel)
    assert isinstance(body, Columns)
    across, depth = extents[body.vector], extents[body.reduced]
    tiles = prod(extents[a] for a in body.rows) * ceil(across / (schedule.width * schedule.vector))
    parts = schedule.threads // schedule.width
    length = min(depth, schedule.chunk or depth)
    rounds = ceil(length / (parts * IN_FLIGHT)) + 1
    groups = ceil(schedule.chunks / JOINED_CHUNKS)
    last = (ceil(min(schedule.chunks, JOINED_CHUNKS) / parts) + ceil(groups / parts)) / IN_FLIGHT
    lanes = decompose(0, (body.reduced, body.vector), {body.vector: schedule.width, body.reduced: parts})
    inside = lanes[body.vector] * schedule.vector
    point = {body.vector: inside.clip(0, max(0, across - schedule.vector)), body.reduced: lanes[body.reduced]}
    total = prod(extents[a] for a in body.rows) * across * depth
    moved = moving_ns(
        plan, kernel, Warps((point,), total, body.vector, schedule.vector, schedule.vector), body.levels[:1]
    )
    used = min(1.0, across / (schedule.width * schedule.vector)) * min(1.0, length / parts)
    active = min(tiles, schedule.blocks) * schedule.chunks * schedule.threads * used
    return KernelWork(ceil(tiles / schedule.blocks) * rounds, active, moved, last if schedule.chunks > 1 else 0.0)


IN_FLIGHT = 4  # rows whose loads a thread of a column reduction issues together


def scatter(plan: Plan, kernel: Kernel) -> KernelWork:
    """A row of the target adds the rows of its indices one after the other: on average `indices / rows` rows."""
    body, schedule, extents = kernel.body, schedule_of(kernel), extents_of(plan, kernel)
    assert isinstance(body, Scatter)
    indices = prod(extents[a] for a in body.over)
    targets = max(1, evaluate(body.target.shape[body.at], sizes_in(plan, kernel)))
    parts = schedule.threads // WARP if schedule.form == Form.SCATTER_ROWS else 1
    scanned = {Form.SCATTER: indices / SCANS, Form.SCATTER_ROWS: indices / (schedule.threads * IN_FLIGHT)}
    rounds = scanned.get(Form(schedule.form), 0.0) + indices / targets / parts
    threads = schedule.blocks * schedule.threads
    passes = max(1.0, targets / schedule.blocks) if schedule.form == Form.SCATTER_ROWS else 1.0
    return KernelWork(rounds * passes, min(threads, prod(extents.values())))


def scatter_table(plan: Plan, kernel: Kernel) -> KernelWork:
    """Groups of a block's threads share a slice of the indices; the tables of slices are added in groups."""
    body, schedule, extents = kernel.body, schedule_of(kernel), extents_of(plan, kernel)
    assert isinstance(body, Scatter)
    slices = schedule.chunks * (schedule.threads // schedule.width)
    rounds = ceil(prod(extents[a] for a in body.over) / slices / IN_FLIGHT)
    return KernelWork(rounds, schedule.blocks * slices * schedule.width, last=schedule.chunks / JOINED / IN_FLIGHT)


SCANS = 64  # indices that a thread compares in the time of one load: they come from the nearest cache


def product(plan: Plan, kernel: Kernel) -> KernelWork:
    """Tiles of a product by our kernels: a tile that the result does not fill leaves threads idle."""
    schedule = schedule_of(kernel)
    threads = schedule.blocks * schedule.chunks * schedule.threads
    m, n, k = product_extents(plan, kernel)
    tall, wide = schedule.tile[:2]
    filled = m * n / (ceil(m / tall) * tall * ceil(n / wide) * wide)
    depth = ceil(min(k, schedule.chunk or k) / DEPTH)
    return KernelWork(depth + 1, threads * filled, last=schedule.chunks / IN_FLIGHT)


def product_extents(plan: Plan, kernel: Kernel) -> tuple[int, int, int]:
    """m, n and k of a product, or of the implicit product that a convolution is."""
    sizes, body = sizes_in(plan, kernel), kernel.body
    if isinstance(body, Window):
        _, m, n, k = product_sizes(kernel, body)
        return evaluate(m, sizes), evaluate(n, sizes), evaluate(k, sizes)
    assert isinstance(body, Dot)
    return tuple(evaluate(kernel.axes[a], sizes) for a in (body.m, body.n, body.k))  # type: ignore[return-value]


def grid(plan: Plan, kernel: Kernel) -> KernelWork:
    """A form whose blocks stage their operands in shared memory: its arithmetic on the threads of the grid."""
    schedule = schedule_of(kernel)
    return KernelWork(0.0, schedule.blocks * schedule.chunks * schedule.threads)


DEPTH = 128  # elements of k whose loads a block of a product issues together

WORK: Mapping[str, Callable[[Plan, Kernel], KernelWork]] = {
    Form.ELEMENTS: elements,
    Form.ROWS: rows,
    Form.SUMS: sums,
    Form.COLUMNS: columns,
    Form.SCATTER: scatter,
    Form.SCATTER_ROWS: scatter,
    Form.SCATTER_SORTED: scatter,
    Form.SCATTER_TABLE: scatter_table,
    Form.PRODUCT: product,
    Form.MEDIUM: product,
    Form.DIRECT: grid,
    Form.GRADIENT: grid,
    Form.GROUPED: grid,
    Form.GROUPED_GRADIENT: grid,
    Form.POOLED_GRADIENT: grid,
    Form.ATTENTION: grid,
}
