"""What a kernel touches and how much work it is: exact integers at capacity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.kernel import Buffer, Instr, Kernel, Kind, Load, Space

FREE = frozenset({"load", "const", "scalar", "index", "acc", "cast"})  # not counted as arithmetic


def loads(kernel: Kernel) -> Iterator[Load]:
    """Every place the kernel reads."""
    for level in kernel.levels:
        for instr in (*level.row, *level.body):
            if instr.load is not None:
                yield instr.load
    if kernel.dot:
        yield kernel.dot.a
        yield kernel.dot.b
    if kernel.scatter:
        yield kernel.scatter.updates
        yield kernel.scatter.index


def stores(kernel: Kernel) -> Iterator[Load]:
    """Every place the kernel writes."""
    for level in kernel.levels:
        for store in (*level.row_stores, *level.stores):
            yield store.load
    if kernel.scatter:
        yield kernel.scatter.target


def _arithmetic(instrs: Sequence[Instr]) -> int:
    return sum(i.op not in FREE for i in instrs)


def flops(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """One per arithmetic instruction and element; two per step of a dot product."""
    extents = [evaluate(e, sizes) for e in kernel.axes]
    rows = prod(extents[a] for a in kernel.rows)
    inner = extents[kernel.vector] if kernel.vector is not None else 1
    total = 0
    for number, level in enumerate(kernel.levels):
        elements = rows * inner
        if kernel.reduced is not None and number == 0:
            elements *= extents[kernel.reduced]
        total += rows * _arithmetic(level.row) + elements * (_arithmetic(level.body) + len(level.reduces))
    if kernel.kind is Kind.DOT:
        total += 2 * prod(extents)
    if kernel.kind is Kind.SCATTER:
        total += prod(extents)
    return total


def looked_up(load: Load, kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """How many rows a gather can pick: one for each point of the axes that address nothing else."""
    used = {a for i in load.index for a, _ in i.terms}
    return prod(evaluate(e, sizes) for a, e in enumerate(kernel.axes) if a not in used)


def region_bytes(load: Load, buffer: Buffer, kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """Bytes of the distinct elements that one access can touch."""
    touched = 1
    indexed = kernel.scatter.at if kernel.scatter and load is kernel.scatter.target else None
    for d, (index, extent) in enumerate(zip(load.index, load.shape, strict=True)):
        whole = evaluate(extent, sizes)
        if index.value is not None:
            whole = min(whole, looked_up(load, kernel, sizes))
        elif d != indexed:
            whole = min(whole, prod(evaluate(kernel.axes[a], sizes) for a, _ in index.terms))
        touched *= whole
    return touched * buffer.type.dtype.size


def bytes_moved(kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> int:
    """Each distinct region read plus written once; workspace stays in cache and does not count."""
    return sum(
        min(sum(regions), evaluate(buffers[b].type.elements, sizes) * buffers[b].type.dtype.size)
        for accesses in (set(loads(kernel)), set(stores(kernel)))
        for b, regions in _regions(accesses, kernel, buffers, sizes).items()
        if buffers[b].space is not Space.WORK
    )


def _regions(
    accesses: set[Load], kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]
) -> dict[int, list[int]]:
    """The bytes of each distinct access, by buffer."""
    found: dict[int, list[int]] = {}
    for a in accesses:
        found.setdefault(a.buffer, []).append(region_bytes(a, buffers[a.buffer], kernel, sizes))
    return found
