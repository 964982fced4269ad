"""Reshape sinking below norms: elementwise consumers of a norm are computed in the shape of its rows, to fuse with it.

A group norm computes on rows, (batch, groups, elements of a group), and reshapes its result to (batch, channels, ...).
The planner cannot fuse across that reshape: scale, bias and activation would be a separate kernel.  This pass sinks the
reshape below them, if the other inputs have a form in the shape of the rows at no cost:

    f(reshape a, c) = reshape f(a, c in rows)

A broadcast has such a form if its index is a quotient of the index in the row, such as one scalar per channel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.shapes import reshape_quotients
from wholestep.compiler.ir.types import Shape
from wholestep.compiler.passes.layout.merge_batch_axes import (
    REDUCTIONS,
    VIEWS,
    can_fuse_with_producer,
    is_reinterpretation,
    reduced_axis,
)


def sink_row_reshapes(graph: IRGraph) -> IRGraph:
    """Sink reshapes of reduced rows below their elementwise consumers; the same graph if none moves.

    An op stays if it has consumers that could fuse with it, and none of them moves to the shape of the rows.
    """
    readers, stays = graph.consumers(), set[Node]()
    while True:
        new, moved = _attempt(graph, stays)
        useless = _useless_moves(graph, readers, moved)
        if not useless:
            break
        stays |= useless
    if not moved:
        return graph
    return graph.with_nodes(new)


def _attempt(graph: IRGraph, stays: set[Node]) -> tuple[dict[Node, Node], set[Node]]:
    """One round: every possible move, except for the ops in `stays`; the new nodes, and which ops were moved."""
    new: dict[Node, Node] = {}
    moved: set[Node] = set()
    in_rows: set[Node] = set()  # new nodes that are elementwise functions of a row and of its reduction
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
            elif any(i in in_rows or _broadcasts_row_reduction(i, node.type.shape) for i in node.inputs):
                in_rows.add(node)
        new[old] = node
    return new, moved


def _useless_moves(graph: IRGraph, readers: Mapping[Node, Sequence[Node]], moved: set[Node]) -> set[Node]:
    useless: set[Node] = set()
    for old in reversed(graph.nodes):
        consumers = [r for r in readers[old] if can_fuse_with_producer(r)] if old in moved else []
        if consumers and not any(r in moved and r not in useless for r in consumers):
            useless.add(old)
    return useless


def _broadcasts_row_reduction(node: Node, shape: Shape) -> bool:
    """Is the node a broadcast along rows of one scalar per row, computed by a reduction of the row?"""
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
    """The node rewritten as a reshape of a value in the shape of the rows; None if that is not possible."""
    for i in node.inputs:
        if is_reinterpretation(i) and i.inputs[0] in in_rows:
            shape = i.inputs[0].type.shape
            rows = [_in_rows(x, shape) for x in node.inputs]
            if None not in rows:
                return b.reshape(b.make(node.op, [r for r in rows if r is not None], node.attrs), node.type.shape)
    return None


def _in_rows(node: Node, shape: Shape) -> Node | None:
    """A node in the shape of the rows; None if that would cost a copy."""
    if node.type.shape == shape:
        return node
    if node.op == "reshape" and node.inputs[0].type.shape == shape:
        return node.inputs[0]
    if node.op == "expand":
        (base,), axes = node.inputs, attrs_of(node, at.ExpandAttrs).axes
        if base.type.rank == 0:
            return b.expand_to(base, shape, ())
        divisors = reshape_quotients(shape, node.type.shape)
        free = base.op not in (*VIEWS, "iota", "random") and divisors is not None and all(divisors[d] for d in axes)
        return b.reshape(node, shape) if free else None
    return b.reshape(node, shape) if node.op in ops_with(Trait.GIVEN) else None
