"""Does a plan stay inside its buffers at every size up to its capacity, not at the capacity alone?

Sizes are polynomials in symbols.  A bound is proven for all of their values, or the plan is refused: what a file says
is nobody's word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product as combinations

from wholestep.compiler.ir.type_rules.collectives import MODEL_RANK, RANK
from wholestep.compiler.ir.types import Dim, Extent, product
from wholestep.compiler.plan.model.kernel import Buffer, Guard, Index, Kernel, Layout, Load, Plan

# symbol -> its least and largest value; the number of a loop's step comes first, its largest value may hold the others
Ranges = Mapping[str, tuple[Extent, Extent]]


def ranges_of(plan: Plan, kernel: Kernel) -> Ranges:
    """What the symbols of a kernel may be."""
    least = {RANK: 0, MODEL_RANK: 0}  # the others count something
    sizes: dict[str, tuple[Extent, Extent]] = {
        s: (least.get(s, 1), c) for s, c in zip(plan.symbols, plan.capacity, strict=True)
    }
    if kernel.loop is None:
        return sizes
    loop = plan.loops[kernel.loop]
    return {loop.symbol: (0, loop.length - 1), **sizes}


def is_nonnegative(extent: Extent, ranges: Ranges) -> bool:
    """Is it 0 or more, whatever the symbols are?  A polynomial that is of first degree in each is least at a corner."""
    if not isinstance(extent, Dim):
        return extent >= 0
    free = next((s for s in ranges if s in extent.symbols), None)
    if free is None:
        return False
    if any(names.count(free) > 1 for names, _ in extent.terms):
        grows = all(c >= 0 for names, c in extent.terms if names)
        least = {s: low for s, (low, _) in ranges.items()}
        return grows and all(isinstance(v, int) for v in least.values()) and extent.evaluate(least) >= 0  # type: ignore[arg-type]
    return all(is_nonnegative(_with(extent, free, end), ranges) for end in ranges[free])


def _with(extent: Dim, symbol: str, value: Extent) -> Extent:
    """The extent where a symbol has a value."""
    out: Extent = 0
    for names, coefficient in extent.terms:
        term: Extent = coefficient
        for name in names:
            term = term * (value if name == symbol else Dim.symbol(name))
        out = out + term
    return out


def leaves(load: Load, guards: Sequence[Guard], kernel: Kernel, buffer: Buffer, ranges: Ranges) -> str | None:
    """What is wrong with an access, or None: its shape is the buffer's, and every index is inside of it."""
    if load.shape != buffer.type.shape:
        reshaped = buffer.layout == Layout.ROWS
        if not reshaped or not is_nonnegative(buffer.type.elements - product(load.shape), ranges):
            return f"it has {load.shape} for {buffer.type}"
    for index, extent in zip(load.index, load.shape, strict=True):
        if index.over < 1:
            return f"it divides by {index.over}"
        if index.value is not None:
            alone = index.is_behind_start or (index.offset == 0 and index.over == 1)
            if not alone or not is_nonnegative(extent - 1, ranges):
                return f"a computed index has {extent} places"
        elif not _is_whole_axis(index, extent, kernel) and not _is_inside(index, extent, guards, kernel, ranges):
            return f"{index} may leave 0..{extent - 1}"
    return None


def _is_whole_axis(index: Index, extent: Extent, kernel: Kernel) -> bool:
    axis = index.plain
    return axis is not None and kernel.axes[axis] == extent


def _is_inside(index: Index, extent: Extent, guards: Sequence[Guard], kernel: Kernel, ranges: Ranges) -> bool:
    lows, highs = [], []
    for axis, c in index.terms:
        first: list[Extent] = [*(g.lo for g in guards if g.index.plain == axis), 0]
        last: list[Extent] = [*(g.hi - 1 for g in guards if g.index.plain == axis), kernel.axes[axis] - 1]
        if is_nonnegative(c, ranges):
            lows.append([c * e for e in first])
            highs.append([c * e for e in last])
        elif is_nonnegative(c * -1, ranges):
            lows.append([c * e for e in last])
            highs.append([c * e for e in first])
        else:
            return False
    room = extent * index.over - 1
    return any(is_nonnegative(index.offset + _sum(low), ranges) for low in combinations(*lows)) and any(
        is_nonnegative(room - index.offset - _sum(high), ranges) for high in combinations(*highs)
    )


def _sum(extents: Iterable[Extent]) -> Extent:
    total: Extent = 0
    for extent in extents:
        total = total + extent
    return total
