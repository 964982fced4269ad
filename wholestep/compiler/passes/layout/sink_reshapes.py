"""Rows: what follows a norm element by element stays in the norm's own rows.

A group norm makes rows of groups, (batch, groups, elements of a group), and gives them back as (batch, channels, ...).
To the planner that is another reading of memory: weight, bias and activation would be a kernel of their own.  This pass
moves the reshape behind them, where the other inputs have a form in rows that costs nothing:

    f(reshape a, c) = reshape f(a, c in rows)

A value repeated along axes has one if a place in it is a quotient of the place in the row: one number per channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.shapes import quotients
from wholestep.compiler.ir.types import Shape
from wholestep.compiler.passes.layout.merge_batch_axes import (
    REDUCTIONS,
    VIEWS,
    is_reinterpretation,
    may_follow,
    reduced_axis,
)


def keep_rows(graph: IRGraph) -> IRGraph:
    """Move reshapes of rows that were reduced behind the pointwise ops that follow; the same graph where none moves.

    An op all of whose followers could share a kernel with it, and none of them in rows, stays with them.
    """
    readers, stays = graph.consumers(), set[Node]()
    while True:
        new, moved = _attempt(graph, stays)
        in_vain = _useless_moves(graph, readers, moved)
        if not in_vain:
            break
        stays |= in_vain
    if not moved:
        return graph
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _attempt(graph: IRGraph, stays: set[Node]) -> tuple[dict[Node, Node], set[Node]]:
    """The graph with every op moved that can be, but those that stay; and which were moved."""
    new: dict[Node, Node] = {}
    moved: set[Node] = set()
    in_rows: set[Node] = set()  # new nodes, computed element by element from a row and what it was reduced to
    fixed = stays | {u.node for u in graph.updates}
    for old in graph.nodes:
        node = old.with_inputs([new[i] for i in old.inputs])
        if old.is_elementwise:
            with b.origin(old):
                reshaped = None if old in fixed else _sink_reshape(node, in_rows)
            if reshaped is not None:
                node = reshaped
                moved.add(old)
                in_rows.add(node.inputs[0])
            elif any(i in in_rows or _spreads_a_reduction(i, node.type.shape) for i in node.inputs):
                in_rows.add(node)
        new[old] = node
    return new, moved


def _useless_moves(graph: IRGraph, readers: Mapping[Node, Sequence[Node]], moved: set[Node]) -> set[Node]:
    in_vain: set[Node] = set()
    for old in reversed(graph.nodes):
        followers = [r for r in readers[old] if may_follow(r)] if old in moved else []
        if followers and not any(r in moved and r not in in_vain for r in followers):
            in_vain.add(old)
    return in_vain


def _spreads_a_reduction(node: Node, shape: Shape) -> bool:
    """One number per row, made of the row: repeated along it."""
    last = len(shape) - 1
    if node.op != "expand" or attrs_of(node, at.ExpandAttrs).axes != tuple(range(last)):
        return False
    (x,) = node.inputs
    while x.is_elementwise or x.op == "expand":
        if not x.inputs:
            return False
        x = max(x.inputs, key=lambda i: i.type.rank)
    return x.op in REDUCTIONS and reduced_axis(x) == x.inputs[0].type.rank - 1


def _sink_reshape(node: Node, in_rows: set[Node]) -> Node | None:
    """The node as a reshape of its form in rows; None where it has none."""
    for i in node.inputs:
        if is_reinterpretation(i) and i.inputs[0] in in_rows:
            shape = i.inputs[0].type.shape
            rows = [_in_rows(x, shape) for x in node.inputs]
            if None not in rows:
                return b.reshape(b.make(node.op, [r for r in rows if r is not None], node.attrs), node.type.shape)
    return None


def _in_rows(node: Node, shape: Shape) -> Node | None:
    """A node in the shape of the rows; None where that would cost something."""
    if node.type.shape == shape:
        return node
    if node.op == "reshape" and node.inputs[0].type.shape == shape:
        return node.inputs[0]
    if node.op == "expand":
        (base,), kept = node.inputs, attrs_of(node, at.ExpandAttrs).axes
        if base.type.rank == 0:
            return b.expand_to(base, shape, ())
        places = quotients(shape, node.type.shape)
        free = base.op not in (*VIEWS, "iota", "random") and places is not None and all(places[d] for d in kept)
        return b.reshape(node, shape) if free else None
    return b.reshape(node, shape) if node.op in ops_with(Trait.GIVEN) else None
