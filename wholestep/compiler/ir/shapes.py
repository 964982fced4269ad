"""How the axes of a tensor and of a reshape of it belong together."""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.compiler.ir.types import Extent, Shape, divide, product

Axes = list[tuple[int, Extent]]


@dataclass(frozen=True)
class Quotient:
    """The row-major position in some axes, divided by `over` and rounded down."""

    axes: tuple[int, ...]
    over: int


def common_groups(shape: Shape, other: Shape) -> list[tuple[Axes, Axes]] | None:
    """Both shapes cut into runs of axes with as many elements each, as short as they come; None if there are none.

    (batch, 8, 256) and (batch, 32, 8, 8) are (batch | 8, 256) and (batch | 32, 8, 8).  Axes of size 1 are left out.
    """
    left, right = ([(d, e) for d, e in enumerate(s) if e != 1] for s in (shape, other))
    groups = []
    while left and right:
        a, b = [left.pop(0)], [right.pop(0)]
        while _size(a) != _size(b):
            grow, source = (a, left) if divide(_size(b), _size(a)) is not None else (b, right)
            if not source or (grow is b and divide(_size(a), _size(b)) is None):
                return None
            grow.append(source.pop(0))
        groups.append((a, b))
    return None if left or right else groups


def _size(axes: Axes) -> Extent:
    return product(e for _, e in axes)


def quotients(shape: Shape, below: Shape) -> list[Quotient | None] | None:
    """For each axis of `below`: where an element of its reshape to `shape` lies along it.

    None for an axis whose place is a remainder, and None for all where the shapes have no groups in common.
    """
    groups = common_groups(shape, below)
    if groups is None:
        return None
    found: list[Quotient | None] = [Quotient((), 1) for _ in below]
    for above, under in groups:
        axes = tuple(d for d, _ in above)
        for position, (d, _) in enumerate(under):
            over = _size(under[position + 1 :])
            found[d] = Quotient(axes, over) if position == 0 and isinstance(over, int) else None
    return found
