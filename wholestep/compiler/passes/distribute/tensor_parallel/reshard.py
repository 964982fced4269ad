"""The local values of one rank along the model axis, and their conversion between placements.

Converted values are cached, so that each is gathered, reduced or sliced at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.mesh import MODEL
from wholestep.compiler.ir.type_rules.collectives import CARRIED, MODEL_RANK
from wholestep.compiler.ir.types import Dim, DType, Extent, Shape, divide, float32, int32
from wholestep.compiler.passes.distribute.placement.placements import MeshAxis, Partial, Placement, Replicated, Sharded


class LocalValues:
    """Maps each node of the unsharded graph to this rank's local value and its placement."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.axis = ranks, MeshAxis.of_ranks(ranks)
        self.local_values: dict[Node, Node] = {}
        self.placements: dict[Node, Placement] = {}
        self.update_placements: dict[Node, Placement] = {}  # elementwise values of an updated state -> its placement
        self._replicated_values: dict[Node, Node] = {}  # sharded or partial node -> its replicated value
        self._shards: dict[tuple[Node, Sharded], Node] = {}

    def shardings(self, nodes: Sequence[Node]) -> list[Sharded]:
        """The placements of the sharded nodes among these."""
        return [k for k in (self.placements[n] for n in nodes) if isinstance(k, Sharded)]

    def divides_evenly(self, node: Node, sharding: Sharded) -> bool:
        """Does every block of a node divide evenly among the ranks?"""
        extent = node.type.shape[sharding.axis]
        if not sharding.widths:
            return divide(extent, sharding.outer * self.ranks) is not None
        return sum(sharding.widths) == extent and not any(width % self.ranks for width in sharding.widths)

    def shard_shape(self, node: Node, sharding: Sharded) -> Shape:
        """The shape of one rank's shard of a node."""
        shape, axis = node.type.shape, sharding.axis
        assert self.divides_evenly(node, sharding), f"{shape} does not divide among {self.ranks} ranks as {sharding}"
        return (*shape[:axis], self.local_extent(shape[axis]), *shape[axis + 1 :])

    def local_extent(self, extent: Extent) -> Extent:
        """The part of an extent, of complete blocks, that one rank holds."""
        local_extent = divide(extent, self.ranks)
        assert local_extent is not None, f"{extent} does not divide among {self.ranks} ranks"
        return local_extent

    def in_placement(self, node: Node, placement: Placement) -> Node:
        """The local value of a node in a placement; Partial only if the node is."""
        if isinstance(placement, Sharded):
            return self.shard(node, placement)
        return self.local_values[node] if isinstance(placement, Partial) else self.replicate(node)

    # -- to replicated ---------------------------------------------------------------------------------------------

    def replicate(self, node: Node) -> Node:
        """The replicated value of a node, by a collective if it is sharded or partial."""
        placement = self.placements[node]
        if isinstance(placement, Replicated):
            return self.local_values[node]
        if node not in self._replicated_values:
            with b.origin(node):
                self._replicated_values[node] = (
                    self._gather(node, placement) if isinstance(placement, Sharded) else self._reduce(node)
                )
        return self._replicated_values[node]

    def _reduce(self, node: Node) -> Node:
        """All-reduce a partial sum, in float32 if collectives do not support its dtype."""
        local = self.local_values[node]
        operand = local if local.type.dtype.name in CARRIED else b.cast(local, float32)
        return b.cast(b.make("all_reduce", (operand,), at.GroupAttrs(axis=MODEL)), local.type.dtype)

    def _gather(self, node: Node, sharding: Sharded) -> Node:
        """All-gather shards.  all_gather stacks along axis 0: blocks are then permuted back to the sharded axis."""
        shard, shape, axis = self.local_values[node], node.type.shape, sharding.axis
        wire = _wire_dtype(shard.type.dtype)
        if axis == 0 and sharding.outer == 1:
            gathered = b.make("all_gather", (b.cast(shard, wire),), at.GroupAttrs(self.ranks, MODEL))
            return b.cast(gathered, shard.type.dtype)
        parts = b.reshape(b.cast(shard, wire), (1, *shard.type.shape))
        gathered = b.make("all_gather", (parts,), at.GroupAttrs(self.ranks, MODEL))
        if sharding.widths:
            return b.cast(self._join_blocks(gathered, sharding), shard.type.dtype)
        outer, block = sharding.outer, self._local_block(shape[axis], sharding)
        blocks = b.reshape(gathered, (self.ranks, *shape[:axis], outer, block, *shape[axis + 1 :]))
        order = (*range(1, axis + 2), 0, *range(axis + 2, blocks.type.rank))
        return b.cast(b.reshape(b.permute(blocks, order), shape), shard.type.dtype)

    def _local_block(self, extent: Extent, sharding: Sharded) -> Extent:
        """The extent that a rank holds of each of equal blocks."""
        local_block = divide(extent, sharding.outer * self.ranks)
        assert local_block is not None, f"{extent} does not divide among {self.ranks} ranks as {sharding}"
        return local_block

    def _join_blocks(self, parts: Node, sharding: Sharded) -> Node:
        """Restore the unsharded order of gathered shards (ranks, ...) with blocks of unequal widths."""
        axis, blocks, start = sharding.axis + 1, list[Node](), 0
        for width in sharding.widths:
            stop = start + width // self.ranks
            block = _slice_axis(parts, axis, start, stop)
            ranks_inside = b.permute(block, (*range(1, axis), 0, *range(axis, block.type.rank)))
            shape = block.type.shape
            blocks.append(b.reshape(ranks_inside, (*shape[1:axis], width, *shape[axis + 1 :])))
            start = stop
        return b.concat(blocks, sharding.axis)

    # -- to shards -------------------------------------------------------------------------------------------------

    def shard(self, node: Node, sharding: Sharded) -> Node:
        """This rank's shard of a value."""
        if self.placements[node] == sharding:
            return self.local_values[node]
        key = node, sharding
        if key not in self._shards:
            with b.origin(node):
                self._shards[key] = self._cut(node, sharding)
        return self._shards[key]

    def _cut(self, node: Node, sharding: Sharded) -> Node:
        """Slice this rank's shard out of the replicated value; broadcasts and iotas are computed in its shape."""
        shape = self.shard_shape(node, sharding)
        if node.op == "expand" and isinstance(self.placements[node], Replicated):
            (x,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
            if sharding.axis not in a.axes:
                return b.expand_to(self.replicate(x), shape, a.axes)
            return b.expand_to(self.shard(x, sharding.at(a.axes.index(sharding.axis))), shape, a.axes)
        if node.op == "iota" and attrs_of(node, at.IotaAttrs).axis != sharding.axis:
            return b.iota(shape, attrs_of(node, at.IotaAttrs).axis, node.type.dtype)
        replicated, full_shape, axis = self.replicate(node), node.type.shape, sharding.axis
        if sharding.widths:
            firsts = zip(accumulate(sharding.widths, initial=0), sharding.widths, strict=False)
            starts = [(first + width // self.ranks * Dim.symbol(MODEL_RANK), width) for first, width in firsts]
            local_blocks = [_slice_axis(replicated, axis, at, at + width // self.ranks) for at, width in starts]
            return b.concat(local_blocks, axis)
        block = self._local_block(full_shape[axis], sharding)
        if sharding.outer != 1:  # add an axis for the blocks, then slice each block
            blocks_shape = (*full_shape[:axis], sharding.outer, block * self.ranks, *full_shape[axis + 1 :])
            replicated, axis = b.reshape(replicated, blocks_shape), axis + 1
        first = block * Dim.symbol(MODEL_RANK)
        return b.reshape(_slice_axis(replicated, axis, first, first + block), shape)


def _slice_axis(x: Node, axis: int, start: Extent, stop: Extent) -> Node:
    """Slice one axis."""
    before, after = x.type.shape[:axis], x.type.shape[axis + 1 :]
    starts = (*(0 for _ in before), start, *(0 for _ in after))
    return b.slice_axes(x, starts, (*before, stop, *after))


def _wire_dtype(dtype: DType) -> DType:
    """The dtype in which collectives send values of a dtype."""
    if dtype.name in CARRIED:
        return dtype
    return float32 if dtype.is_float else int32
