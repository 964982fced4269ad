"""Persistent training step for small MLPs: eligibility, and what stays resident across steps.

The first layer's weights stay in shared memory and their optimizer state in registers, while one cooperative kernel
runs many steps; co-resident blocks meet at grid barriers where launches would end.  It requires that the first kernel
multiplies an input by these weights, that the last launch updates them, and that the kernels between depend on each
other row by row only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from wholestep.compiler.backends.gpu.fusion.horizontal import FORMS, may_share, reads_and_writes
from wholestep.compiler.backends.gpu.fusion.launches import by_launch, parts_of
from wholestep.compiler.backends.gpu.fusion.row_fusion import row_axis, row_extent, stays_in_row
from wholestep.compiler.backends.gpu.kernel_schedule import THREADS, Form, schedule_of
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.backends.gpu.strides import is_affine, start_of, stride_of
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import evaluate, float32
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import Kernel, Load, Plan, Space

# Features and columns per block, and padded row stride in shared memory, as in native/persistent_step.h.
DEEP, WIDE, APART = 128, 8, 132
MOST_ROWS = 128  # rows of a batch, added in groups of sixteen: the largest tile of native/persistent_step.h
MOST_DATA = 1 << 31  # rows of the data set: row numbers have 32 bits in native/gather.h
MOST_OF_KERNEL = 48 << 10  # bytes of shared memory that any other kernel may use without opt-in
RECORDS = 4  # step records in shared memory (a ring buffer)


@dataclass(frozen=True)
class PersistentStep:
    """The resident weights, and the kernels of a step around them."""

    forward: Kernel  # input times weights
    gradient: Kernel  # weight gradient fused with the update
    # Launches between the two products; the first launch is a row chain whose blocks read only their own row of the
    # product.
    between: tuple[tuple[Kernel, ...], ...]
    other_updates: tuple[Kernel, ...]  # other kernels of the last launch
    input: int  # buffer of the input rows
    weights: int  # buffer of the resident weights
    states: tuple[int, ...]  # state buffers updated elementwise, the weights among them
    features: int
    columns: int
    rows: int  # batch capacity, rounded up to 32, 64 or 128
    blocks: int
    record_bytes: int  # bytes of shared memory for step records

    @property
    def chunks(self) -> int:
        return -(-self.features // DEEP)

    @property
    def tiles(self) -> int:
        """Number of blocks with resident weights."""
        return self.chunks * -(-self.columns // WIDE)

    @property
    def partial_bytes(self) -> int:
        """Bytes of the partial sums of all chunks, in global memory."""
        return 4 * self.chunks * self.rows * self.columns

    @property
    def own_bytes(self) -> int:
        """Shared memory for two batches of input rows (double buffering) and the weights."""
        return 4 * (2 * self.rows * APART + WIDE * APART)

    @property
    def most_bytes(self) -> int:
        """Upper bound of a block's shared memory, including any other kernel's and the step records."""
        return self.own_bytes + max(self.work_bytes, MOST_OF_KERNEL) + self.record_bytes

    @property
    def work_bytes(self) -> int:
        """Shared memory for the partial sums of the weight gradient."""
        return 4 * (self.rows // 16 * DEEP * WIDE + self.rows * WIDE)


def others_blocks(kernels: Sequence[Kernel]) -> int:
    return sum(schedule_of(part[0]).blocks * schedule_of(part[0]).chunks for part in parts_of(kernels))


def find_persistent_step(plan: Plan) -> PersistentStep | str:
    """The persistent step of a plan, or the reason why there is none."""
    launches = list(by_launch(plan.kernels))
    if len(launches) < 3 or len(launches[0]) > 1:
        return "the first launch of a step is not a single matrix product"
    if not all(k.loop is None and may_share(plan, k) and schedule_of(k).form in FORMS for k in plan.kernels):
        return "some of its kernels are too large"
    if any(schedule_of(k).threads != THREADS for k in plan.kernels):
        return f"some of its blocks do not have {THREADS} threads"
    forward = launches[0][0]
    reason = _why_not_forward(plan, forward)
    if reason:
        return reason
    # The first and the last launch are the pair that stays resident: the product x·W of the next step reads the weights
    # that the update of this step has just written, so the blocks keep W in shared memory from step to step.
    dot = forward.body
    assert isinstance(dot, Dot)
    gradient = next((k for k in launches[-1] if dot.b.buffer in reads_and_writes(k)[1]), None)
    if gradient is None or not _is_update(plan, forward, gradient):
        return "the weights are not updated by the kernel of their gradient"
    states = _elementwise_states(plan, forward, gradient)
    # No other kernel may see the resident values: they are in memory only at the end of a run of steps.
    others = [k for k in plan.kernels if k not in (forward, gradient)]
    used = set[int]().union(*(reads | writes for reads, writes in map(reads_and_writes, others)))
    if (
        dot.b.buffer not in states
        or len(states) > costs_of(plan).persistent.state_values
        or used & {*states, dot.a.buffer}
    ):
        return "other kernels use the first weights, their states or the input rows"
    # The next launch is one chain of row kernels: each of its blocks reads only its own row of the first product.
    chain = parts_of(launches[1])
    if len(chain) > 1 or not _needs_own_rows(forward, chain[0]):
        return "the kernels after the first product depend on other rows of it than their own"
    features, columns = forward.axes[dot.k], forward.axes[dot.n]
    assert isinstance(features, int), "`_why_not_forward` has checked it"
    assert isinstance(columns, int), "`_why_not_forward` has checked it"
    rows = next(n for n in (32, 64, 128) if n >= evaluate(forward.axes[dot.m], plan.sizes))
    other_updates = tuple(k for k in launches[-1] if k is not gradient)
    # All blocks meet at barriers, so they must be resident at the same time: one per multiprocessor.
    tiles = -(-features // DEEP) * -(-columns // WIDE)
    blocks_wanted = max(tiles + others_blocks(other_updates) + 1, *(others_blocks(part) for part in launches[1:-1]))
    target = target_of(plan)
    multiprocessors = target.multiprocessors
    if tiles + 2 > multiprocessors:
        return f"the weights would take {tiles} of {multiprocessors} multiprocessors"
    between = tuple(launches[1:-1])
    result = PersistentStep(
        forward,
        gradient,
        between,
        other_updates,
        dot.a.buffer,
        dot.b.buffer,
        states,
        features,
        columns,
        rows,
        min(blocks_wanted, multiprocessors),
        target.cost_model.persistent.step_record_bytes,
    )
    if result.most_bytes > target.shared_memory:
        return f"a block would need {result.most_bytes:,} bytes of shared memory"
    return result


def _why_not_forward(plan: Plan, kernel: Kernel) -> str:
    """Why a kernel is not a product of input rows with weights that can stay resident; "" if it is."""
    dot, schedule = kernel.body, schedule_of(kernel)
    if not isinstance(dot, Dot) or dot.batch or schedule.form != Form.PRODUCT or len(dot.levels) != 1:
        return "the first launch of a step is not a single matrix product"
    features, columns, rows = kernel.axes[dot.k], kernel.axes[dot.n], kernel.axes[dot.m]
    if dot.a.buffer not in {id for _, id in plan.inputs} or plan.buffers[dot.b.buffer].space is not Space.STATE:
        return "its first product does not multiply an input by weights"
    if not isinstance(features, int) or not isinstance(columns, int) or features % 4:
        return "the number of input features is not a multiple of four"
    if isinstance(rows, int) or evaluate(rows, plan.sizes) > MOST_ROWS:
        return f"its batch has more than {MOST_ROWS} rows"
    if any(plan.buffers[x.buffer].type.dtype != float32 for x in (dot.a, dot.b)):
        return "its weights are not float32"
    if schedule.chunk != DEEP and (schedule.chunk or features > DEEP):
        return f"the sums of its first product are not split into chunks of {DEEP}"
    if strides(dot.a, dot.m, dot.k) != (features, 1) or strides(dot.b, dot.k, dot.n) not in (
        (columns, 1),
        (1, features),
    ):
        return "its first product does not read contiguous rows"
    others = [plan.buffers[id].type for _, id in plan.inputs if id != dot.a.buffer]
    most = costs_of(plan).persistent.other_input_bytes
    if any(t.dtype.size * prod(e if isinstance(e, int) else most for e in t.shape[1:]) > most for t in others):
        return f"other inputs have rows of more than {most} bytes"
    axis, extent = row_axis(kernel), kernel.axes[dot.m]
    assert axis is not None, "a product has a row axis"
    if not all(stays_in_row(load, axis, extent) for load in dot.stores()):
        return "its first product does not write row by row"
    return ""


def strides(load: Load, *axes: int) -> tuple[object, ...] | None:
    """Element strides along the axes, if the access depends on these axes only and starts at 0; else None."""
    used_axes = {a for i in load.index for a, _ in i.terms}
    if start_of(load) != 0 or used_axes - {*axes} or not is_affine(load):
        return None
    return tuple(stride_of(load, a) for a in axes)


def _is_update(plan: Plan, forward: Kernel, gradient: Kernel) -> bool:
    """Is a kernel the gradient of the weights with an elementwise epilogue?"""
    first, dot = forward.body, gradient.body
    assert isinstance(first, Dot)
    if not isinstance(dot, Dot) or dot.batch or schedule_of(gradient).form != Form.PRODUCT or len(dot.levels) != 1:
        return False
    level = dot.levels[0]
    if level.row or level.row_stores or level.reduces or gradient.axes[dot.k] != forward.axes[first.m]:
        return False
    feature, rows, output_gradient = feature_axis(forward, gradient)
    if rows.buffer != first.a.buffer or output_gradient.buffer == rows.buffer:
        return False
    if any(plan.buffers[x.buffer].type.dtype != float32 for x in (rows, output_gradient)):
        return False
    return strides(rows, feature, dot.k) == (1, forward.axes[first.k])


def feature_axis(forward: Kernel, gradient: Kernel) -> tuple[int, Load, Load]:
    """The feature axis of the weight gradient, its access to the input rows, and its access to the output gradient."""
    first, dot = forward.body, gradient.body
    assert isinstance(first, Dot)
    assert isinstance(dot, Dot)
    return (dot.m, dot.a, dot.b) if dot.a.buffer == first.a.buffer else (dot.n, dot.b, dot.a)


def _elementwise_states(plan: Plan, forward: Kernel, gradient: Kernel) -> tuple[int, ...]:
    """States that the update reads and writes only at the element it computes."""
    dot, first = gradient.body, forward.body
    assert isinstance(dot, Dot)
    assert isinstance(first, Dot)
    feature, *_ = feature_axis(forward, gradient)
    column = dot.n if feature == dot.m else dot.m
    weight_strides = strides(first.b, first.k, first.n)
    accesses: dict[int, list[Load]] = {}
    for load in (*dot.stores(), *(load for load, guards in dot.reads())):
        accesses.setdefault(load.buffer, []).append(load)
    return tuple(
        b
        for b in dict.fromkeys(load.buffer for load in dot.stores())
        if plan.buffers[b].space is Space.STATE
        and plan.buffers[b].type.dtype == float32
        and all(strides(load, feature, column) == weight_strides for load in accesses[b])
    )


def _needs_own_rows(forward: Kernel, chain: Sequence[Kernel]) -> bool:
    """Does a row chain read only its own row of the product?"""
    if not all(schedule_of(k).chained for k in chain) or row_extent(chain[0]) != row_extent(forward):
        return False
    results = {load.buffer for load in forward.body.stores()}
    for k in chain:
        axis = row_axis(k)
        assert axis is not None, "kernels of a chain have a row axis"
        reads = [load for load, _ in k.body.reads() if load.buffer in results]
        if not all(stays_in_row(load, axis, row_extent(k)) for load in reads):
            return False
    return True


def notes_on(plan: Plan, multiprocessors: int) -> tuple[str, ...]:
    """The plan's notes, corrected for a GPU that may have fewer multiprocessors than the plan's target."""
    planned = (*notes_of(plan), *scan.notes_of(plan))
    actual = (*notes_of(plan, multiprocessors), *scan.notes_of(plan, multiprocessors))
    replacement = dict(zip(planned, actual, strict=True))
    return tuple(replacement.get(note, note) for note in plan.notes)


def notes_of(plan: Plan, multiprocessors: int | None = None) -> tuple[str, ...]:
    """Report note: how epochs over GPU-resident data run and why, for networks of few launches per step."""
    if not plan.updated or plan.regions > costs_of(plan).persistent.explained_launches:
        return ()
    persistent = find_persistent_step(plan)
    if not isinstance(persistent, str) and (reason := scan.why_not_resident(persistent.blocks, multiprocessors)):
        persistent = f"a persistent kernel {reason}"
    if isinstance(persistent, str):
        return (f"epochs over data on the GPU run as the launches of several steps in one graph: {persistent}",)
    resident_bytes = prod((persistent.features, persistent.columns, len(persistent.states), 4))
    return (
        f"epochs over data on the GPU run as one persistent kernel for several steps: {resident_bytes:,} bytes of "
        f"weights and their optimizer states stay on {persistent.tiles} multiprocessors",
    )
