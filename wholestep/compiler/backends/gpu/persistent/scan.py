"""Persistent scan: which loops over time steps run as one kernel, how its blocks partition the work, and its barriers.

A block owns some batch rows and some hidden units in all kernels of the loop and in every step: it computes its columns
of the products from weights resident in its shared memory, and the elementwise kernels on the same elements.  The only
values it reads from other blocks are the rows that it multiplies.  So barriers, among the blocks that share rows, are
needed only before those products and before such rows are overwritten.  Sums have the same order as in tiled kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wholestep.compiler.backends.gpu.kernel_schedule import WARP, Form, schedule_of
from wholestep.compiler.backends.gpu.strides import is_affine, is_aligned_in
from wholestep.compiler.backends.gpu.target import target_of
from wholestep.compiler.ir.types import Extent, evaluate, float32, symbols_of
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Plan, Space

PIECE = 128  # k elements per iteration, sixteen for each of eight warps: `WS_LONG_PIECE` of native/persistent_scan.h
APART = 4  # padding elements per row in shared memory, against bank conflicts: `ws_padded` of native/persistent_scan.h


@dataclass(frozen=True)
class PersistentScan:
    """A loop that runs as one persistent kernel."""

    kernels: tuple[Kernel, ...]  # kernels of one step, in order
    batch: Extent  # number of rows
    units: int
    rows: int  # rows per block
    width: int  # units per block
    down: int  # blocks along the rows, at capacity
    barriers: frozenset[int]  # positions in `kernels` before which the blocks of the same rows wait at a barrier
    inside: frozenset[int]  # buffers used within one block only: they exist in shared memory alone
    # Loop-carried buffers: a block reads the elements that it wrote in the previous step, from a copy in shared memory.
    carried: frozenset[int]
    half_bytes: int  # bytes of shared memory that stage half-precision rows
    bytes: int  # bytes of shared memory in total

    @property
    def across(self) -> int:
        return self.units // self.width

    @property
    def blocks(self) -> int:
        return self.down * self.across

    @property
    def owns(self) -> tuple[int, int, int, int]:
        """The partition as stored in the schedule of each kernel."""
        return self.rows, self.width, self.down, self.across

    @property
    def weight_bytes(self) -> int:
        """Bytes of the resident weights, each counted once."""
        return 4 * sum(columns_of(k) * depth_of(k) for k in self.kernels if isinstance(k.body, Dot))


def row_axis(kernel: Kernel) -> int:
    return kernel.body.m if isinstance(kernel.body, Dot) else 0


def unit_axis(kernel: Kernel) -> int:
    return kernel.body.n if isinstance(kernel.body, Dot) else 1


def columns_of(kernel: Kernel) -> int:
    columns = kernel.axes[unit_axis(kernel)]
    assert isinstance(columns, int), "`_why_not_persistent` has checked it"
    return columns


def padded_row_stride(depth: int) -> int:
    """Row stride of an operand in shared memory, in elements."""
    return -(-depth // PIECE) * PIECE + APART


def depth_of(kernel: Kernel) -> int:
    assert isinstance(kernel.body, Dot)
    depth = kernel.axes[kernel.body.k]
    assert isinstance(depth, int), "`_why_not_persistent` has checked it"
    return depth


def is_half(draft: Draft, kernel: Kernel) -> bool:
    """Does a product multiply half-precision values?"""
    assert isinstance(kernel.body, Dot)
    return draft.buffers[kernel.body.a.buffer].type.dtype.is_half


def chunks_of(kernel: Kernel) -> int:
    """Chunks of a product's k, each with its own partial sum."""
    return -(-depth_of(kernel) // (schedule_of(kernel).chunk or depth_of(kernel)))


def find_persistent_scan(draft: Draft, kernels: Sequence[Kernel]) -> PersistentScan | str:
    """The persistent form of a loop's kernels, or the reason why there is none."""
    reason = next((reason for k in kernels if (reason := _why_not_persistent(draft, k))), "")
    if reason:
        return reason
    batch = {kernel.axes[row_axis(kernel)] for kernel in kernels}
    units = min(map(columns_of, kernels))
    if (
        len(batch) > 1
        or any(columns_of(k) % units for k in kernels)
        or not any(isinstance(k.body, Dot) for k in kernels)
    ):
        return "its kernels do not run over the same rows and units"
    # What the loop itself computes may cross blocks in one way only: as the left operand of a product.  Everything else
    # that it wrote must be read by the block that owns the element.
    written = {load.buffer for k in kernels for load in k.body.stores()}
    if not all(_is_block_local(load, k, units) for k, load in _owned_accesses(kernels) if load.buffer in written):
        return "an element depends on other rows or units than its own"
    if not _is_stepwise(kernels, written):
        return "its products read loop-carried values in a layout that blocks cannot share"
    return _choose_tile(draft, kernels, batch.pop(), units, written)


def _why_not_persistent(draft: Draft, kernel: Kernel) -> str:
    """Why a kernel cannot be partitioned by rows and units; "" if it can."""
    body = kernel.body
    if isinstance(body, Nest):
        is_two_dimensional = (
            len(kernel.axes) == 2 and body.rows == (0,) and body.vector == 1 and isinstance(kernel.axes[1], int)
        )
        (level, *more) = body.levels
        if not is_two_dimensional or more or level.reduces or level.sums or level.row_stores:
            return "it has kernels that are not elementwise over rows and units"
        return ""
    if not isinstance(body, Dot) or body.batch or len(body.levels) != 1 or body.levels[0].row_stores:
        return "it has kernels that are neither matrix products nor elementwise"
    if schedule_of(kernel).form == Form.LIBRARY:
        return "its products are so large that a library computes them"
    depth, columns = kernel.axes[body.k], kernel.axes[body.n]
    dtypes = {draft.buffers[x.buffer].type.dtype for x in (body.a, body.b)}
    if len(dtypes) > 1 or dtypes.pop().accumulate != float32:
        return "its products are not in float32 or a half type"
    count = 16 // draft.buffers[body.a.buffer].type.dtype.size  # elements of a 16-byte load
    if not isinstance(depth, int) or not isinstance(columns, int) or depth % count:
        return "its products have dynamic sizes, or sizes that are not multiples of 16 bytes"
    return "" if is_aligned_in(body.a, body.k, count) else "the rows of its products are not aligned to 16 bytes"


def _owned_accesses(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, Load]]:
    """All accesses of the kernels, except the operands of products."""
    for k in kernels:
        operands = [k.body.a, k.body.b] if isinstance(k.body, Dot) else []
        for load, _ in k.body.reads():
            if not any(load is o for o in operands):
                yield k, load
        for load in k.body.stores():
            yield k, load


