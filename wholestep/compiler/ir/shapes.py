"""Correspondence between the axes of a tensor and the axes of its reshape."""

from __future__ import annotations

from dataclasses import dataclass

from wholestep.compiler.ir.types import Extent, Shape, divide, product

Axes = list[tuple[int, Extent]]


@dataclass(frozen=True)
class Quotient:
    """The index floor(p / over), where p is the row-major position within some axes."""

    axes: tuple[int, ...]
    over: int


def common_groups(shape: Shape, other: Shape) -> list[tuple[Axes, Axes]] | None:
    """Split both shapes into the shortest consecutive groups of axes with equal element counts; None if impossible.

    (batch, 8, 256) and (batch, 32, 8, 8) become (batch | 8, 256) and (batch | 32, 8, 8).  Axes of size 1 are omitted.
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


def reshape_quotients(shape: Shape, below: Shape) -> list[Quotient | None] | None:
    """For a reshape from `below` to `shape`: the index along each axis of `below` as a quotient of indices of `shape`.

    An entry is None if the index is a remainder rather than a quotient; the result is None if the shapes have no common
    groups.
    """
    groups = common_groups(shape, below)
    if groups is None:
        return None
    result: list[Quotient | None] = [Quotient((), 1) for _ in below]
    for group, group_below in groups:
        axes = tuple(d for d, _ in group)
        for position, (d, _) in enumerate(group_below):
            over = _size(group_below[position + 1 :])
            result[d] = Quotient(axes, over) if position == 0 and isinstance(over, int) else None
    return result
