"""Projection of embedding tables: a product with looked-up rows becomes a lookup in the projected table, if that is
smaller.

    table[index] · W     = (table · W)[index]
    table[index] + b     = (table + b)[index]         only after the first rule was applied

The first layer over an embedding of 65 letters multiplies 65 rows, not one row per letter of the batch; so does its
gradient, which sums rows of equal index before it multiplies them.  The looked-up rows have the same bits either way;
gradients add the same terms in another order.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, below, rewrite
from wholestep.compiler.ir.types import Dim, Extent, product

ASSUMED = 8  # the extent of a symbolic dimension in the comparison below, which must not depend on the batch size
RESHAPE = ("reshape",)
WORTH = 2  # the least ratio of looked-up rows to rows of the table


def project_tables(graph: IRGraph) -> IRGraph:
    """Project tables instead of the rows that are looked up in them."""
    if not any(n.op == "gather" for n in graph.nodes):
        return graph
    projected: set[Node] = set()

    def rule(node: Node) -> Node:
        with b.origin(node):
            result = (
                _project_table(node)
                if node.op == "matmul"
                else _shift_table(node, projected)
                if node.op == "add"
                else None
            )
        if result is None:
            return node
        projected.add(below(result, RESHAPE))
        return result

    return rewrite(graph, rule)


def _project_table(node: Node) -> Node | None:
    attrs, (rows, weight) = attrs_of(node, at.MatmulAttrs), node.inputs
    lookup = below(rows, RESHAPE)
    if lookup.op == "cast" and lookup.type.dtype.is_half:  # the rows are rounded for a product in half precision
        lookup = below(lookup.inputs[0], RESHAPE)
    if attrs.transpose_a or node.type.rank != 2 or lookup.op != "gather" or attrs_of(lookup, at.GatherAttrs).axis != 0:
        return None
    table, index = lookup.inputs
    full_rows = table.type.rank == 2 and rows.type.shape[-1] == table.type.shape[-1]
    if not full_rows or WORTH * _size(table.type.shape[0]) > _size(product(index.type.shape)):
        return None
    projected = b.matmul(b.cast(table, weight.type.dtype), weight, transpose_b=attrs.transpose_b)
    return b.reshape(b.gather(projected, index, 0), node.type.shape)


def _shift_table(node: Node, projected: set[Node]) -> Node | None:
    rows, shift = node.inputs
    lookup = below(rows, RESHAPE)
    if lookup not in projected or shift.op != "expand" or attrs_of(shift, at.ExpandAttrs).axes != (node.type.rank - 1,):
        return None
    table, index = lookup.inputs
    if rows.type.shape[-1] != table.type.shape[-1]:
        return None
    shifted = b.add(table, b.expand_to(shift.inputs[0], table.type.shape, (1,)))
    return b.reshape(b.gather(shifted, index, 0), node.type.shape)


def _size(extent: Extent) -> int:
    return extent.evaluate(dict.fromkeys(extent.symbols, ASSUMED)) if isinstance(extent, Dim) else extent
