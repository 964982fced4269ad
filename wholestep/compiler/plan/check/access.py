"""Symbolic bounds checking: proves that every access stays inside its buffer at every size up to the capacity.

Sizes are polynomials in symbols.  A bound is proven for all values of the symbols, or the plan is rejected: a file is
untrusted input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product as combinations

from wholestep.compiler.ir.type_rules.collectives import MODEL_RANK, RANK
from wholestep.compiler.ir.types import Dim, Extent, product
from wholestep.compiler.plan.model.kernel import Buffer, Guard, Index, Kernel, Layout, Load, Plan

# Symbol -> its least and largest value.  A loop's iteration number comes first: its largest value may contain symbols.
Ranges = Mapping[str, tuple[Extent, Extent]]


def ranges_of(plan: Plan, kernel: Kernel) -> Ranges:
    """The range of each symbol of a kernel."""
    least = {RANK: 0, MODEL_RANK: 0}  # all other symbols are counts of at least 1
    sizes: dict[str, tuple[Extent, Extent]] = {
        s: (least.get(s, 1), c) for s, c in zip(plan.symbols, plan.capacity, strict=True)
    }
    if kernel.loop is None:
        return sizes
    loop = plan.loops[kernel.loop]
    return {loop.symbol: (0, loop.length - 1), **sizes}


def is_nonnegative(extent: Extent, ranges: Ranges) -> bool:
    """Is the extent at least 0 for all values of its symbols?

    A polynomial of first degree in each symbol has its minimum at a corner of the ranges; one of higher degree is
    accepted only if it grows with every symbol.
    """
    if not isinstance(extent, Dim):
        return extent >= 0
    symbol = next((s for s in ranges if s in extent.symbols), None)
    if symbol is None:
        return False
    if any(names.count(symbol) > 1 for names, _ in extent.terms):
        grows = all(c >= 0 for names, c in extent.terms if names)
        least = {s: low for s, (low, _) in ranges.items()}
        return grows and all(isinstance(v, int) for v in least.values()) and extent.evaluate(least) >= 0  # type: ignore[arg-type]
    return all(is_nonnegative(_with(extent, symbol, end), ranges) for end in ranges[symbol])


def _with(extent: Dim, symbol: str, value: Extent) -> Extent:
    """The extent after a value is substituted for a symbol."""
    result: Extent = 0
    for names, coefficient in extent.terms:
        term: Extent = coefficient
        for name in names:
            term = term * (value if name == symbol else Dim.symbol(name))
        result = result + term
    return result


def leaves(load: Load, guards: Sequence[Guard], kernel: Kernel, buffer: Buffer, ranges: Ranges) -> str | None:
    """Why an access may leave its buffer; None if its shape fits the buffer and every index is proven in range."""
    if load.shape != buffer.type.shape:
        reshaped = buffer.layout == Layout.ROWS
        if not reshaped or not is_nonnegative(buffer.type.elements - product(load.shape), ranges):
            return f"the access has shape {load.shape}, the buffer {buffer.type}"
    for index, extent in zip(load.index, load.shape, strict=True):
        if index.over < 1:
            return f"an index divides by {index.over}"
        if index.value is not None:
            plain = index.is_behind_start or (index.offset == 0 and index.over == 1)
            if not plain or not is_nonnegative(extent - 1, ranges):
                return f"a computed index has an offset, or addresses a dimension of size {extent}"
        elif not _is_whole_axis(index, extent, kernel) and not _is_inside(index, extent, guards, kernel, ranges):
            return f"{index} may leave 0..{extent - 1}"
    return None


def _is_whole_axis(index: Index, extent: Extent, kernel: Kernel) -> bool:
    axis = index.plain
    return axis is not None and kernel.axes[axis] == extent


def _is_inside(index: Index, extent: Extent, guards: Sequence[Guard], kernel: Kernel, ranges: Ranges) -> bool:
    # Interval arithmetic over polynomials: an affine index is smallest and largest at the ends of its axes.  An end is
    # the axis's own bound or a guard's bound, whichever can be proven; so every combination of bounds is tried.
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
