"""A loop over steps as one kernel: which loops are one, what a block of it owns, and where its blocks meet.

A block owns some rows of the batch and some units, in all kernels of the loop and in every step: products whose results
are its own columns, of weights that stay in its shared memory, and what follows element by element.  Of what others
make it needs only the rows that it multiplies, so the blocks that share rows meet there, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from wholestep.compiler.backends.cuda.libraries.gemm_library import lies_in
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.types import Extent, evaluate, float32, symbols_of
from wholestep.compiler.plan.model.bodies import Dot, Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Plan, Space

THREADS, WARP = 256, 32
PIECE = 128  # of a product's k: sixteen for each of eight warps
APART = 4  # elements between two rows in shared memory, for its banks
ROWS, UNITS = (8, 16, 32, 64), (1, 2, 4, 8, 16, 32, 64)  # that a block may own
MOST_WORK = 1 << 19  # multiplications of a block in a step: from there on tiles of whole launches are faster
MOST_SUMS = 64  # that a thread has in registers
BROUGHT = 16  # multiplications that take as long as bringing a number from another block


@dataclass(frozen=True)
class Looping:
    """A loop that is one kernel."""

    kernels: tuple[Kernel, ...]  # of a step, in their order
    batch: Extent  # rows
    units: int
    rows: int  # of a block,
    width: int  # and its units
    down: int  # blocks at capacity, along rows
    meets: frozenset[int]  # places among `kernels` before which blocks of the same rows meet
    inside: frozenset[int]  # buffers that nobody else sees: they are in shared memory alone
    carried: frozenset[
        int
    ]  # buffers of which a block reads what it wrote a step before: it has that in shared memory too
    half_bytes: int  # of shared memory, for rows of half numbers as they come,
    bytes: int  # and of all

    @property
    def across(self) -> int:
        return self.units // self.width

    @property
    def blocks(self) -> int:
        return self.down * self.across

    @property
    def owns(self) -> tuple[int, int, int, int]:
        """What the schedule of each kernel says."""
        return self.rows, self.width, self.down, self.across

    @property
    def weight_bytes(self) -> int:
        """Of the weights that stay on all multiprocessors, each once."""
        return 4 * sum(columns_of(k) * depth_of(k) for k in self.kernels if isinstance(k.body, Dot))


def row_axis(kernel: Kernel) -> int:
    return kernel.body.m if isinstance(kernel.body, Dot) else 0


def unit_axis(kernel: Kernel) -> int:
    return kernel.body.n if isinstance(kernel.body, Dot) else 1


def columns_of(kernel: Kernel) -> int:
    found = kernel.axes[unit_axis(kernel)]
    assert isinstance(found, int), "it was looked at"
    return found


def padded_row_stride(depth: int) -> int:
    """From one row of an operand to the next in shared memory."""
    return -(-depth // PIECE) * PIECE + APART


def depth_of(kernel: Kernel) -> int:
    assert isinstance(kernel.body, Dot)
    found = kernel.axes[kernel.body.k]
    assert isinstance(found, int), "it was looked at"
    return found


def is_half(draft: Draft, kernel: Kernel) -> bool:
    """Does a product multiply half numbers?"""
    assert isinstance(kernel.body, Dot)
    return draft.buffers[kernel.body.a.buffer].type.dtype.is_half


def chunks_of(kernel: Kernel) -> int:
    """Of a product's k, each of which is added up by itself."""
    return -(-depth_of(kernel) // (schedule_of(kernel).chunk or depth_of(kernel)))


def find_loop(draft: Draft, kernels: Sequence[Kernel]) -> Looping | str:
    """The kernels of a loop as one, or why they are not."""
    why = next((why for k in kernels if (why := _why_not_persistent(draft, k))), "")
    if why:
        return why
    batch = {kernel.axes[row_axis(kernel)] for kernel in kernels}
    units = min(map(columns_of, kernels))
    if (
        len(batch) > 1
        or any(columns_of(k) % units for k in kernels)
        or not any(isinstance(k.body, Dot) for k in kernels)
    ):
        return "its kernels do not run over the same rows and units"
    written = {load.buffer for k in kernels for load in k.body.stores()}
    if not all(_is_own(load, k, units) for k, load in _owned_accesses(kernels) if load.buffer in written):
        return "an element of it needs others than its own row and unit"
    if not _is_stepwise(kernels, written):
        return "its products multiply what changes in ways that blocks cannot share"
    return _with_tiles(draft, kernels, batch.pop(), units, written)


def _why_not_persistent(draft: Draft, kernel: Kernel) -> str:
    """Why a kernel cannot be shared out by rows and units; "" where it can."""
    body = kernel.body
    if isinstance(body, Nest):
        plain = len(kernel.axes) == 2 and body.rows == (0,) and body.vector == 1 and isinstance(kernel.axes[1], int)
        (level, *more) = body.levels
        if not plain or more or level.reduces or level.sums or level.row_stores:
            return "it has kernels that are not element by element over rows and units"
        return ""
    if not isinstance(body, Dot) or body.batch or len(body.levels) != 1 or body.levels[0].row_stores:
        return "it has kernels that are neither products nor element by element"
    depth, columns = kernel.axes[body.k], kernel.axes[body.n]
    dtypes = {draft.buffers[x.buffer].type.dtype for x in (body.a, body.b)}
    if len(dtypes) > 1 or dtypes.pop().accumulate != float32:
        return "its products are not float32 or half numbers"
    count = 16 // draft.buffers[body.a.buffer].type.dtype.size  # a piece of what is brought
    if not isinstance(depth, int) or not isinstance(columns, int) or depth % count:
        return "its products have sizes that a call decides, or that are not whole pieces of 16 bytes"
    return "" if lies_in(body.a, body.k, count) else "the rows of its products do not lie in pieces of 16 bytes"


def _owned_accesses(kernels: Sequence[Kernel]) -> Iterator[tuple[Kernel, Load]]:
    """All places that kernels read or write but for the operands of products."""
    for k in kernels:
        operands = [k.body.a, k.body.b] if isinstance(k.body, Dot) else []
        for load, _ in k.body.reads():
            if not any(load is o for o in operands):
                yield k, load
        for load in k.body.stores():
            yield k, load


def _is_own(load: Load, kernel: Kernel, units: int) -> bool:
    """Does a place belong to whoever owns the kernel's row and unit?  Its column is a unit, some times all units on."""
    *outer, last = load.index
    row, unit, extent = row_axis(kernel), unit_axis(kernel), load.shape[-1]
    rows = [(i, e) for i, e in zip(outer, load.shape, strict=False) if i.terms]
    if len(rows) != 1 or rows[0][0].plain != row or rows[0][1] != kernel.axes[row]:
        return False
    if any(i.value is not None or i.over != 1 for i in load.index) or not isinstance(extent, int) or extent % units:
        return False
    start = last.offset
    return last.terms == ((unit, 1),) and isinstance(start, int) and start % units == 0


def _is_stepwise(kernels: Sequence[Kernel], written: set[int]) -> bool:
    """Are weights the same in every step, and rows of what changes read as it was written?"""
    for k in kernels:
        if not isinstance(k.body, Dot):
            continue
        a, b = k.body.a, k.body.b
        if b.buffer in written or any(_in_loop(i.offset) for i in b.index):
            return False
        if any(k.body.n == axis for i in a.index for axis, _ in i.terms):
            return False
        if a.buffer in written:
            rows = [i for i, e in zip(a.index, a.shape, strict=True) if i.plain == k.body.m and e == k.axes[k.body.m]]
            if len(rows) != 1:
                return False
    shapes: dict[int, set[object]] = {}
    for k in kernels:
        for load in (*(load for load, _ in k.body.reads()), *k.body.stores()):
            if load.buffer in written:
                shapes.setdefault(load.buffer, set()).add(load.shape)
    return all(len(found) == 1 for found in shapes.values())


def _meetings(kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Before which kernels blocks meet: what a product multiplies is there, and nobody writes over what others read."""
    count, found = len(kernels), set[int]()

    def met(first: int, then: int) -> bool:
        """Is there a meeting behind a kernel and before the next time that another one runs?"""
        steps = (then - first) % count or count
        return any((first + i) % count in found for i in range(1, steps + 1))

    for reader, k in enumerate(kernels):
        if not isinstance(k.body, Dot) or k.body.a.buffer not in written:
            continue
        for writer, other in enumerate(kernels):
            stores = [load for load in other.body.stores() if load.buffer == k.body.a.buffer]
            if not stores:
                continue
            if not met(writer, reader):
                found.add(reader)
            again = any(not any(_in_loop(i.offset) for i in load.index) for load in stores)
            if again and not met(reader, writer):
                found.add(writer)
    return frozenset(found)


def _in_loop(offset: Extent) -> bool:
    """Does a place move from step to step?"""
    return any(symbol.startswith("%") for symbol in symbols_of((offset,)))


def _inside(draft: Draft, kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Buffers that one product of a loop leaves for what follows it in the same step, and that nobody else sees."""
    ids = {k.id for k in kernels}
    seen = {load.buffer for k in draft.kernels if k.id not in ids for load, _ in k.body.reads()}
    operands = {k.body.a.buffer for k in kernels if isinstance(k.body, Dot)}
    found = set[int]()
    for place, k in enumerate(kernels):
        for load in k.body.stores() if isinstance(k.body, Dot) else ():
            buffer = draft.buffers[load.buffer]
            behind = {load.buffer for other in kernels[: place + 1] for load, _ in other.body.reads()}
            others = {load.buffer for other in kernels if other is not k for load in other.body.stores()}
            plain = buffer.space is Space.ARENA and buffer.type.dtype == float32 and len(load.index) == 2
            if plain and load.buffer not in seen | operands | behind | others:
                found.add(load.buffer)
    return frozenset(found & written)


def _loop_carried_buffers(draft: Draft, kernels: Sequence[Kernel], written: set[int]) -> frozenset[int]:
    """Buffers of which a step reads what the same block wrote in the step before, under the next number."""
    found = set[int]()
    for b in written:
        stores = [load for k in kernels for load in k.body.stores() if load.buffer == b]
        places = [place for place, k in enumerate(kernels) if any(load.buffer == b for load in k.body.stores())]
        reads = [(place, load) for place, k in enumerate(kernels) for load, _ in k.body.reads() if load.buffer == b]
        operands = [k.body.a for k in kernels if isinstance(k.body, Dot)]
        own = [(place, load) for place, load in reads if not any(load is a for a in operands)]
        if len(stores) != 1 or not own or draft.buffers[b].type.dtype != float32 or stores[0].index[-1].offset != 0:
            continue
        loop = draft.loops[kernels[0].loop or 0]
        if all(place <= places[0] and _is_next(stores[0], load, loop.symbol, loop.reverse) for place, load in own):
            found.add(b)
    return frozenset(found)


def _is_next(store: Load, load: Load, symbol: str, reverse: bool) -> bool:
    """Is what a step stores in the place that the next step reads?"""
    for stored, read in zip(store.index, load.index, strict=True):
        moves = [dict(_terms(i.offset)).get((symbol,), 0) for i in (stored, read)]
        if bool(stored.terms) != bool(read.terms) or moves not in ([0, 0], [1, 1]):
            return False
        if stored.offset - read.offset != (0 if not moves[0] else -1 if reverse else 1):
            return False
    return any(_in_loop(i.offset) for i in store.index)


def _terms(extent: Extent) -> tuple[tuple[tuple[str, ...], int], ...]:
    return () if isinstance(extent, int) else extent.terms


def lanes_of(rows: int, columns: int) -> tuple[int, int] | None:
    """How the threads of a warp share a tile, down and across; None where they cannot."""
    for across in (8, 4, 2, 1, 16, 32):
        if columns % across == 0 and rows % (WARP // across) == 0:
            return WARP // across, across
    return None


def _with_tiles(draft: Draft, kernels: Sequence[Kernel], batch: Extent, units: int, written: set[int]) -> Looping | str:
    """The loop with the tile whose blocks have least to do and are all there at once."""
    capacity, limits = evaluate(batch, draft.sizes), TARGETS[draft.target].limits
    meets, inside = _meetings(kernels, written), _inside(draft, kernels, written)
    carried, dots = _loop_carried_buffers(draft, kernels, written), [k for k in kernels if isinstance(k.body, Dot)]
    found: list[tuple[int, Looping]] = []
    for rows in ROWS:
        for width in UNITS:
            wide = [columns_of(k) // units * width for k in dots]
            lanes = [lanes_of(rows, n) for n in wide]
            down = -(-capacity // rows)
            if units % width or None in lanes or down * (units // width) > limits.threads:
                continue
            sums = [rows * n // WARP * chunks_of(k) for k, n in zip(dots, wide, strict=True)]
            work = sum(rows * n * depth_of(k) for k, n in zip(dots, wide, strict=True))
            held = sum(n * padded_row_stride(depth_of(k)) for k, n in zip(dots, wide, strict=True))
            held += rows * max(padded_row_stride(depth_of(k)) for k in dots)
            halves = max(rows * (padded_row_stride(depth_of(k)) - APART) * 2 * is_half(draft, k) for k in dots)
            held += max(8 * chunks_of(k) * rows * n for k, n in zip(dots, wide, strict=True)) + halves // 4
            held += sum(rows * width * tile_of(kernels, b, units) for b in (*inside, *carried))
            if max(sums) > MOST_SUMS or work > MOST_WORK or 4 * held > limits.nearest_cache:
                continue
            made = Looping(tuple(kernels), batch, units, rows, width, down, meets, inside, carried, halves, 4 * held)
            found.append((work + BROUGHT * rows * sum(map(depth_of, dots)), made))
    if not found:
        return "its products are too large for blocks that are all there at once"
    return min(found, key=lambda each: each[0])[1]


def tile_of(kernels: Sequence[Kernel], buffer: int, units: int) -> int:
    """How many times a block's units it has of a buffer in shared memory: as often as its kernel makes them."""
    return next(columns_of(k) // units for k in kernels for load in k.body.stores() if load.buffer == buffer)


def loops_of(plan: Plan) -> Iterator[tuple[Kernel, ...]]:
    """The kernels of each loop of a plan."""
    for loop in range(len(plan.loops)):
        yield tuple(k for k in plan.kernels if k.loop == loop)


def notes_of(plan: Plan, multiprocessors: int | None = None) -> tuple[str, ...]:
    """How each loop over steps runs, and why; perhaps on a GPU of fewer multiprocessors than the plan was made for."""
    notes = []
    for number, kernels in enumerate(loops_of(plan)):
        found, length = find_loop(plan, kernels), plan.loops[number].length
        if not isinstance(found, str) and multiprocessors is not None and found.blocks > multiprocessors:
            found = (
                f"it would have {found.blocks} blocks, which must all be there at once, and this GPU has "
                f"{multiprocessors} multiprocessors"
            )
        steps = f"loop {number}, {length} steps of {len(kernels)} kernels"
        if isinstance(found, str):
            notes.append(f"{steps}, has a launch for each of them: {found}")
        else:
            notes.append(
                f"{steps}, is one kernel of {found.blocks} blocks, which own {found.rows} rows and {found.width} units "
                f"each and meet {len(found.meets)} times a step: {found.weight_bytes:,} bytes of weights stay there"
            )
    return tuple(notes)
