"""What a kernel touches and how much work it is: exact integers at capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.kernel import POOL_AXES, Buffer, Guard, Index, Instr, Kernel, Kind, Load, Space

Access = tuple[Load, tuple[Guard, ...]]

FREE = frozenset({"load", "const", "scalar", "index", "acc", "position", "cast"})  # not counted as arithmetic


def reads(kernel: Kernel) -> Iterator[Access]:
    """Every place the kernel reads, and under which conditions."""
    for level in kernel.levels:
        for instr in (*level.row, *level.body):
            if instr.load is not None:
                yield instr.load, instr.guards
    if kernel.dot:
        yield from ((kernel.dot.a, ()), (kernel.dot.b, ()))
    if kernel.scatter:
        yield from ((kernel.scatter.updates, ()), (kernel.scatter.index, ()))
    if kernel.call:
        yield from ((o.load, ()) for o in kernel.call.operands)
    if kernel.window:
        yield from ((o.load, ()) for o in kernel.window.operands)


def loads(kernel: Kernel) -> Iterator[Load]:
    """Every place the kernel reads."""
    return (load for load, _ in reads(kernel))


def stores(kernel: Kernel) -> Iterator[Load]:
    """Every place the kernel writes."""
    for level in kernel.levels:
        for store in (*level.row_stores, *level.stores):
            yield store.load
    if kernel.scatter:
        yield kernel.scatter.target
    if kernel.call:
        yield from (o.load for o in kernel.call.results)
    if kernel.window:
        yield from (o.load for o in kernel.window.results)


def level_axes(kernel: Kernel) -> list[tuple[int, ...]]:
    """The axes that the body of each level runs over."""
    inner = () if kernel.vector is None else (kernel.vector,)
    axes = [(*kernel.rows, *inner) for _ in kernel.levels]
    if kernel.reduced is not None:
        axes[0] = (*axes[0], kernel.reduced)
    if kernel.dot is not None:  # the epilogue; the column sums of the right operand, and what follows them
        axes[1:] = [(kernel.dot.n, kernel.dot.k), (kernel.dot.n,)][: len(axes) - 1]
    if kernel.window is not None and kernel.window.pooled is not None:
        axes[0] = (*axes[0], *POOL_AXES)
    return axes


def _arithmetic(instrs: Sequence[Instr]) -> int:
    return sum(i.op not in FREE for i in instrs)


def flops(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """One per arithmetic instruction and element; two per step of a dot product."""
    extents = [evaluate(e, sizes) for e in kernel.axes]
    rows = prod(extents[a] for a in kernel.rows)
    total = 0
    for level, axes in zip(kernel.levels, level_axes(kernel), strict=True):
        elements = prod(extents[a] for a in axes)
        total += rows * _arithmetic(level.row) + elements * (_arithmetic(level.body) + len(level.reduces))
    if kernel.kind is Kind.DOT:
        total += 2 * prod(extents)
    if kernel.kind is Kind.SCATTER:
        total += prod(extents)
    if kernel.call:
        total += kernel.call.flops
    if kernel.window:
        total += kernel.window.flops
    return total


def bytes_moved(kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> int:
    """Each distinct region read plus written once; workspace stays in cache and does not count."""
    written: set[Access] = {(load, ()) for load in stores(kernel)}
    return sum(
        min(sum(regions), evaluate(buffers[b].type.elements, sizes) * buffers[b].type.dtype.size)
        for accesses in (set(reads(kernel)), written)
        for b, regions in _regions(accesses, kernel, buffers, sizes).items()
        if buffers[b].space is not Space.WORK
    )


def _regions(
    accesses: set[Access], kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]
) -> dict[int, list[int]]:
    """The bytes of each distinct access, by buffer."""
    found: dict[int, list[int]] = {}
    for load, guards in accesses:
        touched = elements_touched(load, guards, kernel, sizes)
        found.setdefault(load.buffer, []).append(touched * buffers[load.buffer].type.dtype.size)
    return found


def elements_touched(load: Load, guards: tuple[Guard, ...], kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """The distinct elements that one access can touch."""
    points = [evaluate(e, sizes) for e in kernel.axes]
    for g in guards:
        if (axis := g.index.plain) is not None:
            inside = min(points[axis], evaluate(g.hi, sizes)) - max(0, evaluate(g.lo, sizes))
            points[axis] = max(0, inside)
    indexed = kernel.scatter.at if kernel.scatter and load is kernel.scatter.target else None
    touched = 1
    for d, (index, extent) in enumerate(zip(load.index, load.shape, strict=True)):
        whole = evaluate(extent, sizes)
        if index.value is not None and not index.is_behind_start:
            whole = min(whole, looked_up(load, points))
        elif d != indexed:
            whole = min(whole, _places(index, points, sizes))
        touched *= whole
    return touched


def _places(index: Index, points: Sequence[int], sizes: Mapping[str, int]) -> int:
    """How many values an index takes, if it takes all between its ends or no two are equal."""
    count = prod(points[a] for a, _ in index.terms)
    if index.over == 1:
        return count
    return min(count, 1 + sum(evaluate(c, sizes) * max(0, points[a] - 1) for a, c in index.terms) // index.over)


def looked_up(load: Load, points: Sequence[int]) -> int:
    """How many rows a gather can pick: one for each point of the axes that address nothing else."""
    used = {a for i in load.index for a, _ in i.terms}
    return prod(p for a, p in enumerate(points) if a not in used)
