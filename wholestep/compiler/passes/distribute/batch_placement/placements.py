"""The lattice of placements along the data axis, and the meet of several of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Dim, Extent, Shape, divide


@dataclass(frozen=True)
class Replicated:
    """Independent of the batch: the same value on every rank."""


@dataclass(frozen=True)
class BatchSharded:
    """Row-wise along `axis`, whose extent is `before` × batch × rest, the outermost factor first.

    `before` is 1 unless outer axes were merged with the batch (a time-major sequence).  None: all rows are equal, so
    that any order is correct.
    """

    axis: int
    before: Extent | None = 1

    def at(self, axis: int) -> BatchSharded:
        """The same rows along another axis."""
        return replace(self, axis=axis)


@dataclass(frozen=True)
class Partial:
    """A sum over the rows of a row-wise value: the partial sums of ranks add up to the full value."""


@dataclass(frozen=True)
class SumOfRatios:
    """A weighted sum of Partial/Partial quotients, Partial values and Replicated values."""


@dataclass(frozen=True)
class Mixed:
    """Any other dependence on rows; `blame` is the node that caused it, `reason` a verb phrase for the error."""

    blame: Node
    reason: str


@dataclass(frozen=True)
class TuplePlacement:
    """The placement of each result of a node with several results."""

    kinds: tuple[BatchPlacement, ...]


BatchPlacement = Replicated | BatchSharded | Partial | SumOfRatios | Mixed | TuplePlacement
PlacementRule = Callable[[Node, Sequence[BatchPlacement], str], BatchPlacement]


def mentions(extent: Extent, batch: str) -> bool:
    return isinstance(extent, Dim) and batch in extent.symbols


def is_multiple(extent: Extent, batch: str) -> bool:
    rest = divide(extent, Dim.symbol(batch)) if mentions(extent, batch) else None
    return rest is not None and not mentions(rest, batch)


def placement_of_shape(node: Node, shape: Shape, batch: str) -> BatchPlacement:
    """The placement of a new value (an input, random numbers, a broadcast), from the axes that mention the batch."""
    axes = [d for d, e in enumerate(shape) if mentions(e, batch)]
    if not axes:
        return Replicated()
    if len(axes) == 1 and is_multiple(shape[axes[0]], batch):
        return BatchSharded(axes[0])
    return Mixed(node, f"has a shape, {node.type}, that is not one row per element of {batch!r}")


def common_sharding(kinds: Sequence[BatchPlacement]) -> BatchSharded | None:
    """The common placement, if all are sharded along the same axis with the same order of rows; else None."""
    rows = [k for k in kinds if isinstance(k, BatchSharded)]
    orders = {r.before for r in rows} - {None}
    if len(rows) < len(kinds) or len({r.axis for r in rows}) != 1 or len(orders) > 1:
        return None
    return BatchSharded(rows[0].axis, next(iter(orders), None))


def are_compatible(one: BatchPlacement, other: BatchPlacement) -> bool:
    return one == other or common_sharding([one, other]) is not None
