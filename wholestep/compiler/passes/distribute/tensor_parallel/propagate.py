"""Sharding propagation: one forward walk that gives each node a placement on the model axis, and inserts resharding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.mesh import MODEL
from wholestep.compiler.ir.state_partition import AxisSplit
from wholestep.compiler.ir.type_rules.collectives import CARRIED
from wholestep.compiler.ir.types import Extent, TensorType
from wholestep.compiler.passes.distribute.placement.placements import (
    Placement,
    Replicated,
    Sharded,
    TuplePlacement,
    is_refused,
)
from wholestep.compiler.passes.distribute.placement.rules import placement_of
from wholestep.compiler.passes.distribute.tensor_parallel.operands import operand_placements
from wholestep.compiler.passes.distribute.tensor_parallel.reshard import LocalValues
from wholestep.compiler.passes.lower.decompose import decomposition_of

# Composites that are decomposed if they mix shards: only reductions along the sharded axis need collectives.
DECOMPOSED_IF_MIXED = frozenset(
    (
        "softmax",
        "log_softmax",
        "logsumexp",
        "cross_entropy",
        "layer_norm",
        "rms_norm",
        "layer_norm_grad",
        "rms_norm_grad",
    )
)
# Composites that are decomposed if any operand is sharded.  A dropout thus draws the full mask and slices its shard.
DECOMPOSED = frozenset(("batch_norm", "batch_norm_grad", "group_norm", "group_norm_grad", "dropout"))

PlacedValue = tuple[Node, Placement]


class ShardingPropagation(LocalValues):
    """Rewrites the unsharded graph into the graph of one rank."""

    def __init__(self, ranks: int) -> None:
        super().__init__(ranks)
        self.tuple_results: dict[Node, tuple[PlacedValue, ...]] = {}

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
            tuple(Output(o.name, self.replicate(o.node)) for o in graph.outputs),
            tuple(Update(u.name, self.in_placement_of_state(u.node, states.get(u.name))) for u in graph.updates),
            tuple(self.local_values[i] for i in graph.inputs),
        )

    def in_placement_of_state(self, node: Node, state: Node | None) -> Node:
        """The new value of a state, in the placement of the state."""
        return self.in_placement(node, Replicated() if state is None else self.placements[state])

    def place(self, node: Node) -> None:
        """Compute the local value and the placement of a node."""
        if node in self.placements or node in self.tuple_results:
            return
        for operand in node.inputs:
            self.place(operand)
        with b.origin(node):
            result = self._local_results(node)
        if isinstance(result[0], Node):
            self.local_values[node], self.placements[node] = result
        else:
            self.tuple_results[node] = result

    def _local_results(self, node: Node) -> PlacedValue | tuple[PlacedValue, ...]:
        """The local value of a node and its placement; a tuple of these for several results."""
        if node.op == "item":
            return self.tuple_results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        if node.is_state and attrs_of(node, at.StateAttrs).split:
            return self._state(node)
        operands = operand_placements(self, node)
        if operands is None:
            decomposed = node.op in DECOMPOSED and self.shardings(node.inputs)
            return self._decompose(node) if decomposed else self._replicate_op(node)
        placement = placement_of(node, operands, self.axis)
        if not is_refused(placement):
            return self._local_op(node, operands, placement)
        if node.op in DECOMPOSED_IF_MIXED:
            return self._decompose(node)
        if node.op == "max" and node.type.dtype.name in CARRIED:
            return self._max_of_shards(node), Replicated()
        return self._replicate_op(node)

    def _state(self, node: Node) -> PlacedValue:
        """The declaration of a marked state, in the shape of its shard."""
        a = attrs_of(node, at.StateAttrs)
        cut = AxisSplit.of(a.split)
        sharding = Sharded(cut.axis, cut.blocks, cut.widths)
        local_type = TensorType(self.shard_shape(node, sharding), a.type.dtype)
        return Node(node.op, (), replace(a, type=local_type, whole=a.type.shape), node.name, node.line), sharding

    def _replicate_op(self, node: Node) -> PlacedValue | tuple[PlacedValue, ...]:
        """The op over replicated operands, computed by every rank."""
        result = node.with_inputs([self.replicate(i) for i in node.inputs])
        if isinstance(node.result, TensorType):
            return result, Replicated()
        return _items(result, [Replicated()] * len(node.results))

    def _decompose(self, node: Node) -> PlacedValue | tuple[PlacedValue, ...]:
        """Propagate through a composite's decomposition."""
        parts = decomposition_of(node)
        for part in parts:
            self.place(part)
        results = tuple((self.local_values[p], self.placements[p]) for p in parts)
        return results[0] if isinstance(node.result, TensorType) else results

    def _max_of_shards(self, node: Node) -> Node:
        """A maximum along the sharded axis: the maximum of the all-gathered local maxima."""
        local_max = node.with_inputs([self.local_values[i] for i in node.inputs])
        parts = b.reshape(local_max, (1, *local_max.type.shape))
        return b.max_axes(b.make("all_gather", (parts,), at.GroupAttrs(self.ranks, MODEL)), (0,))

    # -- local ops -------------------------------------------------------------------------------------------------

    def _local_op(
        self, node: Node, operands: Sequence[Placement], placement: Placement
    ) -> PlacedValue | tuple[PlacedValue, ...]:
        """The op over operands in these placements, with the attributes of one rank's shapes."""
        inputs = [self.in_placement(i, k) for i, k in zip(node.inputs, operands, strict=True)]
        attrs = self._local_attrs(node, placement)
        unchanged = attrs == node.attrs
        result = node.with_inputs(inputs) if unchanged else Node(node.op, inputs, attrs, node.name, node.line)
        return _items(result, placement.results) if isinstance(placement, TuplePlacement) else (result, placement)

    def _local_attrs(self, node: Node, placement: Placement) -> at.Attrs:
        a = node.attrs
        if not isinstance(placement, Sharded):
            return a
        if isinstance(a, at.ReshapeAttrs | at.ExpandAttrs):
            return replace(a, shape=self.shard_shape(node, placement))
        axis = placement.axis
        if isinstance(a, at.SliceAttrs):
            starts, stops = (self._local_bounds(bounds, axis) for bounds in (a.starts, a.stops))
            return replace(a, starts=starts, stops=stops)
        if isinstance(a, at.PadAttrs):
            low, high = ((*p[:axis], p[axis] // self.ranks, *p[axis + 1 :]) for p in (a.low, a.high))
            return replace(a, low=low, high=high)
        return a

    def _local_bounds(self, bounds: tuple[Extent, ...], axis: int) -> tuple[Extent, ...]:
        return (*bounds[:axis], self.local_extent(bounds[axis]), *bounds[axis + 1 :])


def _items(node: Node, placements: Sequence[Placement]) -> tuple[PlacedValue, ...]:
    """All results of a node with several results, with their placements."""
    return tuple((b.make("item", (node,), at.ItemAttrs(i)), placement) for i, placement in enumerate(placements))
