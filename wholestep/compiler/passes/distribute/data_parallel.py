"""One step over several ranks: each has rows of its own, and what is summed over the batch is summed over ranks too.

An input that is `divided` holds the rows of one rank.  What is computed row by row stays so; a sum over rows is a share
of the whole sum until `all_reduce` adds the shares of all ranks, as late as nothing but sums and casts stands between.
Sizes of the batch are those of the whole one, and random numbers those of a row's place in it.  So every value without
rows is the same on all ranks, bit for bit, and equals that of one process up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, body_of, rewrite, toposort, with_held_graph
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.type_rules.collectives import BATCH, CARRIED, FIRST, OWN, ROWS, SHARES
from wholestep.compiler.ir.types import Dim, Extent, TensorType, float32, int64, product
from wholestep.compiler.ir.types import divide as quotient
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchSharded,
    Kind,
    Mixed,
    Partial,
    Replicated,
    Several,
    SumOfRatios,
    mentions,
)
from wholestep.compiler.passes.distribute.batch_placement.rules import kind_of
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decomposition_over_leaves
from wholestep.errors import GraphError

# Through these a share stays one: they are linear, and make nothing larger.
LINEAR = frozenset({"add", "sub", "neg", "reshape", "permute", "sum", "where"})
SCALED = frozenset({"mul", "div", "ratio"})  # linear too; but a gradient is scaled for each of its moments
DRAWS = ops_with(Trait.DRAWS)


def divide(graph: IRGraph) -> IRGraph:
    """The step of one rank, with its collectives; a graph without divided inputs and shares as it is."""
    inputs = [n for n in graph.inputs if n.op == "input" and attrs_of(n, at.InputAttrs).divided]
    if not inputs and not any(map(_is_share, graph.nodes)):
        return graph
    keeps = any(u.name.startswith(SHARES) for u in graph.updates)
    batch, whole = str(inputs[0].type.shape[0]) if inputs else "", BATCH if FIRST in graph.symbols else ROWS
    return _Divider(batch, whole, LINEAR | SCALED if keeps else LINEAR).divided(graph)


def _is_share(node: Node) -> bool:
    return node.op == "state" and attrs_of(node, at.StateAttrs).name.startswith(SHARES)


class _Divider:
    def __init__(self, batch: str, whole: str, linear: frozenset[str]) -> None:
        self.batch, self.whole, self.linear = batch, whole, linear  # the rows of this rank, and of all of them
        self.kinds: dict[Node, Kind] = {}
        self.sums: dict[Node, Node] = {}  # shares -> their sums over all ranks
        self.several: dict[Node, tuple[Node, ...]] = {}  # composites that were taken apart -> their results

    def divided(self, graph: IRGraph) -> IRGraph:
        new: dict[Node, Node] = {}
        for node in graph.nodes:
            new[node] = self.placed(node, [new[i] for i in node.inputs])
        return IRGraph(
            tuple(Output(o.name, self.result(new[o.node], f"the output {o.name!r}")) for o in graph.outputs),
            tuple(Update(u.name, self.updated(u.name, new[u.node])) for u in graph.updates),
            tuple(new[i] for i in graph.inputs),
        )

    def updated(self, name: str, node: Node) -> Node:
        """A state's new value; one that holds shares keeps this rank's own."""
        if not name.startswith(SHARES):
            return self.result(node, f"the new value of {name!r}")
        if self.kinds[node] != Partial():
            self.refuse(node, self.kinds[node])
        return node

    def result(self, node: Node, what: str) -> Node:
        """What leaves the step is the same on all ranks."""
        if isinstance(self.kinds[node], BatchSharded):
            raise GraphError(
                f"{what} has a row for each of the batch, and every worker has rows of its own. Leave it out of the "
                "step, or train in one process; predict gives the outputs of all rows."
            )
        return self.summed(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def placed(self, node: Node, inputs: Sequence[Node]) -> Node:
        """The node over what its inputs have become."""
        if node.op == "item" and inputs[0] in self.several:
            return self.several[inputs[0]][attrs_of(node, at.ItemAttrs).index]
        if node.op == "iota" and mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis], self.batch):
            return self.numbered(node)
        if node.op == "write_rows" and isinstance(self.kinds[inputs[1]], BatchSharded):
            return self.written(node.with_inputs([self.summed(i) for i in inputs]))
        made = self.of_whole_batch(node.with_inputs(inputs))
        if made in self.kinds:
            return made
        kind = self.kind(made)
        if not self.stands(made, kind):
            made = made.with_inputs([self.summed(i) for i in made.inputs])
            kind = self.kind(made)
            if _is_refused(kind):
                return self.taken_apart(made, kind)
        self.kinds[made] = kind
        return made

    def kind(self, node: Node) -> Kind:
        if node.op == "size":
            return Replicated()  # of the whole batch by now
        if getattr(node.attrs, "per_worker", False) and isinstance(self.kinds[node.inputs[0]], BatchSharded):
            rows = self.kinds[node.inputs[0]]  # the gradients of its weight and bias are shares, as all are
            return (
                rows if isinstance(node.result, TensorType) else Several((rows, *[Partial()] * (len(node.results) - 1)))
            )
        return Partial() if _is_share(node) else kind_of(node, [self.kinds[i] for i in node.inputs], self.batch)

    def stands(self, node: Node, kind: Kind) -> bool:
        """May a node stand as it is, without shares among its inputs being summed over ranks before?"""
        shares = [i for i in node.inputs if self.kinds[i] == Partial()]
        if _is_refused(kind) or not shares:
            return not _is_refused(kind)
        exact = node.op in self.linear or (node.op == "cast" and node.type.dtype.name in CARRIED)
        return exact and all(_elements(node) <= _elements(i) for i in shares)

    def summed(self, node: Node) -> Node:
        """A value without rows as it is on all ranks."""
        if self.kinds[node] != Partial():
            return node
        if node not in self.sums:
            with b.origin(node):
                carried = node if node.type.dtype.name in CARRIED else b.cast(node, float32)
                total = b.make("all_reduce", (carried,), at.GroupAttrs())
                self.sums[node] = b.cast(total, node.type.dtype)
            for made in (total, self.sums[node]):
                self.kinds[made] = Replicated()
        return self.sums[node]

    def taken_apart(self, node: Node, kind: Kind) -> Node:
        """A composite that mixes rows, primitive by primitive: a batch norm is sums over the batch, then row by row."""
        if node.op not in DECOMPOSITIONS:
            self.refuse(node, kind)
        leaves, parts = decomposition_over_leaves(node)
        new: dict[Node, Node] = dict(zip(leaves, node.inputs, strict=True))
        with b.origin(node):
            for inner in toposort(parts):
                if inner not in new:
                    new[inner] = self.placed(inner, [new[i] for i in inner.inputs])
        if isinstance(node.result, TensorType):
            return new[parts[0]]
        self.several[node], self.kinds[node] = tuple(new[p] for p in parts), Replicated()  # read by items only
        return node

    def refuse(self, node: Node, kind: Kind) -> NoReturn:
        found = kind.kinds if isinstance(kind, Several) else (kind,)
        blamed = next((k for k in found if isinstance(k, Mixed)), None)
        op, why = (node, "is not a sum over the batch") if blamed is None else (blamed.blame, blamed.reason)
        name, line = f" {op.name!r}" if op.name else "", f" (made at {op.line})" if op.line else ""
        raise GraphError(
            f"the step cannot be divided among workers, since `{op.op}`{name}{line} {why}. Write it as sums and means "
            "over the batch of what is computed row by row, or train in one process."
        )

    # -- the whole batch -------------------------------------------------------------------------------------------

    def of_whole_batch(self, node: Node) -> Node:
        """A size as that of all ranks' rows together, random numbers by a row's place among them; in loops, too."""
        body = body_of(node)
        if body is not None:
            return with_held_graph(node, rewrite(body, self.of_whole_batch))
        if node.op == "size":
            extent = attrs_of(node, at.SizeAttrs).extent
            found = _rename_symbol(extent, self.batch, self.whole)
            return node if found == extent else Node("size", (), at.SizeAttrs(found), node.name, node.line)
        if node.op in DRAWS and any(mentions(e, self.batch) for e in node.type.shape):
            return self.drawn(node)
        return node

    def drawn(self, node: Node) -> Node:
        a, shape = node.attrs, node.type.shape
        assert isinstance(a, at.RandomAttrs | at.DropoutAttrs)
        row = quotient(product(shape), Dim.symbol(self.batch))
        if row is None or any(mentions(e, self.batch) for e in shape[1:]):
            self.refuse(node, Mixed(node, "draws random numbers whose first axis is not the batch"))
        return Node(node.op, node.inputs, replace(a, first=a.first + row * Dim.symbol(OWN)), node.name, node.line)

    def numbered(self, node: Node) -> Node:
        """The numbers of rows: those of the whole batch."""
        axis, shape = attrs_of(node, at.IotaAttrs).axis, node.type.shape
        each = quotient(shape[axis], Dim.symbol(self.batch))
        if each is None or mentions(each, self.batch):
            self.refuse(node, Mixed(node, f"numbers {shape[axis]} places, which are not rows of the batch"))
        with b.origin(node):
            first = b.cast(b.size(each * Dim.symbol(OWN)), node.type.dtype)
            made = b.add(node, b.expand_to(first, shape, ()))
        for inner in toposort([made]):
            self.kinds.setdefault(inner, BatchSharded(axis) if inner.type.rank else Replicated())
        return made

    def written(self, node: Node) -> Node:
        """Rows that are kept are those of all ranks, in order: what is 0 but for a rank's own adds up to them."""
        x, rows, start = node.inputs
        each, kind = quotient(rows.type.shape[0], Dim.symbol(self.batch)), self.kinds[rows]
        in_order = (
            kind in (BatchSharded(0), BatchSharded(0, None)) and each is not None and not mentions(each, self.batch)
        )
        if not in_order or Replicated() != self.kinds[x] or Replicated() != self.kinds[start]:
            self.refuse(node, Mixed(node, "keeps rows of the batch in another order than that of the batch"))
        assert each is not None
        with b.origin(node):
            everyones = TensorType((each * Dim.symbol(self.whole), *rows.type.shape[1:]), rows.type.dtype)
            own = b.write_rows(b.full(0, everyones), rows, b.count(each * Dim.symbol(OWN), int64))
            for inner in toposort([own]):
                self.kinds.setdefault(inner, Replicated())
            self.kinds[own] = Partial()
            made = b.write_rows(x, self.summed(own), start)
        self.kinds[made] = Replicated()
        return made


def _is_refused(kind: Kind) -> bool:
    return isinstance(kind, Mixed | SumOfRatios) or (isinstance(kind, Several) and any(map(_is_refused, kind.kinds)))


def _elements(node: Node) -> int:
    """Of a value without rows, at sizes of 64 where one is not known."""
    count = 1
    for extent in node.type.shape:
        count *= extent if isinstance(extent, int) else 64
    return count


def _rename_symbol(extent: Extent, old: str, new: str) -> Extent:
    """The extent with another symbol in the place of one."""
    if not isinstance(extent, Dim) or old not in extent.symbols:
        return extent
    return Dim.of({tuple(sorted(new if n == old else n for n in names)): c for names, c in extent.terms})
