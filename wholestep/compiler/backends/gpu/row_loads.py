"""What the threads of a row read once: 16 bytes at a time, into registers; of a long row the next one is on its way.

The schedule and the text of a kernel ask the same questions here.
"""

from __future__ import annotations

from wholestep.compiler.backends.cuda.libraries.gemm_library import is_multiple
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.kernel_schedule import CudaSchedule
from wholestep.compiler.ir.types import DType, Extent, bfloat16, float16, float32, int32, product
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Draft, Instr, Kernel, Load

PACKED = frozenset({float32, int32, bfloat16, float16})  # that a thread reads 16 bytes of at a time
MOST_KEPT = 32  # registers of a thread for a value of its row
MOST_PIECES = 8  # of a row, for which a loop is written out
LONG = 32 << 10  # bytes of a row from which on the next one is on its way
ROOM = 4 << 10  # bytes of shared memory for reductions, and for the driver
# Whose rows are read ahead.  Of float32 there is half as much to compute for a byte, and a second block of a
# multiprocessor hides more: 8192 x 16384 scores take 356 us, 394 with the next row on its way; half ones 254 and 176.
AHEAD = frozenset({bfloat16, float16})


def is_packed(load: Load, axis: int, count: int) -> bool:
    """Do `count` elements along an axis, from a multiple of `count` on, lie side by side at a multiple of `count`?

    Buffers begin at multiples of 64 bytes.
    """
    along: Extent = 0
    for d, index in enumerate(load.index):
        stride = product(load.shape[d + 1 :])
        mine = [c for a, c in index.terms if a == axis]
        if mine and (index.over != 1 or index.value is not None):
            return False
        along = along + sum(mine, start=0 * stride) * stride
        if index.over != 1 or index.value is not None:
            if not is_multiple(stride, count):
                return False
            continue
        others = [c * stride for a, c in index.terms if a != axis]
        if not all(is_multiple(x, count) for x in (*others, index.offset * stride)):
            return False
    return along == 1


def is_read_in_packs(load: Load, dtype: DType, axis: int, count: int) -> bool:
    """Are `count` elements whole pieces of 16 bytes?"""
    return count * dtype.size >= 16 and dtype in PACKED and is_packed(load, axis, count)


def is_plain_load(instr: Instr) -> bool:
    return instr.load is not None and not instr.guards


def pieces_of(kernel: Kernel, nest: Nest, schedule: CudaSchedule) -> int:
    """Packs that a thread has of a row; 0 where a call decides how long that is."""
    length = 1 if nest.vector is None else kernel.axes[nest.vector]
    return -(-length // (schedule.width * schedule.vector)) if isinstance(length, int) else 0


def sources_of(nest: Nest) -> dict[int, int]:
    """A load of what an earlier level stores -> the value."""
    found: dict[int, int] = {}
    for n, level in enumerate(nest.levels):
        before = {s.load: s.value for earlier in nest.levels[:n] for s in earlier.stores}
        found |= {i.id: before[i.load] for i in level.body if i.load in before and i.load is not None}
    return found


def is_held(plan: Draft, kernel: Kernel, nest: Nest, schedule: CudaSchedule, instr: Instr) -> bool:
    """Does a thread read its part of a row once, and keep that in registers?"""
    load, axis, pieces = instr.load, nest.vector, pieces_of(kernel, nest, schedule)
    if load is None or axis is None or not is_plain_load(instr) or not 0 < pieces <= MOST_PIECES:
        return False
    dtype = plan.buffers[load.buffer].type.dtype
    of_row = any(i.value is not None or any(a != axis for a, _ in i.terms) for i in load.index)
    words = pieces * schedule.vector * dtype.size // 4
    return of_row and words <= MOST_KEPT and is_read_in_packs(load, dtype, axis, schedule.vector)


def register_loads(plan: Draft, kernel: Kernel, nest: Nest, schedule: CudaSchedule) -> dict[Load, Instr]:
    """What a row holds whose place follows from its number, and who reads it first."""
    sources, found = sources_of(nest), dict[Load, Instr]()
    for i in (i for level in nest.levels for i in level.body):
        if i.load is None or i.id in sources or any(index.value is not None for index in i.load.index):
            continue
        if is_held(plan, kernel, nest, schedule, i):
            found.setdefault(i.load, i)
    return found


def row_bytes(plan: Draft, kernel: Kernel, nest: Nest, load: Load) -> int:
    """Of what is held of a row."""
    length = 1 if nest.vector is None else kernel.axes[nest.vector]
    assert isinstance(length, int), "it is held"
    return length * plan.buffers[load.buffer].type.dtype.size


def bytes_ahead(plan: Draft, kernel: Kernel, nest: Nest, schedule: CudaSchedule) -> int:
    """Shared memory for the next row of a block's; 0 where it is not read ahead.

    Whoever stores into a buffer that is read, or over it (`plan/memory/inplace.py`), does so where the row itself was read.
    """
    loads = register_loads(plan, kernel, nest, schedule)
    if any(plan.buffers[x.buffer].type.dtype not in AHEAD for x in loads):
        return 0
    if kernel.loop is not None or any(s.buffer == x.buffer and s != x for s in nest.stores() for x in loads):
        return 0
    bytes = sum(row_bytes(plan, kernel, nest, load) for load in loads)
    return bytes if LONG <= bytes <= TARGETS[plan.target].limits.nearest_cache - ROOM else 0
