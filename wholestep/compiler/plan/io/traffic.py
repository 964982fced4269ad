"""Memory traffic and work of kernels and collectives: exact integers at capacity, used by reports and cost models."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from wholestep.compiler.ir.types import DType, evaluate
from wholestep.compiler.plan.model.bodies import Call, Dot, Exchange, Read, Scatter, Window
from wholestep.compiler.plan.model.kernel import Buffer, Guard, Index, Kernel, Load, Plan, Space
from wholestep.compiler.target import CostTable

if TYPE_CHECKING:
    from fractions import Fraction


def reads(kernel: Kernel) -> Iterator[Read]:
    """Every address the kernel reads, and under which conditions."""
    return kernel.body.reads()


def loads(kernel: Kernel) -> Iterator[Load]:
    """Every address the kernel reads."""
    return (load for load, _ in kernel.body.reads())


def stores(kernel: Kernel) -> Iterator[Load]:
    """Every address the kernel writes."""
    return kernel.body.stores()


def flops(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """The floating-point operations of a kernel."""
    return kernel.body.flops([evaluate(e, sizes) for e in kernel.axes])


def bytes_moved(kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> int:
    """Bytes moved by a kernel: each distinct region that it reads or writes counts once; workspace stays in cache."""
    written: set[Read] = {(load, ()) for load in stores(kernel)}
    return sum(
        min(sum(regions), evaluate(buffers[b].type.elements, sizes) * buffers[b].type.dtype.size)
        for accesses in (set(reads(kernel)), written)
        for b, regions in _regions(accesses, kernel, buffers, sizes).items()
        if buffers[b].space is not Space.WORK
    )


# The fraction of a collective's bytes that each of n ranks sends.  An all-reduce is a reduce-scatter and an all-gather;
# a broadcast uses a binomial tree, and is counted as what its root sends.
SENT: Mapping[str, Callable[[int], Fraction]] = {
    "all_reduce": lambda n: _fraction(2 * (n - 1), n),
    "reduce_scatter": lambda n: _fraction(n - 1, n),
    "all_gather": lambda n: _fraction(n - 1, n),
    "broadcast": lambda n: _fraction((n - 1).bit_length(), 1),
}


def _fraction(numerator: int, denominator: int) -> Fraction:
    from fractions import Fraction  # a start from the cache counts no bytes, and `fractions` loads `decimal`

    return Fraction(numerator, denominator)


def collectives_of(plan: Plan, ranks: int = 1) -> Iterator[tuple[str, int, str]]:
    """The collectives of a step, in order: kind, bytes over the parts of all ranks, and mesh axis.

    If the plan's rows are divided among `ranks`, the bytes are those for the rows of one rank.
    """
    sizes = {**plan.sizes, plan.divided: -(-plan.whole // ranks)} if plan.divided and ranks > 1 else plan.sizes
    for kernel in plan.kernels:
        if isinstance(kernel.body, Exchange):
            pairs = zip(kernel.body.operands, kernel.body.results, strict=True)
            counts = [max(evaluate(load.shape[0], sizes) for load in pair) for pair in pairs]
            yield kernel.body.collective, sum(counts) * kernel.body.dtype.size, kernel.body.axis


def price_kernel(kernel: Kernel, buffers: Sequence[Buffer], costs: CostTable) -> tuple[float, float]:
    """Nanoseconds of a kernel at capacity by the target's cost table: for its operations, and for its bytes."""
    dtype = gemm_dtype(kernel, buffers)  # multiply-adds are two operations each
    flop = costs.operation if dtype is None else costs.product_of(dtype) / 2
    return kernel.flops * flop, kernel.bytes * costs.byte


def gemm_dtype(kernel: Kernel, buffers: Sequence[Buffer]) -> DType | None:
    """The wider dtype of the factors of a kernel; None if it does not consist mainly of multiply-adds."""
    body = kernel.body
    if isinstance(body, Call):
        return body.dtype
    if not isinstance(body, Dot | Window):
        return None
    loads = (body.a, body.b) if isinstance(body, Dot) else [o.load for o in body.operands[:2]]
    return max((buffers[load.buffer].type.dtype for load in loads), key=lambda dtype: dtype.size)


def _regions(
    accesses: set[Read], kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]
) -> dict[int, list[int]]:
    """The bytes of each distinct access, by buffer."""
    bytes_by_buffer: dict[int, list[int]] = {}
    for load, guards in accesses:
        elements = elements_touched(load, guards, kernel, sizes)
        bytes_by_buffer.setdefault(load.buffer, []).append(elements * buffers[load.buffer].type.dtype.size)
    return bytes_by_buffer


def elements_touched(load: Load, guards: tuple[Guard, ...], kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """The number of distinct elements that one access can reach."""
    points = [evaluate(e, sizes) for e in kernel.axes]
    for g in guards:  # a guard on a plain axis limits the points at which the access happens
        if (axis := g.index.plain) is not None:
            inside = min(points[axis], evaluate(g.hi, sizes)) - max(0, evaluate(g.lo, sizes))
            points[axis] = max(0, inside)
    body = kernel.body
    indexed = body.at if isinstance(body, Scatter) and load is body.target else None
    touched = 1
    for d, (index, extent) in enumerate(zip(load.index, load.shape, strict=True)):
        count = evaluate(extent, sizes)
        if index.value is not None and not index.is_behind_start:
            count = min(count, gathered_rows(load, points))
        elif d != indexed:
            count = min(count, _count_values(index, points, sizes))
        touched *= count
    return touched


def _count_values(index: Index, points: Sequence[int], sizes: Mapping[str, int]) -> int:
    """The number of values of an index, assuming that it is injective or takes every value in its range."""
    count = prod(points[a] for a, _ in index.terms)
    if index.over == 1:
        return count
    return min(count, 1 + sum(evaluate(c, sizes) * max(0, points[a] - 1) for a, c in index.terms) // index.over)


def gathered_rows(load: Load, points: Sequence[int]) -> int:
    """The number of rows that a gather can select: one per point of the axes that address no other dimension."""
    used = {a for i in load.index for a, _ in i.terms}
    return prod(p for a, p in enumerate(points) if a not in used)
