"""Placements along the model axis (replicated, sharded in blocks, partial sum), and how views map shardings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from wholestep.compiler.ir.types import Extent, Shape, divide, product


@dataclass(frozen=True)
class OnAllRanks:
    """Replicated: the same value on every rank."""


@dataclass(frozen=True)
class Sharded:
    """Sharded along `axis`: the axis consists of `outer` blocks, and rank r holds the r-th part of each block.

    Thus tensors that are stored concatenated (queries, keys, values) are each sharded, by heads.
    """

    axis: int
    outer: Extent = 1
    widths: tuple[int, ...] = ()  # the width of each block, if they are not equal

    @staticmethod
    def of_blocks(axis: int, widths: Sequence[int]) -> Sharded:
        """Consecutive blocks of these widths."""
        return Sharded(axis, len(widths), tuple(widths) if len(set(widths)) > 1 else ())

    def at(self, axis: int) -> Sharded:
        """The same along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class PartialTerm:
    """This rank's term of a sum over ranks."""


ModelPlacement = OnAllRanks | Sharded | PartialTerm


def local_block_extent(shape: Shape, split: Sharded, ranks: int) -> Extent | None:
    """The extent that a rank holds of each of equal blocks; None if the blocks do not divide evenly."""
    return divide(shape[split.axis], split.outer * ranks)


def divides(shape: Shape, split: Sharded, ranks: int) -> bool:
    """Does every block divide evenly among the ranks?"""
    if not split.widths:
        return local_block_extent(shape, split, ranks) is not None
    return sum(split.widths) == shape[split.axis] and not any(width % ranks for width in split.widths)


def widths_of(extent: Extent, split: Sharded) -> tuple[int, ...] | None:
    """The width of each block; None if an extent is symbolic."""
    if split.widths or not isinstance(extent, int) or not isinstance(split.outer, int):
        return split.widths or None
    return (extent // split.outer,) * split.outer


def shard_shape(shape: Shape, split: Sharded, ranks: int) -> Shape:
    """The shape of one rank's shard."""
    local_extent = divide(shape[split.axis], ranks)
    assert local_extent is not None, f"{shape} does not divide among {ranks} ranks"
    assert divides(shape, split, ranks), f"{shape} does not divide among {ranks} ranks as {split}"
    return (*shape[: split.axis], local_extent, *shape[split.axis + 1 :])


def reshape_sharding(old: Shape, split: Sharded, new: Shape, ranks: int) -> Sharded | None:
    """The sharding after a reshape; None if the reshape cuts through shards.

    A reshape keeps the row-major order of elements, so the product of extents outside of the shards is kept: at most
    one axis of the new shape can be the sharded one.
    """
    if split.widths:  # only an axis that the reshape leaves unchanged
        positions = [(product(new[:axis]), extent) for axis, extent in enumerate(new)]
        position = product(old[: split.axis]), old[split.axis]
        return split.at(positions.index(position)) if position in positions else None
    before = product(old[: split.axis]) * split.outer
    for axis, extent in enumerate(new):
        outer = divide(before, product(new[:axis]))
        if outer is not None and divide(extent, outer * ranks) is not None:
            return Sharded(axis, outer)
    return None


def slice_sharding(extent: Extent, split: Sharded, start: Extent, stop: Extent) -> Sharded | None:
    """The sharding of a slice of consecutive blocks along the sharded axis; None if the slice cuts through a block."""
    if split.widths:
        ends: list[Extent] = [0, *accumulate(split.widths)]
        aligned = start in ends and stop in ends and start != stop
        return Sharded.of_blocks(split.axis, split.widths[ends.index(start) : ends.index(stop)]) if aligned else None
    block = divide(extent, split.outer)
    length = stop - start
    if block is None or divide(start, block) is None:
        return None
    outer = divide(length, block)
    return None if outer is None or outer == 0 else replace(split, outer=outer)


def pad_sharding(extent: Extent, split: Sharded, low: int, high: int) -> Sharded | None:
    """The sharding after padding with complete blocks on either side; None if the padding is not a multiple of them."""
    block = None if split.widths else divide(extent, split.outer)
    counts = [None if block is None else divide(n, block) for n in (low, high)]
    if counts[0] is None or counts[1] is None:
        return None
    return replace(split, outer=split.outer + counts[0] + counts[1])
