"""The walk: what each node is on one rank of the model axis, and what is exchanged where that is not what is needed."""

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
    Kind,
    OnAllRanks,
    PartialTerm,
    Sharded,
    divides,
    inner,
    part_of,
)
from wholestep.compiler.passes.lower.decompose import decomposition_of

Held = tuple[Node, Kind]
Made = Held | tuple[Held, ...] | None
Rule = Callable[
    ["ShardingPropagation", Node], Made
]  # what a node is here; a tuple where it has several results; None: as a whole


class ShardingPropagation:
    """`held` has what stands for each node of the whole graph on this rank, and `kinds` how that is to be read."""

    def __init__(self, rules: Callable[[Node], Rule | None], ranks: int) -> None:
        self.rules, self.ranks = rules, ranks
        self.held: dict[Node, Node] = {}
        self.kinds: dict[Node, Kind] = {}
        self.several: dict[Node, tuple[Held, ...]] = {}
        self.wholes: dict[Node, Node] = {}  # of what is not held as a whole
        self.parts: dict[tuple[Node, Sharded], Node] = {}
        self.updated: dict[Node, Kind] = {}  # new and old values of states, element by element: how those are held

    def on_a_rank(self, graph: IRGraph) -> IRGraph:
        """The graph of one rank."""
        changed = {u.name for u in graph.updates}
        states = {attrs_of(n, at.StateAttrs).name: n for n in graph.nodes if n.is_state}
        for name, node in states.items():
            self.place(node)
            if name in changed and node.type.rank:
                self.updated[node] = self.kinds[node]
        for node in graph.nodes:
            self.place(node)
        return IRGraph(
            tuple(Output(o.name, self.whole(o.node)) for o in graph.outputs),
            tuple(Update(u.name, self.as_held(u.node, states.get(u.name))) for u in graph.updates),
            tuple(self.held[i] for i in graph.inputs),
        )

    def as_held(self, node: Node, state: Node | None) -> Node:
        """A new value as its state is held."""
        kind = OnAllRanks() if state is None else self.kinds[state]
        return self.part(node, kind) if isinstance(kind, Sharded) else self.whole(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def place(self, node: Node) -> None:
        """Say what a node is on this rank."""
        if node in self.kinds or node in self.several:
            return
        for given in node.inputs:
            self.place(given)
        with b.origin(node):
            rule = self.rules(node)
            made = None if rule is None else rule(self, node)
            self._keep(node, self._as_a_whole(node) if made is None else made)

    def _keep(self, node: Node, made: Held | tuple[Held, ...]) -> None:
        if isinstance(made[0], Node):
            self.held[node], self.kinds[node] = made
        else:
            self.several[node] = made

    def _as_a_whole(self, node: Node) -> Held | tuple[Held, ...]:
        """What no rule is for is computed by all ranks, of whole values: right, whatever it does."""
        if node.op == "item":
            return self.several[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        made = node.with_inputs([self.whole(i) for i in node.inputs])
        if isinstance(node.result, TensorType):
            return made, OnAllRanks()
        return tuple((b.make("item", (made,), at.ItemAttrs(i)), OnAllRanks()) for i in range(len(node.results)))

    def taken_apart(self, node: Node) -> Held | tuple[Held, ...]:
        """A composite, primitive by primitive: along a divided axis it is sums over ranks; the rest stays divided."""
        parts = decomposition_of(node)
        for part in parts:
            self.place(part)
        found = tuple((self.held[p], self.kinds[p]) for p in parts)
        return found[0] if isinstance(node.result, TensorType) else found

    def local(self, node: Node, inputs: Sequence[Node], attrs: at.Attrs | None = None) -> Node:
        """The node over what this rank has."""
        if attrs is None or attrs == node.attrs:
            return node.with_inputs(inputs)
        return Node(node.op, inputs, attrs, node.name, node.line)

    # -- how a value is held ---------------------------------------------------------------------------------------

    def splits(self, nodes: Sequence[Node]) -> list[Sharded]:
        """How those are divided that are."""
        return [k for k in (self.kinds[n] for n in nodes) if isinstance(k, Sharded)]

    def fits(self, node: Node, split: Sharded) -> bool:
        """Does it divide so?"""
        return divides(node.type.shape, split, self.ranks)

    def whole(self, node: Node) -> Node:
        """A value as all ranks have it."""
        kind = self.kinds[node]
        if isinstance(kind, OnAllRanks):
            return self.held[node]
        if node not in self.wholes:
            with b.origin(node):
                self.wholes[node] = self._reduce(node) if isinstance(kind, PartialTerm) else self._gather(node, kind)
        return self.wholes[node]

    def _reduce(self, node: Node) -> Node:
        """The sum of all terms."""
        own = self.held[node]
        carried = own if own.type.dtype.name in CARRIED else b.cast(own, float32)
        return b.cast(b.make("all_reduce", (carried,), at.GroupAttrs(axis=MODEL)), own.type.dtype)

    def _gather(self, node: Node, split: Sharded) -> Node:
        """All parts of a value, put together."""
        own, shape, axis = self.held[node], node.type.shape, split.axis
        sent = _wire_dtype(own.type.dtype)
        if axis == 0 and split.outer == 1:
            found = b.make("all_gather", (b.cast(own, sent),), at.GroupAttrs(self.ranks, MODEL))
            return b.cast(found, own.type.dtype)
        parts = b.reshape(b.cast(own, sent), (1, *own.type.shape))
        found = b.make("all_gather", (parts,), at.GroupAttrs(self.ranks, MODEL))
        if split.widths:
            return b.cast(self._blocks_joined(found, split), own.type.dtype)
        of_each = inner(shape, split, self.ranks)
        assert of_each is not None
        apart = b.reshape(found, (self.ranks, *shape[:axis], split.outer, of_each, *shape[axis + 1 :]))
        order = (*range(1, axis + 2), 0, *range(axis + 2, apart.type.rank))
        return b.cast(b.reshape(b.permute(apart, order), shape), own.type.dtype)

    def _blocks_joined(self, parts: Node, split: Sharded) -> Node:
        """What each rank has, (ranks, ...), block by block."""
        axis, found, start = split.axis + 1, list[Node](), 0
        for width in split.widths:
            stop = start + width // self.ranks
            block = _slice_axis(parts, axis, start, stop)
            turned = b.permute(block, (*range(1, axis), 0, *range(axis, block.type.rank)))
            shape = block.type.shape
            found.append(b.reshape(turned, (*shape[1:axis], width, *shape[axis + 1 :])))
            start = stop
        return b.concat(found, split.axis)

    def part(self, node: Node, split: Sharded) -> Node:
        """This rank's part of a value."""
        if self.kinds[node] == split:
            return self.held[node]
        key = node, split
        if key not in self.parts:
            with b.origin(node):
                self.parts[key] = self._cut(node, split)
        return self.parts[key]

    def _cut(self, node: Node, split: Sharded) -> Node:
        """A part of what is held otherwise; what repeats or counts is made as large as the part."""
        shape = part_of(node.type.shape, split, self.ranks)
        if node.op == "expand" and isinstance(self.kinds[node], OnAllRanks):
            (x,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
            if split.axis not in a.axes:
                return b.expand_to(self.whole(x), shape, a.axes)
            return b.expand_to(self.part(x, split.at(a.axes.index(split.axis))), shape, a.axes)
        if node.op == "iota" and attrs_of(node, at.IotaAttrs).axis != split.axis:
            return b.iota(shape, attrs_of(node, at.IotaAttrs).axis, node.type.dtype)
        found, whole, axis = self.whole(node), node.type.shape, split.axis
        if split.widths:
            firsts = zip(accumulate(split.widths, initial=0), split.widths, strict=False)
            places = [(first + width // self.ranks * Dim.symbol(MODEL_RANK), width) for first, width in firsts]
            own_blocks = [_slice_axis(found, axis, at, at + width // self.ranks) for at, width in places]
            return b.concat(own_blocks, axis)
        own = inner(whole, split, self.ranks)
        assert own is not None
        if split.outer != 1:  # its blocks, each of which is cut
            found = b.reshape(found, (*whole[:axis], split.outer, own * self.ranks, *whole[axis + 1 :]))
            axis += 1
        first = own * Dim.symbol(MODEL_RANK)
        return b.reshape(_slice_axis(found, axis, first, first + own), shape)


def _slice_axis(x: Node, axis: int, start: Extent, stop: Extent) -> Node:
    """Some places along an axis."""
    before, behind = x.type.shape[:axis], x.type.shape[axis + 1 :]
    starts = (*(0 for _ in before), start, *(0 for _ in behind))
    return b.slice_axes(x, starts, (*before, stop, *behind))


def _wire_dtype(dtype: DType) -> DType:
    """What ranks send elements of a type as."""
    if dtype.name in CARRIED:
        return dtype
    return float32 if dtype.is_float else int32