def _is_block_local(load: Load, kernel: Kernel, units: int) -> bool:
    """Is an accessed element owned by the block of the kernel's row and unit?

    Its column must be the unit plus a multiple of the number of units (as in the gates of an LSTM).
    """
    *outer, last = load.index
    row, unit, extent = row_axis(kernel), unit_axis(kernel), load.shape[-1]
    rows = [(i, e) for i, e in zip(outer, load.shape, strict=False) if i.terms]
    if len(rows) != 1 or rows[0][0].plain != row or rows[0][1] != kernel.axes[row]:
        return False
    if not is_affine(load) or not isinstance(extent, int) or extent % units:
        return False
    start = last.offset
    return last.terms == ((unit, 1),) and isinstance(start, int) and start % units == 0


def _is_stepwise(kernels: Sequence[Kernel], written: set[int]) -> bool:
    """Are the weights loop-invariant, and are loop-carried rows read in the layout in which they are written?"""
    for k in kernels:
        if not isinstance(k.body, Dot):
            continue
        a, b = k.body.a, k.body.b
        if b.buffer in written or any(_in_loop(i.offset) for i in b.index):
            return False
        if any(k.body.n == axis for i in a.index for axis, _ in i.terms):
            return False
        # Barriers are per group of blocks with the same rows, so the operand's row must be the block's own.
        if a.buffer in written:
            rows = [i for i, e in zip(a.index, a.shape, strict=True) if i.plain == k.body.m and e == k.axes[k.body.m]]
            if len(rows) != 1:
                return False
    shapes: dict[int, set[object]] = {}
    for k in kernels:
        for load in (*(load for load, _ in k.body.reads()), *k.body.stores()):
            if load.buffer in written:
                shapes.setdefault(load.buffer, set()).add(load.shape)
    return all(len(buffer_shapes) == 1 for buffer_shapes in shapes.values())


