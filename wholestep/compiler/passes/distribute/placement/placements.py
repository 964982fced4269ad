"""The lattice of placements along one mesh axis, and what a mesh axis can shard."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.mesh import DATA, MODEL
from wholestep.compiler.ir.types import Dim, Extent, Shape, divide


@dataclass(frozen=True)
class MeshAxis:
    """A mesh axis, as the rules see it: what an extent must be a multiple of to be sharded along it.

    Along the data axis, graphs have the shapes of one rank, and a value is sharded along the axis that is a multiple of
    the symbol `batch`.  Along the model axis, graphs have the full shapes, and extents are divided by `ranks`.
    """

    name: str
    batch: str = ""
    ranks: int = 1

    @staticmethod
    def of_batch(batch: str) -> MeshAxis:
        """The data axis of the mesh; `batch` is the symbol of the batch size."""
        return MeshAxis(DATA, batch=batch)

    @staticmethod
    def of_ranks(ranks: int) -> MeshAxis:
        """The model axis of the mesh."""
        return MeshAxis(MODEL, ranks=ranks)

    def mentions(self, extent: Extent) -> bool:
        """Does an extent depend on the batch size?"""
        return isinstance(extent, Dim) and self.batch in extent.symbols

    def divides(self, extent: Extent, blocks: Extent = 1) -> bool:
        """Can an axis of this extent be sharded within this many equal blocks?"""
        rest = divide(extent, blocks * (Dim.symbol(self.batch) if self.batch else self.ranks))
        return rest is not None and rest != 0 and not self.mentions(rest)


@dataclass(frozen=True)
class Replicated:
    """Every rank has the same value; along the data axis: independent of the batch."""


@dataclass(frozen=True)
class Sharded:
    """Sharded along `axis`, which consists of `outer` blocks: each rank holds its part of every block.

    Along the data axis: row i depends on row i of the inputs only; `outer` is 1 unless outer axes were merged with the
    batch (a time-major sequence).  Along the model axis: tensors that are stored concatenated (queries, keys, values)
    are each sharded, by heads.
    """

    axis: int
    outer: Extent = 1
    widths: tuple[int, ...] = ()  # the width of each block, if they are not equal
    uniform: bool = False  # all rows are equal (a broadcast), so that any order of rows is correct

    @staticmethod
    def of_blocks(axis: int, widths: Sequence[int]) -> Sharded:
        """The sharding of an axis that consists of consecutive blocks of these widths."""
        return Sharded(axis, len(widths), tuple(widths) if len(set(widths)) > 1 else ())

    def at(self, axis: int) -> Sharded:
        """The same sharding along another axis."""
        return replace(self, axis=axis)

    def block_widths(self, extent: Extent) -> tuple[int, ...] | None:
        """The width of each block of an axis of this extent; None if it is symbolic."""
        if self.widths or not isinstance(extent, int) or not isinstance(self.outer, int):
            return self.widths or None
        return (extent // self.outer,) * self.outer


@dataclass(frozen=True)
class Partial:
    """A term of a sum over ranks; along the data axis: a sum over the rows of a row-wise value."""


@dataclass(frozen=True)
class SumOfRatios:
    """A weighted sum of Partial/Partial quotients, Partial values and Replicated values."""


@dataclass(frozen=True)
class Mixed:
    """None of the other placements fits.  The node `blame` is the cause; the error says: `blame` `reason`."""

    blame: Node
    reason: str


@dataclass(frozen=True)
class TuplePlacement:
    """The placement of each result of a node with several results."""

    results: tuple[Placement, ...]


Placement = Replicated | Sharded | Partial | SumOfRatios | Mixed | TuplePlacement
PlacementRule = Callable[[Node, Sequence[Placement], MeshAxis], Placement]


def is_refused(placement: Placement) -> bool:
    """Is the placement Mixed (or does a tuple contain Mixed), so that no rank can compute its part?"""
    if isinstance(placement, TuplePlacement):
        return any(map(is_refused, placement.results))
    return isinstance(placement, Mixed | SumOfRatios)


def placement_of_shape(node: Node, shape: Shape, axis: MeshAxis) -> Placement:
    """The placement of a new value (an input, random numbers, a broadcast), from the axes that depend on the batch."""
    batch_axes = [d for d, extent in enumerate(shape) if axis.mentions(extent)]
    if not batch_axes:
        return Replicated()
    if len(batch_axes) == 1 and axis.divides(shape[batch_axes[0]]):
        return Sharded(batch_axes[0])
    return Mixed(node, f"has a shape, {node.type}, that is not one row per element of {axis.batch!r}")


def common_sharding(placements: Sequence[Placement]) -> Sharded | None:
    """The common placement if all values are sharded along the same axis with the same order of rows; else None."""
    shardings = [placement for placement in placements if isinstance(placement, Sharded)]
    ordered = {sharding for sharding in shardings if not sharding.uniform}
    same_axis = len({sharding.axis for sharding in shardings}) == 1
    if len(shardings) < len(placements) or not same_axis or len(ordered) > 1:
        return None
    return next(iter(ordered), shardings[0])


def are_compatible(one: Placement, other: Placement) -> bool:
    return one == other or common_sharding([one, other]) is not None


def comparable_size(node: Node) -> int:
    """The number of elements, for comparisons: a symbolic extent counts as 64."""
    count = 1
    for extent in node.type.shape:
        count *= extent if isinstance(extent, int) else 64
    return count
