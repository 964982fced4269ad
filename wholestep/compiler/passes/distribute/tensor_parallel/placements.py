"""How a rank of the model axis may hold a value: as a whole, a part of it, or a term of a sum over those ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from wholestep.compiler.ir.types import Extent, Shape, divide, product


@dataclass(frozen=True)
class OnAllRanks:
    """The same on all of them."""


@dataclass(frozen=True)
class Sharded:
    """Divided along an axis: of each of its `outer` blocks a rank has the part at its place.

    So what lies side by side in one tensor is divided alike: queries, keys and values, by their heads.
    """

    axis: int
    outer: Extent = 1
    widths: tuple[int, ...] = ()  # of the blocks, where they are not equal

    @staticmethod
    def of_blocks(axis: int, widths: Sequence[int]) -> Sharded:
        """Blocks of these widths, one behind the other."""
        return Sharded(axis, len(widths), tuple(widths) if len(set(widths)) > 1 else ())

    def at(self, axis: int) -> Sharded:
        """The same along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class PartialTerm:
    """A term of a sum over ranks."""


Kind = OnAllRanks | Sharded | PartialTerm


def inner(shape: Shape, split: Sharded, ranks: int) -> Extent | None:
    """How much of each of equal blocks a rank has; None where blocks do not divide."""
    return divide(shape[split.axis], split.outer * ranks)


def divides(shape: Shape, split: Sharded, ranks: int) -> bool:
    """Does each block divide?"""
    if not split.widths:
        return inner(shape, split, ranks) is not None
    return sum(split.widths) == shape[split.axis] and not any(width % ranks for width in split.widths)


def widths_of(extent: Extent, split: Sharded) -> tuple[int, ...] | None:
    """Of each block; None where they are not known."""
    if split.widths or not isinstance(extent, int) or not isinstance(split.outer, int):
        return split.widths or None
    return (extent // split.outer,) * split.outer


def part_of(shape: Shape, split: Sharded, ranks: int) -> Shape:
    """The shape of what a rank has."""
    own = divide(shape[split.axis], ranks)
    assert own is not None, f"{shape} does not divide among {ranks} ranks"
    assert divides(shape, split, ranks), f"{shape} does not divide among {ranks} ranks as {split} says"
    return (*shape[: split.axis], own, *shape[split.axis + 1 :])


def reshape_sharding(old: Shape, split: Sharded, new: Shape, ranks: int) -> Sharded | None:
    """The same elements in another shape; None where a reshape tears the parts of ranks apart.

    In the order of elements, what is before the ranks' parts stays before them: at most one axis can hold them.
    """
    if split.widths:  # an axis that stays what it was
        places = [(product(new[:axis]), extent) for axis, extent in enumerate(new)]
        place = product(old[: split.axis]), old[split.axis]
        return split.at(places.index(place)) if place in places else None
    before = product(old[: split.axis]) * split.outer
    for axis, extent in enumerate(new):
        outer = divide(before, product(new[:axis]))
        if outer is not None and divide(extent, outer * ranks) is not None:
            return Sharded(axis, outer)
    return None


def slice_sharding(extent: Extent, split: Sharded, start: Extent, stop: Extent) -> Sharded | None:
    """Some blocks of the axis that is divided, in a row; None where a slice cuts through one."""
    if split.widths:
        ends: list[Extent] = [0, *accumulate(split.widths)]
        known = start in ends and stop in ends and start != stop
        return Sharded.of_blocks(split.axis, split.widths[ends.index(start) : ends.index(stop)]) if known else None
    block = divide(extent, split.outer)
    length = stop - start
    if block is None or divide(start, block) is None:
        return None
    outer = divide(length, block)
    return None if outer is None or outer == 0 else replace(split, outer=outer)


def pad_sharding(extent: Extent, split: Sharded, low: int, high: int) -> Sharded | None:
    """With whole blocks before and behind those that there are."""
    block = None if split.widths else divide(extent, split.outer)
    counts = [None if block is None else divide(n, block) for n in (low, high)]
    if counts[0] is None or counts[1] is None:
        return None
    return replace(split, outer=split.outer + counts[0] + counts[1])