def _barriers(kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Kernels that need a barrier before them.

    A product must see the rows that other blocks have written, and rows must not be overwritten while others read them.
    """
    count, barriers = len(kernels), set[int]()

    def is_separated(first: int, then: int) -> bool:
        """Is there a barrier after kernel `first` and before the next execution of kernel `then`?"""
        steps = (then - first) % count or count
        return any((first + i) % count in barriers for i in range(1, steps + 1))

    for reader, k in enumerate(kernels):
        if not isinstance(k.body, Dot) or k.body.a.buffer not in written:
            continue
        for writer, other in enumerate(kernels):
            stores = [load for load in other.body.stores() if load.buffer == k.body.a.buffer]
            if not stores:
                continue
            if not is_separated(writer, reader):
                barriers.add(reader)
            is_overwritten = any(not any(_in_loop(i.offset) for i in load.index) for load in stores)
            if is_overwritten and not is_separated(reader, writer):
                barriers.add(writer)
    return frozenset(barriers)


def _in_loop(offset: Extent) -> bool:
    """Does an offset change from step to step?"""
    return any(symbol.startswith("%") for symbol in symbols_of((offset,)))


def _block_local_buffers(draft: Draft, kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Buffers that one product of a loop writes for later kernels of the same step, and that nothing else reads."""
    ids = {k.id for k in kernels}
    read_outside = {load.buffer for k in draft.kernels if k.id not in ids for load, _ in k.body.reads()}
    operands = {k.body.a.buffer for k in kernels if isinstance(k.body, Dot)}
    result = set[int]()
    for position, k in enumerate(kernels):
        for load in k.body.stores() if isinstance(k.body, Dot) else ():
            buffer = draft.buffers[load.buffer]
            read_before = {load.buffer for other in kernels[: position + 1] for load, _ in other.body.reads()}
            others = {load.buffer for other in kernels if other is not k for load in other.body.stores()}
            is_matrix = buffer.space is Space.ARENA and buffer.type.dtype == float32 and len(load.index) == 2
            if is_matrix and load.buffer not in read_outside | operands | read_before | others:
                result.add(load.buffer)
    return frozenset(result & written)


def _loop_carried_buffers(draft: Draft, kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Buffers whose elements a step reads in the block that wrote them in the previous step."""
    result = set[int]()
    for b in written:
        stores = [load for k in kernels for load in k.body.stores() if load.buffer == b]
        writers = [at for at, k in enumerate(kernels) if any(load.buffer == b for load in k.body.stores())]
        reads = [(at, load) for at, k in enumerate(kernels) for load, _ in k.body.reads() if load.buffer == b]
        operands = [k.body.a for k in kernels if isinstance(k.body, Dot)]
        local_reads = [(at, load) for at, load in reads if not any(load is a for a in operands)]
        if (
            len(stores) != 1
            or not local_reads
            or draft.buffers[b].type.dtype != float32
            or stores[0].index[-1].offset != 0
        ):
            continue
        loop = draft.loops[kernels[0].loop or 0]
        if all(at <= writers[0] and _is_next(stores[0], load, loop.symbol, loop.reverse) for at, load in local_reads):
            result.add(b)
    return frozenset(result)


def _is_next(store: Load, load: Load, symbol: str, reverse: bool) -> bool:
    """Does a step store to the address that the next step reads?"""
    for stored, read in zip(store.index, load.index, strict=True):
        step_coefficients = [dict(_terms(i.offset)).get((symbol,), 0) for i in (stored, read)]
        if bool(stored.terms) != bool(read.terms) or step_coefficients not in ([0, 0], [1, 1]):
            return False
        if stored.offset - read.offset != (0 if not step_coefficients[0] else -1 if reverse else 1):
            return False
    return any(_in_loop(i.offset) for i in store.index)


def _terms(extent: Extent) -> tuple[tuple[tuple[str, ...], int], ...]:
    return () if isinstance(extent, int) else extent.terms


def lanes_of(rows: int, columns: int) -> tuple[int, int] | None:
    """How the threads of a warp partition a tile, down and across; None if they cannot."""
    for across in (8, 4, 2, 1, 16, 32):
        if columns % across == 0 and rows % (WARP // across) == 0:
            return WARP // across, across
    return None


def _choose_tile(
    draft: Draft, kernels: Sequence[Kernel], batch: Extent, units: int, written: set[int]
) -> PersistentScan | str:
    """The cheapest tile (multiplications plus operand loads) whose blocks fit shared memory and are co-resident."""
    capacity, target = evaluate(batch, draft.sizes), target_of(draft)
    costs = target.cost_model.persistent
    barriers, inside = _barriers(kernels, written), _block_local_buffers(draft, kernels, written)
    carried, dots = _loop_carried_buffers(draft, kernels, written), [k for k in kernels if isinstance(k.body, Dot)]
    candidates: list[tuple[int, PersistentScan]] = []
    for rows in costs.scan_rows:
        for width in costs.scan_units:
            # A block owns `rows` x `width` units.  A product with several columns per unit (the gates of an LSTM) has
            # that many columns for each of them.
            widths = [columns_of(k) // units * width for k in dots]
            lanes = [lanes_of(rows, n) for n in widths]
            down = -(-capacity // rows)
            if units % width or None in lanes or down * (units // width) > target.multiprocessors:
                continue
            sums = [rows * n // WARP * chunks_of(k) for k, n in zip(dots, widths, strict=True)]
            work = sum(rows * n * depth_of(k) for k, n in zip(dots, widths, strict=True))
            # Shared memory in 4-byte words: the resident columns of the weights; one tile of input rows; partial sums
            # of the products; and the buffers that stay within a block.
            words = sum(n * padded_row_stride(depth_of(k)) for k, n in zip(dots, widths, strict=True))
            words += rows * max(padded_row_stride(depth_of(k)) for k in dots)
            halves = max(rows * (padded_row_stride(depth_of(k)) - APART) * 2 * is_half(draft, k) for k in dots)
            words += max(8 * chunks_of(k) * rows * n for k, n in zip(dots, widths, strict=True)) + halves // 4
            words += sum(rows * width * tile_of(kernels, b, units) for b in (*inside, *carried))
            if max(sums) > costs.scan_accumulators or work > costs.scan_work or 4 * words > target.shared_memory:
                continue
            candidate = PersistentScan(
                tuple(kernels), batch, units, rows, width, down, barriers, inside, carried, halves, 4 * words
            )
            candidates.append((work + costs.scan_load * rows * sum(map(depth_of, dots)), candidate))
    if not candidates:
        return "its products are too large for co-resident blocks"
    return min(candidates, key=lambda each: each[0])[1]


def tile_of(kernels: Sequence[Kernel], buffer: int, units: int) -> int:
    """The number of a buffer's elements per unit in shared memory: those that the kernel computes."""
    return next(columns_of(k) // units for k in kernels for load in k.body.stores() if load.buffer == buffer)


def why_not_resident(blocks: int, multiprocessors: int | None) -> str:
    """Why the blocks of a persistent kernel cannot all be resident on a GPU; "" if they can, or for an unknown GPU."""
    if multiprocessors is None or blocks <= multiprocessors:
        return ""
    return f"would need {blocks} co-resident blocks, and this GPU has {multiprocessors} multiprocessors"


def loops_of(plan: Plan) -> Iterator[tuple[Kernel, ...]]:
    """The kernels of each loop of a plan."""
    for loop in range(len(plan.loops)):
        yield tuple(k for k in plan.kernels if k.loop == loop)


def notes_of(plan: Plan, multiprocessors: int | None = None) -> tuple[str, ...]:
    """Report notes: how each loop over time steps runs, and why; for a given GPU if `multiprocessors` is not None."""
    notes = []
    for number, kernels in enumerate(loops_of(plan)):
        persistent, length = find_persistent_scan(plan, kernels), plan.loops[number].length
        if not isinstance(persistent, str) and (reason := why_not_resident(persistent.blocks, multiprocessors)):
            persistent = f"it {reason}"
        heading = f"loop {number}, {length} steps of {len(kernels)} kernels"
        if isinstance(persistent, str):
            notes.append(f"{heading}, runs with one launch per kernel and step: {persistent}")
        else:
            notes.append(
                f"{heading}, runs as one persistent kernel of {persistent.blocks} blocks, each with {persistent.rows} "
                f"rows, {persistent.width} units and {len(persistent.barriers)} barriers per step: "
                f"{persistent.weight_bytes:,} bytes of weights stay in shared memory"
            )
    return tuple(notes)
