"""One kernel for many steps: which plans have one, and what stays on the multiprocessors meanwhile.

Rows of an input are multiplied by weights first, and those weights are updated last; what lies between is rows that
need only each other.  Blocks that are all there at once keep the weights, and meet where launches would end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.cuda.libraries.gemm_library import start_of, stride_of
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.fusion.horizontal import FORMS, by_launch, may_share, parts_of, reads_and_writes
from wholestep.compiler.backends.gpu.fusion.row_fusion import row_axis, row_extent, stays_in_row
from wholestep.compiler.backends.gpu.kernel_schedule import PRODUCT, schedule_of
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Load, Plan, Space

DEEP, WIDE, APART = 128, 8, 132  # features and columns of a block, and from one row of features to the next: staying.h
THREADS = 256
MOST_ROWS = 128  # of a batch, sixteen of which are added up at a time
MOST_DATA = 1 << 31  # rows of all data: their numbers have 32 bits
MOST_KEPT = 4  # states of a weight
MOST_OTHERS = 64  # bytes of a row of the other inputs, which a thread brings
MOST_OF_KERNEL, MOST_TOLD = 48 << 10, 8 << 10  # bytes of shared memory
RECORDS = 4  # of steps, in shared memory
FEW_LAUNCHES = 8  # of a step that the report says this of


@dataclass(frozen=True)
class Staying:
    """What stays, and who works on it."""

    forward: Kernel  # an input times the weights
    gradient: Kernel  # the weights' gradient, and their update
    between: tuple[tuple[Kernel, ...], ...]  # launches: the first is rows that need the same row of the product alone
    beside: tuple[Kernel, ...]  # of the last launch
    input: int  # the buffers of the rows
    weights: int  # and of what they are multiplied by
    kept: tuple[int, ...]  # the states of an element, the weights among them
    features: int
    columns: int
    rows: int  # of a batch at capacity, rounded up
    blocks: int

    @property
    def chunks(self) -> int:
        return -(-self.features // DEEP)

    @property
    def tiles(self) -> int:
        """Blocks that weights stay in."""
        return self.chunks * -(-self.columns // WIDE)

    @property
    def partial_bytes(self) -> int:
        """What chunks of the sums take."""
        return 4 * self.chunks * self.rows * self.columns

    @property
    def own_bytes(self) -> int:
        """Shared memory for rows and weights."""
        return 4 * (2 * self.rows * APART + WIDE * APART)

    @property
    def most_bytes(self) -> int:
        """Shared memory of a block, at most: with that of any other kernel, and with what steps are told."""
        return self.own_bytes + max(self.work_bytes, MOST_OF_KERNEL) + MOST_TOLD

    @property
    def work_bytes(self) -> int:
        """For what the gradient needs at a time."""
        return 4 * (self.rows // 16 * DEEP * WIDE + self.rows * WIDE)


def others_blocks(kernels: Sequence[Kernel]) -> int:
    return sum(schedule_of(part[0]).blocks * schedule_of(part[0]).chunks for part in parts_of(kernels))


def find_staying(plan: Plan) -> Staying | str:
    """What stays on the multiprocessors while steps run, or why nothing does."""
    launches = list(by_launch(plan.kernels))
    if len(launches) < 3 or len(launches[0]) > 1:
        return "the first launch of a step is not one product"
    if not all(k.loop is None and may_share(plan, k) and schedule_of(k).form in FORMS for k in plan.kernels):
        return "it has kernels that are not small"
    if any(schedule_of(k).threads != THREADS for k in plan.kernels):
        return "blocks have other numbers of threads"
    forward = launches[0][0]
    why = _why_not_forward(plan, forward)
    if why:
        return why
    dot = forward.body
    assert isinstance(dot, Dot)
    gradient = next((k for k in launches[-1] if dot.b.buffer in reads_and_writes(k)[1]), None)
    if gradient is None or not _is_update(plan, forward, gradient):
        return "the weights are not updated by the kernel of their gradient"
    kept = _elementwise_states(plan, forward, gradient)
    others = [k for k in plan.kernels if k not in (forward, gradient)]
    used = set[int]().union(*(reads | writes for reads, writes in map(reads_and_writes, others)))
    if dot.b.buffer not in kept or len(kept) > MOST_KEPT or used & {*kept, dot.a.buffer}:
        return "others use the weights, their states or the rows that they are multiplied by"
    chain = parts_of(launches[1])
    if len(chain) > 1 or not _needs_own_rows(forward, chain[0]):
        return "what follows the first product needs more of it than its own rows"
    features, columns = forward.axes[dot.k], forward.axes[dot.n]
    assert isinstance(features, int), "it was looked at"
    assert isinstance(columns, int), "it was looked at"
    rows = next(n for n in (32, 64, 128) if n >= evaluate(forward.axes[dot.m], plan.sizes))
    beside = tuple(k for k in launches[-1] if k is not gradient)
    tiles = -(-features // DEEP) * -(-columns // WIDE)
    wanted = max(tiles + others_blocks(beside) + 1, *(others_blocks(part) for part in launches[1:-1]))
    limits = TARGETS[plan.target].limits
    most = limits.threads  # multiprocessors
    if tiles + 2 > most:
        return f"the weights would take {tiles} of {most} multiprocessors"
    middle = tuple(launches[1:-1])
    found = Staying(
        forward, gradient, middle, beside, dot.a.buffer, dot.b.buffer, kept, features, columns, rows, min(wanted, most)
    )
    if found.most_bytes > limits.nearest_cache:
        return f"a block would need {found.most_bytes:,} bytes of shared memory"
    return found


def _why_not_forward(plan: Plan, kernel: Kernel) -> str:
    """Why a kernel is not a product of rows of an input with weights that can stay; "" where it is."""
    dot, own = kernel.body, schedule_of(kernel)
    if not isinstance(dot, Dot) or dot.batch or own.form != PRODUCT or len(dot.levels) != 1:
        return "the first launch of a step is not one product"
    features, columns, rows = kernel.axes[dot.k], kernel.axes[dot.n], kernel.axes[dot.m]
    if dot.a.buffer not in {id for _, id in plan.inputs} or plan.buffers[dot.b.buffer].space is not Space.STATE:
        return "its first product is not one of an input and weights"
    if not isinstance(features, int) or not isinstance(columns, int) or features % 4:
        return "the rows that its weights are multiplied by are not whole fours"
    if isinstance(rows, int) or evaluate(rows, plan.sizes) > MOST_ROWS:
        return f"its batch has more than {MOST_ROWS} rows"
    if any(plan.buffers[x.buffer].type.dtype != float32 for x in (dot.a, dot.b)):
        return "its weights are not float32"
    if own.chunk != DEEP and (own.chunk or features > DEEP):
        return f"sums of its first product are not cut into chunks of {DEEP}"
    if strides(dot.a, dot.m, dot.k) != (features, 1) or strides(dot.b, dot.k, dot.n) not in (
        (columns, 1),
        (1, features),
    ):
        return "its first product does not read whole rows"
    others = [plan.buffers[id].type for _, id in plan.inputs if id != dot.a.buffer]
    if any(
        t.dtype.size * prod(e if isinstance(e, int) else MOST_OTHERS for e in t.shape[1:]) > MOST_OTHERS for t in others
    ):
        return f"other inputs have rows of more than {MOST_OTHERS} bytes"
    axis, extent = row_axis(kernel), kernel.axes[dot.m]
    assert axis is not None, "it is a product"
    if not all(stays_in_row(load, axis, extent) for load in dot.stores()):
        return "its first product does not write whole rows"
    return ""


def strides(load: Load, *axes: int) -> tuple[object, ...] | None:
    """From one element to the next along each axis, where a place depends on nothing else and begins at the start."""
    found = {a for i in load.index for a, _ in i.terms}
    if start_of(load) != 0 or found - {*axes} or any(i.value is not None or i.over != 1 for i in load.index):
        return None
    return tuple(stride_of(load, a) for a in axes)


def _is_update(plan: Plan, forward: Kernel, gradient: Kernel) -> bool:
    """Is a kernel the gradient of the weights, and what is done with it element by element?"""
    first, dot = forward.body, gradient.body
    assert isinstance(first, Dot)
    if not isinstance(dot, Dot) or dot.batch or schedule_of(gradient).form != PRODUCT or len(dot.levels) != 1:
        return False
    level = dot.levels[0]
    if level.row or level.row_stores or level.reduces or gradient.axes[dot.k] != forward.axes[first.m]:
        return False
    feature, rows, slopes = feature_axis(forward, gradient)
    if rows.buffer != first.a.buffer or slopes.buffer == rows.buffer:
        return False
    if any(plan.buffers[x.buffer].type.dtype != float32 for x in (rows, slopes)):
        return False
    return strides(rows, feature, dot.k) == (1, forward.axes[first.k])


def feature_axis(forward: Kernel, gradient: Kernel) -> tuple[int, Load, Load]:
    """Of the weights' gradient: the axis of features, the rows of the input, and what they are multiplied by."""
    first, dot = forward.body, gradient.body
    assert isinstance(first, Dot)
    assert isinstance(dot, Dot)
    return (dot.m, dot.a, dot.b) if dot.a.buffer == first.a.buffer else (dot.n, dot.b, dot.a)


