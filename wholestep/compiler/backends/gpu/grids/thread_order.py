"""The order of threads over the elements of a copy between layouts: a transposition without shared memory.

A thread stores 16 adjacent bytes.  If what it loads is contiguous along another axis (channels of images that become
channels-first, weights for a library), consecutive threads run along that axis: each load of a warp is contiguous, and
a store touches half sectors, which the second-level cache joins.  In the order of the stores, each load of a warp would
touch 32 sectors.  No bit depends on the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from wholestep.compiler.backends.gpu.efficiency.coalescing import touched_memory, warps_of
from wholestep.compiler.backends.gpu.grids.row_loads import has_vector_loads, is_plain_load
from wholestep.compiler.backends.gpu.kernel_schedule import sizes_in
from wholestep.compiler.backends.gpu.strides import is_affine, stride_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Draft, Kernel, Load, Space

LEAST_ELEMENTS = 1 << 20  # smaller copies take no longer than their launch
GAIN = 2  # the other order must touch at most 1/GAIN of the memory sectors that the order of the stores touches


def thread_order(plan: Draft, kernel: Kernel, nest: Nest, each: int) -> tuple[int, ...]:
    """The axes along which threads run, the fastest one last; (): rows, then vectors of `each` elements."""
    vector, sizes = nest.vector, sizes_in(plan, kernel)
    if vector is None or each == 1 or prod(evaluate(e, sizes) for e in kernel.axes) < LEAST_ELEMENTS:
        return ()
    accesses = tuple(_accesses(plan, nest))
    strided = [x for x in accesses if is_affine(x) and stride_of(x, vector) not in (0, 1)]
    if not strided:
        return ()

    def stride(axis: int) -> int:
        return evaluate(stride_of(strided[0], axis), sizes) * (each if axis == vector else 1)

    stored_order = (*nest.rows, vector)
    order = tuple(sorted(stored_order, key=stride, reverse=True))
    gains = GAIN * _sectors(plan, kernel, accesses, order, vector, each) <= _sectors(
        plan, kernel, accesses, stored_order, vector, each
    )
    return order if gains else ()


def _accesses(plan: Draft, nest: Nest) -> Iterator[Load]:
    """The unconditional loads, and the stores."""
    for level in nest.levels:
        yield from (i.load for i in level.body if i.load is not None and is_plain_load(i))
        yield from (s.load for s in level.stores if plan.buffers[s.load.buffer].space is not Space.WORK)


def _sectors(
    plan: Draft, kernel: Kernel, accesses: Sequence[Load], order: Sequence[int], vector: int, each: int
) -> int:
    """The number of memory sectors that a sample of warps touches."""
    sizes = sizes_in(plan, kernel)
    extents = {axis: max(1, evaluate(extent, sizes)) for axis, extent in enumerate(kernel.axes)}
    count = 0
    for points in warps_of(order, extents, vector, each):
        for x in accesses:
            dtype = plan.buffers[x.buffer].type.dtype
            packed = has_vector_loads(x, dtype, vector, each)
            count += touched_memory(x, points, sizes, dtype.size, vector, each, packed).sectors
    return count
