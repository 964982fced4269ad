"""ZeRO-1: optimizer states are sharded over the data axis, and each rank updates its shard of the weights.

The `all_reduce` of a gradient becomes a `reduce_scatter`; the elementwise update runs on shards of gradient, states and
weight; the new weight is an `all_gather`.  It sends as many bytes as the `all_reduce`, and the result has the same
bits.  A full sum of a sharded value (a norm) is a local sum plus an `all_reduce`: it adds in a different order.

States whose update is not elementwise (Adafactor, Muon) stay replicated, with everything computed from them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from operator import or_

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.mesh import DATA
from wholestep.compiler.ir.state_partition import shard_shape, sharded_view_shape
from wholestep.compiler.ir.type_rules.collectives import CARRIED, RANK
from wholestep.compiler.ir.types import Dim, Shape, TensorType, int32
from wholestep.compiler.target import Target
from wholestep.errors import GraphError

MIN_SHARDED_ELEMENTS = 256  # elements; smaller states stay replicated, since their collective costs more than it saves


def shard_optimizer_states(graph: IRGraph, target: Target | None = None) -> IRGraph:
    """The step of a rank that holds shards of the marked states; a graph without marked states is unchanged.

    A state is sharded along the rows of its storage: the columns of a weight that the target stores by columns.
    """
    marked = [n for n in graph.nodes if n.is_state and attrs_of(n, at.StateAttrs).parts]
    if not marked:
        return graph
    ranks = attrs_of(marked[0], at.StateAttrs).parts
    divisible = _ShardableValues(graph, marked, stores_columns=target is None or target.blocks_columns)
    if not divisible.states and any(u.name in {_name(n) for n in marked} for u in graph.updates):
        _refuse(marked)
    return _Sharder(graph, divisible, ranks).shard_graph()


def _refuse(marked: Iterable[Node]) -> None:
    names = [_name(n) for n in marked]
    raise GraphError(
        f"shard='optimizer' divides states with an elementwise update, and none of {', '.join(map(repr, names[:4]))}"
        f"{', ...' if len(names) > 4 else ''} has one, or all have fewer than {MIN_SHARDED_ELEMENTS} elements. "
        "Train with SGD and momentum, Adam, AdamW, Lion or RMSprop, or omit shard=."
    )


def _name(node: Node) -> str:
    return attrs_of(node, at.StateAttrs).name


class _ShardableValues:
    """Which values can be sharded: forward data flow from the sources (marked states and sums over ranks).

    `origins` maps a value to the set of its sources, as a bit mask.  A source from which a value is computed that some
    op needs in full is removed, and the analysis repeats until nothing changes.
    """

    def __init__(self, graph: IRGraph, marked: Iterable[Node], stores_columns: bool) -> None:
        self.graph, self.marked, self._stores_columns = graph, frozenset(map(_name, marked)), stores_columns
        sums = [n for n in graph.nodes if _is_sum_of_ranks(n)]
        self.sources = [n for n in (*marked, *sums) if _is_large(n)]
        self.leaves = {_name(n): n for n in graph.nodes if n.is_state}
        self.updates: dict[Node, list[str]] = {}
        for u in graph.updates:
            self.updates.setdefault(u.node, []).append(u.name)
        self.origins: dict[Node, int] = {}
        while rejected := self._sources_to_replicate():
            self.sources = [s for i, s in enumerate(self.sources) if not rejected >> i & 1]
        self.states = {_name(s) for s in self.sources if s.is_state}

    def is_gathered(self, node: Node) -> bool:
        """Is the node the new value of a replicated state (a weight), so that its shards are all-gathered?"""
        return node in self.origins and any(name not in self.states for name in self.updates.get(node, ()))

    def is_part(self, node: Node) -> bool:
        """Does a rank hold only its shard of this value?"""
        return node in self.origins and not self.is_gathered(node)

    def is_by_columns(self, state: str) -> bool:
        """Is the state stored by columns?"""
        return self._stores_columns and attrs_of(self.leaves[state], at.StateAttrs).by_columns

    def by_columns(self, node: Node) -> bool:
        """Are the states that share sources with this value stored by columns?"""
        return self._columns[self.origins[node]]

    def _sources_to_replicate(self) -> int:
        """One round of the data flow: the sources that must stay replicated, as a bit mask."""
        self.states = {_name(s) for s in self.sources if s.is_state}
        self.origins = {s: 1 << i for i, s in enumerate(self.sources)}
        rejected = 0
        for node in self.graph.nodes:
            sharded_inputs = [i for i in node.inputs if self.is_part(i)]
            if not sharded_inputs or node in self.origins:
                # nothing to propagate, or a source computed from another one: an all_reduce of a sharded value
                rejected |= reduce(or_, (self.origins[i] for i in sharded_inputs), 0)
                continue
            bits = reduce(or_, (self.origins[i] for i in sharded_inputs))
            if node.is_elementwise:
                self.origins[node] = bits
            elif not _is_total(node):
                rejected |= bits
        for output in self.graph.outputs:
            rejected |= 0 if self.is_gathered(output.node) else self.origins.get(output.node, 0)
        for node, names in self.updates.items():
            if any(name in self.marked - self.states for name in names):
                rejected |= self.origins.get(node, 0)  # the state stays replicated: gathering its update saves nothing
        return rejected | self._inconsistent_sources()

    def _inconsistent_sources(self) -> int:
        """Sources that reach no state, or states of both storage orders: found by merging overlapping source sets."""
        groups: list[tuple[int, set[bool], bool]] = []
        for node, bits in self.origins.items():
            names = [*self.updates.get(node, ()), *([_name(node)] if node.is_state else ())]
            group = bits, set(map(self.is_by_columns, names)), bool(names)
            disjoint = [g for g in groups if not g[0] & bits]
            for overlapping in (g for g in groups if g[0] & bits):
                group = group[0] | overlapping[0], group[1] | overlapping[1], group[2] or overlapping[2]
            groups = [*disjoint, group]
        self._columns = {o: True in columns for o in self.origins.values() for bits, columns, _ in groups if bits & o}
        return reduce(or_, (bits for bits, columns, _ in groups if len(columns) != 1), 0)


def _is_sum_of_ranks(node: Node) -> bool:
    """Is the node an all_reduce over the data axis?"""
    return node.op == "all_reduce" and attrs_of(node, at.GroupAttrs).axis == DATA


def _is_large(node: Node) -> bool:
    elements = node.type.elements
    return node.type.rank > 0 and isinstance(elements, int) and elements >= MIN_SHARDED_ELEMENTS


def _is_total(node: Node) -> bool:
    """Is the node a sum over all elements, of a dtype that collectives can add?"""
    return node.op == "sum" and node.type.rank == 0 and node.type.dtype.name in CARRIED


class _Sharder:
    """Rebuilds the graph: `full` maps a node to its full value, `shards` to this rank's shard of it."""

    def __init__(self, graph: IRGraph, shardable: _ShardableValues, ranks: int) -> None:
        self.graph, self.shardable, self.ranks = graph, shardable, ranks
        self.full: dict[Node, Node] = {}
        self.shards: dict[tuple[Node, bool], Node] = {}

    def shard_graph(self) -> IRGraph:
        for node in self.graph.nodes:
            with b.origin(node):
                if not self.shardable.is_part(node):
                    self.full[node] = self._full(node)
        return IRGraph(
            tuple(Output(o.name, self.full[o.node]) for o in self.graph.outputs),
            tuple(Update(u.name, self._update_state(u)) for u in self.graph.updates),
            tuple(self.full[i] for i in self.graph.inputs),
        )

    def _update_state(self, update: Update) -> Node:
        if update.name not in self.shardable.states:
            return self.full[update.node]
        return self._shard(update.node, self.shardable.is_by_columns(update.name))

    def _full(self, node: Node) -> Node:
        if self.shardable.is_gathered(node):
            return self._gather(node)
        if node.is_state and attrs_of(node, at.StateAttrs).parts:  # a state that was marked, but stays replicated
            return Node(node.op, (), replace(attrs_of(node, at.StateAttrs), parts=0), node.name, node.line)
        if _is_total(node) and self.shardable.is_part(node.inputs[0]):
            return self._total(node)
        return node.with_inputs([self.full[i] for i in node.inputs])

    def _gather(self, node: Node) -> Node:
        """All-gather the shards of a value; drops the padding of the last shard."""
        by_columns = self.shardable.by_columns(node)
        divided = sharded_view_shape(_shape(node), by_columns, self.ranks)
        shard = self._shard(node, by_columns)
        gathered = b.make("all_gather", (shard,), at.GroupAttrs(self.ranks))
        if gathered.type.shape != divided:
            gathered = b.slice_axes(gathered, (0,) * len(divided), divided)
        transposed = by_columns and node.type.rank == 2
        gathered = b.reshape(gathered, tuple(reversed(node.type.shape)) if transposed else node.type.shape)
        return b.permute(gathered, (1, 0)) if transposed else gathered

    def _total(self, node: Node) -> Node:
        """A sum over all elements: each rank sums its shard, then an all_reduce."""
        (x,) = node.inputs
        by_columns = self.shardable.by_columns(x)
        shard, rows = self._shard(x, by_columns), sharded_view_shape(_shape(x), by_columns, self.ranks)[0]
        rows_per_rank = shard.type.shape[0]
        if rows_per_rank * self.ranks != rows:  # mask the padding of the last shard
            first = b.cast(b.size(rows_per_rank * Dim.symbol(RANK)), int32)
            number = b.add(b.iota(shard.type.shape, 0), b.expand_to(first, shard.type.shape, ()))
            is_valid = b.less(number, b.full(rows, TensorType(shard.type.shape, int32)))
            shard = b.where(is_valid, shard, b.zeros_like(shard))
        local_sum = b.make("sum", (shard,), replace(attrs_of(node, at.SumAttrs), axes=tuple(range(shard.type.rank))))
        return b.make("all_reduce", (local_sum,), at.GroupAttrs())

    # -- parts -----------------------------------------------------------------------------------------------------

    def _shard(self, node: Node, by_columns: bool) -> Node:
        """This rank's shard of a value."""
        key = node, by_columns
        if key not in self.shards:
            with b.origin(node):
                self.shards[key] = self._compute_shard(node, by_columns)
        return self.shards[key]

    def _compute_shard(self, node: Node, by_columns: bool) -> Node:
        shape = shard_shape(_shape(node), by_columns, self.ranks)
        is_sharded = node in self.shardable.origins
        if is_sharded and node.is_state:
            a = attrs_of(node, at.StateAttrs)
            shard = replace(a, type=TensorType(shape, a.type.dtype), whole=a.whole or a.type.shape)
            return Node(node.op, (), shard, node.name, node.line)
        if is_sharded and _is_sum_of_ranks(node):
            padded = self._pad_to_shards(self.full[node.inputs[0]], by_columns)
            return b.make("reduce_scatter", (padded,), at.GroupAttrs(self.ranks))
        if node.is_elementwise and node.inputs:
            shards = [self._shard(i, by_columns) for i in node.inputs]
            return Node(node.op, shards, node.attrs, node.name, node.line)
        if node.op == "expand" and not node.inputs[0].type.rank:
            return b.expand_to(self.full[node.inputs[0]], shape, ())
        padded, first = self._pad_to_shards(self.full[node], by_columns), shape[0] * Dim.symbol(RANK)
        rest: Shape = shape[1:]
        return b.slice_axes(padded, (first, *(0 for _ in rest)), (first + shape[0], *rest))

    def _pad_to_shards(self, node: Node, by_columns: bool) -> Node:
        """A full value in the shape that is sharded, with its rows padded to a multiple of the number of ranks."""
        divided = sharded_view_shape(_shape(node), by_columns, self.ranks)
        stored = _transpose(node) if by_columns and node.type.rank == 2 else node
        padding = -divided[0] % self.ranks
        return b.pad(b.reshape(stored, divided), (0,) * len(divided), (padding, *(0 for _ in divided[1:])))


def _transpose(node: Node) -> Node:
    """The transpose of a matrix; (a @ b).T is computed as b.T @ a.T, which adds the same terms in the same order."""
    if node.op == "matmul":
        a, (x, y) = attrs_of(node, at.MatmulAttrs), node.inputs
        attrs = at.MatmulAttrs(not a.transpose_b, not a.transpose_a, a.accumulate)
        return Node(node.op, (y, x), attrs, node.name, node.line)
    if node.op in ("add", "cast"):
        return Node(node.op, [_transpose(i) for i in node.inputs], node.attrs, node.name, node.line)
    return b.permute(node, (1, 0))


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(e) for e in node.type.shape)