def _elementwise_states(plan: Plan, forward: Kernel, gradient: Kernel) -> tuple[int, ...]:
    """States that an update reads and writes at the place of its element alone."""
    dot, first = gradient.body, forward.body
    assert isinstance(dot, Dot)
    assert isinstance(first, Dot)
    feature, *_ = feature_axis(forward, gradient)
    column = dot.n if feature == dot.m else dot.m
    wanted = strides(first.b, first.k, first.n)
    places: dict[int, list[Load]] = {}
    for load in (*dot.stores(), *(load for load, guards in dot.reads())):
        places.setdefault(load.buffer, []).append(load)
    return tuple(
        b
        for b in dict.fromkeys(load.buffer for load in dot.stores())
        if plan.buffers[b].space is Space.STATE
        and plan.buffers[b].type.dtype == float32
        and all(strides(load, feature, column) == wanted for load in places[b])
    )


def _needs_own_rows(forward: Kernel, chain: Sequence[Kernel]) -> bool:
    """Does a chain of rows read of the product the same row alone?"""
    if not all(schedule_of(k).chained for k in chain) or row_extent(chain[0]) != row_extent(forward):
        return False
    made = {load.buffer for load in forward.body.stores()}
    for k in chain:
        axis = row_axis(k)
        assert axis is not None, "it is one of a chain"
        read = [load for load, _ in k.body.reads() if load.buffer in made]
        if not all(stays_in_row(load, axis, row_extent(k)) for load in read):
            return False
    return True


