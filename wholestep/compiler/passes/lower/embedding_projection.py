"""Rows that are looked up and then multiplied: the table is multiplied instead, where it has fewer rows.

    table[index] · W     = (table · W)[index]
    table[index] + b     = (table + b)[index]         where the table was just made by the first law

The first layer over an embedding of 65 letters multiplies 65 rows, not one for every letter of the batch, and neither
does its gradient: rows with the same index are added up before they are multiplied.  The rows themselves have the same
bits either way; gradients are the same sums in another order.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.types import Dim, Extent, product

ASSUMED = 8  # a symbolic dimension counts as this much: what is decided must not depend on the batch
WORTH = 2  # times as many rows looked up as there are


def project_tables(graph: IRGraph) -> IRGraph:
    """Multiply tables instead of the rows looked up in them."""
    if not any(n.op == "gather" for n in graph.nodes):
        return graph
    made: set[Node] = set()

    def rule(node: Node) -> Node:
        with b.origin(node):
            found = (
                _project_table(node) if node.op == "matmul" else _shift_table(node, made) if node.op == "add" else None
            )
        if found is None:
            return node
        made.add(_lookup(found))
        return found

    return rewrite(graph, rule)


def _lookup(node: Node) -> Node:
    """What a node is another shape of."""
    while node.op == "reshape":
        (node,) = node.inputs
    return node


def _project_table(node: Node) -> Node | None:
    attrs, (rows, weight) = attrs_of(node, at.MatmulAttrs), node.inputs
    found = _lookup(rows)
    if found.op == "cast" and found.type.dtype.is_half:  # rows of a product in half precision
        found = _lookup(found.inputs[0])
    if attrs.transpose_a or node.type.rank != 2 or found.op != "gather" or attrs_of(found, at.GatherAttrs).axis != 0:
        return None
    table, index = found.inputs
    whole_rows = table.type.rank == 2 and rows.type.shape[-1] == table.type.shape[-1]
    if not whole_rows or WORTH * _size(table.type.shape[0]) > _size(product(index.type.shape)):
        return None
    product_ = b.matmul(b.cast(table, weight.type.dtype), weight, transpose_b=attrs.transpose_b)
    return b.reshape(b.gather(product_, index, 0), node.type.shape)


def _shift_table(node: Node, made: set[Node]) -> Node | None:
    rows, shift = node.inputs
    found = _lookup(rows)
    if found not in made or shift.op != "expand" or attrs_of(shift, at.ExpandAttrs).axes != (node.type.rank - 1,):
        return None
    table, index = found.inputs
    if rows.type.shape[-1] != table.type.shape[-1]:
        return None
    moved = b.add(table, b.expand_to(shift.inputs[0], table.type.shape, (1,)))
    return b.reshape(b.gather(moved, index, 0), node.type.shape)


def _size(extent: Extent) -> int:
    return extent.evaluate(dict.fromkeys(extent.symbols, ASSUMED)) if isinstance(extent, Dim) else extent
