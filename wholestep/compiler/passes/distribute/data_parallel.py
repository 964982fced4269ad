"""Data parallelism: rewrites a step over the global batch into the SPMD step of one rank.

A `divided` input is sharded along the batch.  Placements (`placement/`) are propagated through the graph: row-wise
ops stay as they are, and a sum over rows is `Partial` until an `all_reduce`, inserted as late as possible: `Partial`
flows through linear ops that do not enlarge it.  Batch sizes, row numbers and random streams refer to the global batch.
Invariant: every value without a batch axis is bitwise equal on all ranks, and equals the value of one process up to
the order of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, body_of, rewrite, toposort, with_body
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.type_rules.collectives import BATCH, CARRIED, FIRST, OWN, ROWS, SHARES
from wholestep.compiler.ir.types import Dim, Extent, TensorType, float32, int64, product
from wholestep.compiler.ir.types import divide as quotient
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    Replicated,
    Sharded,
    TuplePlacement,
    comparable_size,
    is_refused,
)
from wholestep.compiler.passes.distribute.placement.rules import placement_of
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decomposition_over_leaves
from wholestep.errors import GraphError

# Linear ops that Partial values pass through unreduced; they never enlarge a value.
LINEAR = frozenset({"add", "sub", "neg", "reshape", "permute", "sum", "where"})
# These ops are linear, too, but a gradient is scaled once per moment: each scaled copy would need its own all_reduce.
SCALED = frozenset({"mul", "div", "ratio"})
DRAWS = ops_with(Trait.DRAWS)


def partition_batch(graph: IRGraph) -> IRGraph:
    """The SPMD step of one rank, with its collectives; unchanged if there are no divided inputs and Partial states."""
    inputs = [n for n in graph.inputs if n.op == "input" and attrs_of(n, at.InputAttrs).divided]
    if not inputs and not any(map(_is_partial_state, graph.nodes)):
        return graph
    accumulates = any(u.name.startswith(SHARES) for u in graph.updates)
    batch, global_batch = str(inputs[0].type.shape[0]) if inputs else "", BATCH if FIRST in graph.symbols else ROWS
    return _BatchPartitioner(batch, global_batch, LINEAR | SCALED if accumulates else LINEAR).partition(graph)


def _is_partial_state(node: Node) -> bool:
    return node.op == "state" and attrs_of(node, at.StateAttrs).name.startswith(SHARES)


class _BatchPartitioner:
    def __init__(self, batch: str, global_batch: str, linear: frozenset[str]) -> None:
        # The symbols of the batch size of this rank and of all ranks, and the ops that Partial values pass through.
        self.batch, self.global_batch, self.linear = batch, global_batch, linear
        self.axis = MeshAxis.of_batch(batch)
        self.placements: dict[Node, Placement] = {}
        self.all_reduces: dict[Node, Node] = {}  # Partial node -> its all_reduce
        self.decomposed: dict[Node, tuple[Node, ...]] = {}  # decomposed composite -> its results

    def partition(self, graph: IRGraph) -> IRGraph:
        new: dict[Node, Node] = {}
        for node in graph.nodes:
            new[node] = self.place(node, [new[i] for i in node.inputs])
        return IRGraph(
            tuple(Output(o.name, self.reduce_result(new[o.node], f"the output {o.name!r}")) for o in graph.outputs),
            tuple(Update(u.name, self.new_state(u.name, new[u.node])) for u in graph.updates),
            tuple(new[i] for i in graph.inputs),
        )

    def new_state(self, name: str, node: Node) -> Node:
        """A state's new value: all-reduced, except for states that accumulate Partial values per rank."""
        if not name.startswith(SHARES):
            return self.reduce_result(node, f"the new value of {name!r}")
        if self.placements[node] != Partial():
            self.refuse(node, self.placements[node])
        return node

    def reduce_result(self, node: Node, what: str) -> Node:
        """A value that leaves the step, which must be the same on all ranks."""
        if isinstance(self.placements[node], Sharded):
            raise GraphError(
                f"{what} has a row for each of the batch, and every worker holds different rows. Remove it from the "
                "step, or train in one process; predict returns the outputs of all rows."
            )
        return self.all_reduce(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def place(self, node: Node, inputs: Sequence[Node]) -> Node:
        """Rebuild a node over rewritten inputs, all-reducing Partial inputs if its rule cannot take them."""
        if node.op == "item" and inputs[0] in self.decomposed:
            return self.decomposed[inputs[0]][attrs_of(node, at.ItemAttrs).index]
        if node.op == "iota" and self.axis.mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis]):
            return self.offset_iota(node)
        if node.op == "write_rows" and isinstance(self.placements[inputs[1]], Sharded):
            return self.append_rows(node.with_inputs([self.all_reduce(i) for i in inputs]))
        result = self.with_global_batch(node.with_inputs(inputs))
        if result in self.placements:
            return result
        placement = self.placement_of(result)
        if not self.accepts_partial(result, placement):
            result = result.with_inputs([self.all_reduce(i) for i in result.inputs])
            placement = self.placement_of(result)
            if is_refused(placement):
                return self.decompose(result, placement)
        self.placements[result] = placement
        return result

    def placement_of(self, node: Node) -> Placement:
        if node.op == "size":
            return Replicated()  # the node is rewritten to the global batch size
        if getattr(node.attrs, "per_worker", False) and isinstance(self.placements[node.inputs[0]], Sharded):
            rows = self.placements[node.inputs[0]]  # per-rank statistics; gradients of weight and bias are Partial
            of_parameters = [Partial()] * (len(node.results) - 1)
            return rows if isinstance(node.result, TensorType) else TuplePlacement((rows, *of_parameters))
        if _is_partial_state(node):
            return Partial()
        return placement_of(node, [self.placements[i] for i in node.inputs], self.axis)

    def accepts_partial(self, node: Node, placement: Placement) -> bool:
        """Can a node be evaluated on its Partial inputs, before they are summed over ranks?"""
        partial_inputs = [i for i in node.inputs if self.placements[i] == Partial()]
        if is_refused(placement) or not partial_inputs:
            return not is_refused(placement)
        exact = node.op in self.linear or (node.op == "cast" and node.type.dtype.name in CARRIED)
        return exact and all(comparable_size(node) <= comparable_size(i) for i in partial_inputs)

    def all_reduce(self, node: Node) -> Node:
        """The Replicated form of a Partial value, by an all_reduce (inserted once per value)."""
        if self.placements[node] != Partial():
            return node
        if node not in self.all_reduces:
            with b.origin(node):
                operand = node if node.type.dtype.name in CARRIED else b.cast(node, float32)
                total = b.make("all_reduce", (operand,), at.GroupAttrs())
                self.all_reduces[node] = b.cast(total, node.type.dtype)
            for value in (total, self.all_reduces[node]):
                self.placements[value] = Replicated()
        return self.all_reduces[node]

    def decompose(self, node: Node, placement: Placement) -> Node:
        """Decompose a composite that mixes rows: a batch norm becomes sums over the batch and row-wise ops."""
        if node.op not in DECOMPOSITIONS:
            self.refuse(node, placement)
        leaves, parts = decomposition_over_leaves(node)
        new: dict[Node, Node] = dict(zip(leaves, node.inputs, strict=True))
        with b.origin(node):
            for inner in toposort(parts):
                if inner not in new:
                    new[inner] = self.place(inner, [new[i] for i in inner.inputs])
        if isinstance(node.result, TensorType):
            return new[parts[0]]
        self.decomposed[node], self.placements[node] = tuple(new[p] for p in parts), Replicated()  # read by `item` only
        return node

    def refuse(self, node: Node, placement: Placement) -> NoReturn:
        placements = placement.results if isinstance(placement, TuplePlacement) else (placement,)
        blamed = next((k for k in placements if isinstance(k, Mixed)), None)
        op, why = (node, "is not a sum over the batch") if blamed is None else (blamed.blame, blamed.reason)
        name, line = f" {op.name!r}" if op.name else "", f" (created at {op.line})" if op.line else ""
        raise GraphError(
            f"the step cannot be divided among workers, since `{op.op}`{name}{line} {why}. Write it as sums and means "
            "over the batch of row-wise values, or train in one process."
        )

    # -- the global batch ------------------------------------------------------------------------------------------

    def with_global_batch(self, node: Node) -> Node:
        """Batch sizes and random streams refer to the global batch, also inside loop bodies."""
        body = body_of(node)
        if body is not None:
            return with_body(node, rewrite(body, self.with_global_batch))
        if node.op == "size":
            extent = attrs_of(node, at.SizeAttrs).extent
            global_extent = _rename_symbol(extent, self.batch, self.global_batch)
            attrs = at.SizeAttrs(global_extent)
            return node if global_extent == extent else Node("size", (), attrs, node.name, node.line)
        if node.op in DRAWS and any(self.axis.mentions(e) for e in node.type.shape):
            return self.offset_random(node)
        return node

    def offset_random(self, node: Node) -> Node:
        """Offset a counter-based random stream by the elements of the rows of lower ranks."""
        a, shape = node.attrs, node.type.shape
        assert isinstance(a, at.RandomAttrs | at.DropoutAttrs)
        row = quotient(product(shape), Dim.symbol(self.batch))
        if row is None or any(self.axis.mentions(e) for e in shape[1:]):
            self.refuse(node, Mixed(node, "draws random numbers whose first axis is not the batch"))
        return Node(node.op, node.inputs, replace(a, first=a.first + row * Dim.symbol(OWN)), node.name, node.line)

    def offset_iota(self, node: Node) -> Node:
        """An iota along the batch counts from this rank's first row in the global batch."""
        axis, shape = attrs_of(node, at.IotaAttrs).axis, node.type.shape
        each = quotient(shape[axis], Dim.symbol(self.batch))
        if each is None or self.axis.mentions(each):
            self.refuse(node, Mixed(node, f"numbers {shape[axis]} positions, which are not rows of the batch"))
        with b.origin(node):
            first = b.cast(b.size(each * Dim.symbol(OWN)), node.type.dtype)
            row_numbers = b.add(node, b.expand_to(first, shape, ()))
        for inner in toposort([row_numbers]):
            self.placements.setdefault(inner, Sharded(axis) if inner.type.rank else Replicated())
        return row_numbers

    def append_rows(self, node: Node) -> Node:
        """Append the rows of all ranks in global order: an all-gather as an all_reduce of zero-padded rows."""
        x, rows, start = node.inputs
        each, placement = quotient(rows.type.shape[0], Dim.symbol(self.batch)), self.placements[rows]
        in_order = placement in (Sharded(0), Sharded(0, uniform=True))
        replicated = self.placements[x] == self.placements[start] == Replicated()
        if not in_order or not replicated or each is None or self.axis.mentions(each):
            self.refuse(node, Mixed(node, "stores rows of the batch in a different order than that of the batch"))
        with b.origin(node):
            global_rows = TensorType((each * Dim.symbol(self.global_batch), *rows.type.shape[1:]), rows.type.dtype)
            padded = b.write_rows(b.full(0, global_rows), rows, b.count(each * Dim.symbol(OWN), int64))
            for inner in toposort([padded]):
                self.placements.setdefault(inner, Replicated())
            self.placements[padded] = Partial()
            appended = b.write_rows(x, self.all_reduce(padded), start)
        self.placements[appended] = Replicated()
        return appended


def _rename_symbol(extent: Extent, old: str, new: str) -> Extent:
    """The extent with one symbol renamed."""
    if not isinstance(extent, Dim) or old not in extent.symbols:
        return extent
    return Dim.of({tuple(sorted(new if n == old else n for n in names)): c for names, c in extent.terms})