def has_room(found: Staying, multiprocessors: int) -> bool:
    """Are all blocks there at once on a GPU of so many multiprocessors?"""
    return found.blocks <= multiprocessors


def notes_on(plan: Plan, multiprocessors: int) -> tuple[str, ...]:
    """The notes of a plan on a GPU that has so many multiprocessors, perhaps fewer than the plan was made for."""
    own = (*notes_of(plan), *scan.notes_of(plan))
    here = (*notes_of(plan, multiprocessors), *scan.notes_of(plan, multiprocessors))
    true_here = dict(zip(own, here, strict=True))
    return tuple(true_here.get(note, note) for note in plan.notes)


def notes_of(plan: Plan, multiprocessors: int | None = None) -> tuple[str, ...]:
    """How epochs over data on a GPU run, and why; of networks whose step is a few launches."""
    if not plan.updated or plan.regions > FEW_LAUNCHES:
        return ()
    found = find_staying(plan)
    if not isinstance(found, str) and multiprocessors is not None and not has_room(found, multiprocessors):
        found = (
            f"a kernel for several steps has {found.blocks} blocks, which must all be there at once, and this GPU has "
            f"{multiprocessors} multiprocessors"
        )
    if isinstance(found, str):
        return (f"epochs over data on the GPU are the launches of several steps in one graph: {found}",)
    states = prod((found.features, found.columns, len(found.kept), 4))
    return (
        f"epochs over data on the GPU are one kernel for several steps: {states:,} bytes of weights and their states "
        f"stay on {found.tiles} multiprocessors",
    )
