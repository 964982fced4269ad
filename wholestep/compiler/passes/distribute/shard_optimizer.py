"""Optimizer states divided among ranks: each rank has a part of them, and updates its part of the weights.

A gradient is a sum over ranks, and what follows is element by element: of the sum a rank needs its own part alone
(`reduce_scatter`), of the states it has that part, and what it makes of a weight all ranks put together (`all_gather`).
So ranks send what an `all_reduce` of the gradients sends, and compute the same bits.  A sum over all elements of such a
part, as that of a norm, is added up over ranks: its order is another one.

What is not element by element leaves a state, and what meets it, as it is.
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
from wholestep.compiler.ir.state_partition import as_divided, part_shape
from wholestep.compiler.ir.type_rules.collectives import CARRIED, RANK
from wholestep.compiler.ir.types import Dim, Shape, TensorType, int32
from wholestep.compiler.target import Target
from wholestep.errors import GraphError

LEAST = 256  # elements: less is kept whole, since a collective of its own costs more than it saves


def shard(graph: IRGraph, target: Target | None = None) -> IRGraph:
    """The step of a rank that has parts of the states which are marked; a graph without them as it is.

    A state is cut by rows as it is stored: where a target stores all of them as they are seen, those are its own rows.
    """
    marked = [n for n in graph.nodes if n.is_state and attrs_of(n, at.StateAttrs).parts]
    if not marked:
        return graph
    ranks = attrs_of(marked[0], at.StateAttrs).parts
    found = _Divisible(graph, marked, turns=target is None or target.blocks_columns)
    if not found.states and any(u.name in {_name(n) for n in marked} for u in graph.updates):
        _refuse(marked)
    return _Sharder(graph, found, ranks).sharded()


def _refuse(marked: Iterable[Node]) -> None:
    names = [_name(n) for n in marked]
    raise GraphError(
        f"shard='optimizer' divides what is updated element by element, and none of {', '.join(map(repr, names[:4]))}"
        f"{', ...' if len(names) > 4 else ''} is, or all have less than {LEAST} elements. Train with SGD and momentum, "
        "Adam, AdamW, Lion or RMSprop, or leave shard= out."
    )


def _name(node: Node) -> str:
    return attrs_of(node, at.StateAttrs).name


class _Divisible:
    """Which values a rank needs a part of: `origins` says of each from which sources, as bits, it is computed.

    Sources are states and sums over ranks.  Those whose values are needed as a whole somewhere are none.
    """

    def __init__(self, graph: IRGraph, marked: Iterable[Node], turns: bool) -> None:
        self.graph, self.marked, self._turns = graph, frozenset(map(_name, marked)), turns
        sums = [n for n in graph.nodes if _is_sum_of_ranks(n)]
        self.sources = [n for n in (*marked, *sums) if _is_large(n)]
        self.leaves = {_name(n): n for n in graph.nodes if n.is_state}
        self.updates: dict[Node, list[str]] = {}
        for u in graph.updates:
            self.updates.setdefault(u.node, []).append(u.name)
        self.origins: dict[Node, int] = {}
        while bad := self._whole_sources():
            self.sources = [s for i, s in enumerate(self.sources) if not bad >> i & 1]
        self.states = {_name(s) for s in self.sources if s.is_state}

    def is_gathered(self, node: Node) -> bool:
        """Is it the new value of a state that every rank has as a whole?"""
        return node in self.origins and any(name not in self.states for name in self.updates.get(node, ()))

    def is_part(self, node: Node) -> bool:
        """Has a rank its own part of it alone?"""
        return node in self.origins and not self.is_gathered(node)

    def is_by_columns(self, state: str) -> bool:
        """Is a state stored by columns?"""
        return self._turns and attrs_of(self.leaves[state], at.StateAttrs).by_columns

    def by_columns(self, node: Node) -> bool:
        """Are the states that it is about stored by columns?"""
        return self._columns[self.origins[node]]

    def _whole_sources(self) -> int:
        """The sources that are none, as bits."""
        self.states = {_name(s) for s in self.sources if s.is_state}
        self.origins = {s: 1 << i for i, s in enumerate(self.sources)}
        bad = 0
        for node in self.graph.nodes:
            before = [i for i in node.inputs if self.is_part(i)]
            if not before or node in self.origins:
                bad |= reduce(or_, (self.origins[i] for i in before), 0)  # a sum over ranks of such a sum
                continue
            bits = reduce(or_, (self.origins[i] for i in before))
            if node.is_elementwise:
                self.origins[node] = bits
            elif not _is_total(node):
                bad |= bits
        for output in self.graph.outputs:
            bad |= 0 if self.is_gathered(output.node) else self.origins.get(output.node, 0)
        for node, names in self.updates.items():
            if any(name in self.marked - self.states for name in names):
                bad |= self.origins.get(node, 0)  # it has to be whole, and nobody would gain anything
        return bad | self._at_odds()

    def _at_odds(self) -> int:
        """Sources that lead to no state, or to states that are stored in different ways."""
        groups: list[tuple[int, set[bool], bool]] = []
        for node, bits in self.origins.items():
            names = [*self.updates.get(node, ()), *([_name(node)] if node.is_state else ())]
            group = bits, set(map(self.is_by_columns, names)), bool(names)
            apart = [g for g in groups if not g[0] & bits]
            for met in (g for g in groups if g[0] & bits):
                group = group[0] | met[0], group[1] | met[1], group[2] or met[2]
            groups = [*apart, group]
        self._columns = {o: True in columns for o in self.origins.values() for bits, columns, _ in groups if bits & o}
        return reduce(or_, (bits for bits, columns, _ in groups if len(columns) != 1), 0)


def _is_sum_of_ranks(node: Node) -> bool:
    """Is it a sum over the ranks that have different rows?"""
    return node.op == "all_reduce" and attrs_of(node, at.GroupAttrs).axis == DATA


def _is_large(node: Node) -> bool:
    elements = node.type.elements
    return node.type.rank > 0 and isinstance(elements, int) and elements >= LEAST


def _is_total(node: Node) -> bool:
    """Is it a sum over all elements, of a type that ranks can add?"""
    return node.op == "sum" and node.type.rank == 0 and node.type.dtype.name in CARRIED


class _Sharder:
    """`whole` and `parts` hold what stands for a node, and for this rank's part of it, in the new graph."""

    def __init__(self, graph: IRGraph, found: _Divisible, ranks: int) -> None:
        self.graph, self.found, self.ranks = graph, found, ranks
        self.whole: dict[Node, Node] = {}
        self.parts: dict[tuple[Node, bool], Node] = {}

    def sharded(self) -> IRGraph:
        for node in self.graph.nodes:
            with b.origin(node):
                if not self.found.is_part(node):
                    self.whole[node] = self._whole(node)
        return IRGraph(
            tuple(Output(o.name, self.whole[o.node]) for o in self.graph.outputs),
            tuple(Update(u.name, self._update_state(u)) for u in self.graph.updates),
            tuple(self.whole[i] for i in self.graph.inputs),
        )

    def _update_state(self, update: Update) -> Node:
        if update.name not in self.found.states:
            return self.whole[update.node]
        return self._part(update.node, self.found.is_by_columns(update.name))

    def _whole(self, node: Node) -> Node:
        if self.found.is_gathered(node):
            return self._gather(node)
        if node.is_state and attrs_of(node, at.StateAttrs).parts:  # it stays whole
            return Node(node.op, (), replace(attrs_of(node, at.StateAttrs), parts=0), node.name, node.line)
        if _is_total(node) and self.found.is_part(node.inputs[0]):
            return self._total(node)
        return node.with_inputs([self.whole[i] for i in node.inputs])

    def _gather(self, node: Node) -> Node:
        """All parts of a value, put together."""
        by_columns = self.found.by_columns(node)
        divided = as_divided(_shape(node), by_columns, self.ranks)
        part = self._part(node, by_columns)
        made = b.make("all_gather", (part,), at.GroupAttrs(self.ranks))
        if made.type.shape != divided:
            made = b.slice_axes(made, (0,) * len(divided), divided)
        turned = by_columns and node.type.rank == 2
        made = b.reshape(made, tuple(reversed(node.type.shape)) if turned else node.type.shape)
        return b.permute(made, (1, 0)) if turned else made

    def _total(self, node: Node) -> Node:
        """A sum over all elements, of which each rank adds its own."""
        (x,) = node.inputs
        by_columns = self.found.by_columns(x)
        part, rows = self._part(x, by_columns), as_divided(_shape(x), by_columns, self.ranks)[0]
        own = part.type.shape[0]
        if own * self.ranks != rows:  # what fills up the last part does not count
            first = b.cast(b.size(own * Dim.symbol(RANK)), int32)
            number = b.add(b.iota(part.type.shape, 0), b.expand_to(first, part.type.shape, ()))
            there = b.less(number, b.full(rows, TensorType(part.type.shape, int32)))
            part = b.where(there, part, b.zeros_like(part))
        share = b.make("sum", (part,), replace(attrs_of(node, at.SumAttrs), axes=tuple(range(part.type.rank))))
        return b.make("all_reduce", (share,), at.GroupAttrs())

    # -- parts -----------------------------------------------------------------------------------------------------

    def _part(self, node: Node, by_columns: bool) -> Node:
        """This rank's part of a value."""
        key = node, by_columns
        if key not in self.parts:
            with b.origin(node):
                self.parts[key] = self._make_part(node, by_columns)
        return self.parts[key]

    def _make_part(self, node: Node, by_columns: bool) -> Node:
        shape = part_shape(_shape(node), by_columns, self.ranks)
        own = node in self.found.origins
        if own and node.is_state:
            a = attrs_of(node, at.StateAttrs)
            held = replace(a, type=TensorType(shape, a.type.dtype), whole=a.whole or a.type.shape)
            return Node(node.op, (), held, node.name, node.line)
        if own and _is_sum_of_ranks(node):
            given = self._pad_to_parts(self.whole[node.inputs[0]], by_columns)
            return b.make("reduce_scatter", (given,), at.GroupAttrs(self.ranks))
        if node.is_elementwise and node.inputs:
            parts = [self._part(i, by_columns) for i in node.inputs]
            return Node(node.op, parts, node.attrs, node.name, node.line)
        if node.op == "expand" and not node.inputs[0].type.rank:
            return b.expand_to(self.whole[node.inputs[0]], shape, ())
        filled, first = self._pad_to_parts(self.whole[node], by_columns), shape[0] * Dim.symbol(RANK)
        rest: Shape = shape[1:]
        return b.slice_axes(filled, (first, *(0 for _ in rest)), (first + shape[0], *rest))

    def _pad_to_parts(self, node: Node, by_columns: bool) -> Node:
        """A whole value as ranks divide it, the last part as large as the others."""
        divided = as_divided(_shape(node), by_columns, self.ranks)
        seen = _transpose(node) if by_columns and node.type.rank == 2 else node
        more = -divided[0] % self.ranks
        return b.pad(b.reshape(seen, divided), (0,) * len(divided), (more, *(0 for _ in divided[1:])))


def _transpose(node: Node) -> Node:
    """The transpose of a matrix; that of a product has its operands exchanged, and adds the same in the same order."""
    if node.op == "matmul":
        a, (x, y) = attrs_of(node, at.MatmulAttrs), node.inputs
        turned = at.MatmulAttrs(not a.transpose_b, not a.transpose_a, a.accumulate)
        return Node(node.op, (y, x), turned, node.name, node.line)
    if node.op in ("add", "cast"):
        return Node(node.op, [_transpose(i) for i in node.inputs], node.attrs, node.name, node.line)
    return b.permute(node, (1, 0))


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(int(e) for e in node.type.shape)
