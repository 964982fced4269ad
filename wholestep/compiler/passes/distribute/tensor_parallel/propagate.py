"""Sharding propagation: one forward walk that gives each node a placement on the model axis, and inserts resharding.

`rules.py` says which placements an op accepts and gives; this file converts values between placements.  Converted
values are cached, so that each is gathered, reduced or sliced at most once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.mesh import MODEL
from wholestep.compiler.ir.type_rules.collectives import CARRIED, MODEL_RANK
from wholestep.compiler.ir.types import Dim, DType, Extent, TensorType, float32, int32
from wholestep.compiler.passes.distribute.tensor_parallel.placements import (
    ModelPlacement,
    OnAllRanks,
    PartialTerm,
    Sharded,
    divides,
    local_block_extent,
    shard_shape,
)
from wholestep.compiler.passes.lower.decompose import decomposition_of

PlacedValue = tuple[Node, ModelPlacement]
RuleResult = PlacedValue | tuple[PlacedValue, ...] | None
Rule = Callable[
    ["ShardingPropagation", Node], RuleResult
]  # the local node and its placement, a tuple of these for several results, or None: compute from replicated inputs


class ShardingPropagation:
    """Maps each node of the unsharded graph to this rank's local value and its placement."""

    def __init__(self, rules: Callable[[Node], Rule | None], ranks: int) -> None:
        self.rules, self.ranks = rules, ranks
        self.local_values: dict[Node, Node] = {}
        self.placements: dict[Node, ModelPlacement] = {}
        self.tuple_results: dict[Node, tuple[PlacedValue, ...]] = {}
        self.replicated_values: dict[Node, Node] = {}  # sharded or partial node -> its replicated value
        self.shards: dict[tuple[Node, Sharded], Node] = {}
        self.update_placements: dict[
            Node, ModelPlacement
        ] = {}  # elementwise values of an updated state -> its placement

    def partition(self, graph: IRGraph) -> IRGraph:
        """The SPMD graph of one rank."""
        changed = {u.name for u in graph.updates}
        states = {attrs_of(n, at.StateAttrs).name: n for n in graph.nodes if n.is_state}
        for name, node in states.items():
            self.place(node)
            if name in changed and node.type.rank:
                self.update_placements[node] = self.placements[node]
        for node in graph.nodes:
            self.place(node)
        return IRGraph(
            tuple(Output(o.name, self.replicated(o.node)) for o in graph.outputs),
            tuple(Update(u.name, self.in_state_placement(u.node, states.get(u.name))) for u in graph.updates),
            tuple(self.local_values[i] for i in graph.inputs),
        )

    def in_state_placement(self, node: Node, state: Node | None) -> Node:
        """A new value in the placement of its state."""
        placement = OnAllRanks() if state is None else self.placements[state]
        return self.shard(node, placement) if isinstance(placement, Sharded) else self.replicated(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> None:
        """Compute the local value and the placement of a node."""
        if node in self.placements or node in self.tuple_results:
            return
        for operand in node.inputs:
            self.place(operand)
        with b.origin(node):
            rule = self.rules(node)
            result = None if rule is None else rule(self, node)
            self._store(node, self._replicated_op(node) if result is None else result)

    def _store(self, node: Node, result: PlacedValue | tuple[PlacedValue, ...]) -> None:
        if isinstance(result[0], Node):
            self.local_values[node], self.placements[node] = result
        else:
            self.tuple_results[node] = result

    def _replicated_op(self, node: Node) -> PlacedValue | tuple[PlacedValue, ...]:
        """Fallback for ops without a rule: every rank computes the op from replicated inputs."""
        if node.op == "item":
            return self.tuple_results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        result = node.with_inputs([self.replicated(i) for i in node.inputs])
        if isinstance(node.result, TensorType):
            return result, OnAllRanks()
        return tuple((b.make("item", (result,), at.ItemAttrs(i)), OnAllRanks()) for i in range(len(node.results)))

    def decompose(self, node: Node) -> PlacedValue | tuple[PlacedValue, ...]:
        """Propagate through a composite's decomposition: only reductions along the sharded axis need collectives."""
        parts = decomposition_of(node)
        for part in parts:
            self.place(part)
        results = tuple((self.local_values[p], self.placements[p]) for p in parts)
        return results[0] if isinstance(node.result, TensorType) else results

    def local_op(self, node: Node, inputs: Sequence[Node], attrs: at.Attrs | None = None) -> Node:
        """The node over local inputs, with other attributes if given."""
        if attrs is None or attrs == node.attrs:
            return node.with_inputs(inputs)
        return Node(node.op, inputs, attrs, node.name, node.line)

    # -- resharding ------------------------------------------------------------------------------------------------

    def shardings(self, nodes: Sequence[Node]) -> list[Sharded]:
        """The placements of the sharded nodes among these."""
        return [k for k in (self.placements[n] for n in nodes) if isinstance(k, Sharded)]

    def divides_evenly(self, node: Node, split: Sharded) -> bool:
        """Does a node's shape divide evenly by this sharding?"""
        return divides(node.type.shape, split, self.ranks)

    def replicated(self, node: Node) -> Node:
        """The replicated value of a node, by a collective if it is sharded or partial."""
        placement = self.placements[node]
        if isinstance(placement, OnAllRanks):
            return self.local_values[node]
        if node not in self.replicated_values:
            with b.origin(node):
                self.replicated_values[node] = (
                    self._reduce(node) if isinstance(placement, PartialTerm) else self._gather(node, placement)
                )
        return self.replicated_values[node]

    def _reduce(self, node: Node) -> Node:
        """All-reduce a partial sum, in float32 if collectives do not support its dtype."""
        local = self.local_values[node]
        operand = local if local.type.dtype.name in CARRIED else b.cast(local, float32)
        return b.cast(b.make("all_reduce", (operand,), at.GroupAttrs(axis=MODEL)), local.type.dtype)

    def _gather(self, node: Node, split: Sharded) -> Node:
        """All-gather shards.  all_gather stacks along axis 0: blocks are then permuted back to the sharded axis."""
        shard, shape, axis = self.local_values[node], node.type.shape, split.axis
        wire = _wire_dtype(shard.type.dtype)
        if axis == 0 and split.outer == 1:
            gathered = b.make("all_gather", (b.cast(shard, wire),), at.GroupAttrs(self.ranks, MODEL))
            return b.cast(gathered, shard.type.dtype)
        parts = b.reshape(b.cast(shard, wire), (1, *shard.type.shape))
        gathered = b.make("all_gather", (parts,), at.GroupAttrs(self.ranks, MODEL))
        if split.widths:
            return b.cast(self._join_blocks(gathered, split), shard.type.dtype)
        block_extent = local_block_extent(shape, split, self.ranks)
        assert block_extent is not None
        blocks = b.reshape(gathered, (self.ranks, *shape[:axis], split.outer, block_extent, *shape[axis + 1 :]))
        order = (*range(1, axis + 2), 0, *range(axis + 2, blocks.type.rank))
        return b.cast(b.reshape(b.permute(blocks, order), shape), shard.type.dtype)

    def _join_blocks(self, parts: Node, split: Sharded) -> Node:
        """Restore the unsharded order of gathered shards (ranks, ...) with blocks of unequal widths."""
        axis, blocks, start = split.axis + 1, list[Node](), 0
        for width in split.widths:
            stop = start + width // self.ranks
            block = _slice_axis(parts, axis, start, stop)
            ranks_inside = b.permute(block, (*range(1, axis), 0, *range(axis, block.type.rank)))
            shape = block.type.shape
            blocks.append(b.reshape(ranks_inside, (*shape[1:axis], width, *shape[axis + 1 :])))
            start = stop
        return b.concat(blocks, split.axis)

    def shard(self, node: Node, split: Sharded) -> Node:
        """This rank's shard of a value."""
        if self.placements[node] == split:
            return self.local_values[node]
        key = node, split
        if key not in self.shards:
            with b.origin(node):
                self.shards[key] = self._cut(node, split)
        return self.shards[key]

    def _cut(self, node: Node, split: Sharded) -> Node:
        """Slice this rank's shard out of the replicated value; broadcasts and iotas are computed in its shape."""
        shape = shard_shape(node.type.shape, split, self.ranks)
        if node.op == "expand" and isinstance(self.placements[node], OnAllRanks):
            (x,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
            if split.axis not in a.axes:
                return b.expand_to(self.replicated(x), shape, a.axes)
            return b.expand_to(self.shard(x, split.at(a.axes.index(split.axis))), shape, a.axes)
        if node.op == "iota" and attrs_of(node, at.IotaAttrs).axis != split.axis:
            return b.iota(shape, attrs_of(node, at.IotaAttrs).axis, node.type.dtype)
        replicated, full_shape, axis = self.replicated(node), node.type.shape, split.axis
        if split.widths:
            firsts = zip(accumulate(split.widths, initial=0), split.widths, strict=False)
            starts = [(first + width // self.ranks * Dim.symbol(MODEL_RANK), width) for first, width in firsts]
            local_blocks = [_slice_axis(replicated, axis, at, at + width // self.ranks) for at, width in starts]
            return b.concat(local_blocks, axis)
        local_extent = local_block_extent(full_shape, split, self.ranks)
        assert local_extent is not None
        if split.outer != 1:  # an axis for the blocks, then slice each of them
            replicated = b.reshape(
                replicated, (*full_shape[:axis], split.outer, local_extent * self.ranks, *full_shape[axis + 1 :])
            )
            axis += 1
        first = local_extent * Dim.symbol(MODEL_RANK)
        return b.reshape(_slice_axis(replicated, axis, first, first + local_extent), shape)


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
