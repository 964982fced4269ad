"""Vectorised row loads: 16-byte loads into registers; long half-precision rows are prefetched into shared memory.

The scheduler and the renderer use the same predicates, so that the grid and the source text agree.
"""

from __future__ import annotations

from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule
from wholestep.compiler.backends.gpu.strides import is_multiple, is_packed
from wholestep.compiler.backends.gpu.target import costs_of, target_of
from wholestep.compiler.ir.types import (
    DType,
    Extent,
    bfloat16,
    boolean,
    float16,
    float32,
    int32,
    product,
    uint8,
)
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Draft, Guard, Index, Instr, Kernel, Load

PACKED = frozenset({float32, int32, bfloat16, float16})  # types with 16-byte vector loads
SHORT_PACKED = frozenset({bfloat16, float16, uint8, boolean})  # types with 8-byte vector loads


def has_vector_loads(load: Load, dtype: DType, axis: int, count: int) -> bool:
    """Are `count` elements read as 16-byte or 8-byte vectors?  The last vector of a row may contain padding."""
    bytes = count * dtype.size
    has_pack = (bytes % 16 == 0 and dtype in PACKED) or (bytes == 8 and dtype in SHORT_PACKED)
    return has_pack and is_packed(load, axis, count) and is_multiple(_row_of(load, axis), count)


def _row_of(load: Load, axis: int) -> Extent:
    """Elements from one index of the next outer dimension to the next, for the dimension of a contiguous axis."""
    at = max(d for d, index in enumerate(load.index) if any(a == axis for a, _ in index.terms))
    return product(load.shape[at:])


def is_padded_row(plan: Draft, load: Load, axis: int, length: Extent) -> bool:
    """Does an access run over the elements of a row that is followed by padding?"""
    return plan.buffers[load.buffer].columns == length and load.index[-1:] == (Index.axis(axis),)


def accesses_padded_rows(plan: Draft, nest: Nest, length: int, count: int) -> bool:
    """Does a nest access rows that are padded to vectors of `count` elements?"""
    axis, accesses = nest.vector, (*(load for load, _ in nest.reads()), *nest.stores())
    return axis is not None and any(
        is_padded_row(plan, x, axis, length) and has_vector_loads(x, plan.buffers[x.buffer].type.dtype, axis, count)
        for x in accesses
    )


def is_plain_load(instr: Instr) -> bool:
    return instr.load is not None and not instr.guards


def has_uniform_guards(instr: Instr, axis: int, count: int) -> bool:
    """Do the guards of a load hold for all of `count` elements along an axis, or for none of them?"""
    return bool(instr.guards) and all(is_uniform(guard, axis, count) for guard in instr.guards)


def is_uniform(guard: Guard, axis: int, count: int) -> bool:
    """Does a guard hold for all of `count` adjacent elements, or for none?"""
    index = guard.index
    along, others = ([c for a, c in index.terms if (a == axis) == is_along] for is_along in (True, False))
    if index.value is not None or not along:
        return index.value is None
    bounds = (index.offset, guard.lo, guard.hi, *others)
    return along == [1] and index.over == 1 and all(is_multiple(bound, count) for bound in bounds)


def vectors_per_thread(kernel: Kernel, nest: Nest, schedule: GpuSchedule) -> int:
    """Vectors per thread and row; 0 if the row length depends on the call."""
    length = 1 if nest.vector is None else kernel.axes[nest.vector]
    return -(-length // (schedule.width * schedule.vector)) if isinstance(length, int) else 0


def is_unrolled(plan: Draft, pieces: int, schedule: GpuSchedule) -> bool:
    """Is the loop over a thread's vectors of a row unrolled?  A thread with a row of its own has few elements."""
    return schedule.width == 1 or pieces <= costs_of(plan).reductions.unrolled_vectors


def sources_of(nest: Nest) -> dict[int, int]:
    """Loads of values that an earlier level of the kernel has stored -> the id of the value."""
    sources: dict[int, int] = {}
    for n, level in enumerate(nest.levels):
        stored = {s.load: s.value for earlier in nest.levels[:n] for s in earlier.stores}
        sources |= {i.id: stored[i.load] for i in level.body if i.load in stored and i.load is not None}
    return sources


def is_register_resident(plan: Draft, kernel: Kernel, nest: Nest, schedule: GpuSchedule, instr: Instr) -> bool:
    """Is a thread's part of a row loaded once and kept in registers?"""
    load, axis, pieces = instr.load, nest.vector, vectors_per_thread(kernel, nest, schedule)
    costs = costs_of(plan).reductions
    if load is None or axis is None or not is_plain_load(instr):
        return False
    if not pieces or not is_unrolled(plan, pieces, schedule):
        return False
    dtype = plan.buffers[load.buffer].type.dtype
    depends_on_row = any(i.value is not None or any(a != axis for a, _ in i.terms) for i in load.index)
    words = pieces * schedule.vector * dtype.size // 4
    fits = words <= costs.register_words and schedule.vector * dtype.size % 16 == 0
    return depends_on_row and fits and has_vector_loads(load, dtype, axis, schedule.vector)


def register_loads(plan: Draft, kernel: Kernel, nest: Nest, schedule: GpuSchedule) -> dict[Load, Instr]:
    """Register-resident loads whose address depends on the row index only -> the instruction that loads first."""
    sources, first_loads = sources_of(nest), dict[Load, Instr]()
    for i in (i for level in nest.levels for i in level.body):
        if i.load is None or i.id in sources or any(index.value is not None for index in i.load.index):
            continue
        if is_register_resident(plan, kernel, nest, schedule, i):
            first_loads.setdefault(i.load, i)
    return first_loads


def row_bytes(plan: Draft, kernel: Kernel, nest: Nest, schedule: GpuSchedule, load: Load) -> int:
    """Bytes of the vectors of one row of a register-resident load."""
    length = 1 if nest.vector is None else kernel.axes[nest.vector]
    assert isinstance(length, int), "register-resident rows have a static length"
    return -(-length // schedule.vector) * schedule.vector * plan.buffers[load.buffer].type.dtype.size


def prefetch_bytes(plan: Draft, kernel: Kernel, nest: Nest, schedule: GpuSchedule) -> int:
    """Shared memory bytes for a block's next row; 0 without prefetch.

    Sound only if a store to a prefetched buffer, or in place over it (`may_alias` of `plan/memory/first_fit.py`), is to
    the current row.
    """
    loads, costs = register_loads(plan, kernel, nest, schedule), costs_of(plan).reductions
    if any(plan.buffers[x.buffer].type.dtype.name not in costs.prefetched_types for x in loads):
        return 0
    if kernel.loop is not None or any(s.buffer == x.buffer and s != x for s in nest.stores() for x in loads):
        return 0
    bytes = sum(row_bytes(plan, kernel, nest, schedule, load) for load in loads)
    return bytes if costs.prefetched_row <= bytes <= target_of(plan).shared_memory - costs.prefetch_reserve else 0
