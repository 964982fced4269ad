"""Rematerialization of centered values: each reader recomputes x - mean, instead of loading a stored copy.

A batch norm subtracts the column mean of x.  The mean had to read all of x, so x is in memory: loading x - mean costs
as many bytes as loading x, and storing it costs as many again.  So every reader gets its own copy of the node:

    f(x, small) is duplicated for each reader, where small is computed from a sum over columns of x

Invariant: each copy applies the same op to the same operands.
"""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.rematerialize.copies import Images, copy_for_readers


def duplicate_centered_values(graph: IRGraph) -> IRGraph:
    """Duplicate centered values, one copy per reader; both factors of a square share a copy."""
    roots = set(graph.roots)
    column_sum_sources = _column_sum_sources(graph)
    duplicated = {n for n in graph.nodes if n not in roots and _is_cheap(n, column_sum_sources)}
    new: Images = {}

    def input_of(value: Node, reader: Node, copies: Images) -> Node:
        image = new[value]
        if value not in duplicated:
            return image
        if value not in copies:
            copies[value] = image.copy(image.inputs, image.attrs)
        return copies[value]

    return copy_for_readers(graph, new, input_of)


def _is_cheap(node: Node, column_sum_sources: Mapping[Node, frozenset[Node]]) -> bool:
    """A binary elementwise op of a tensor in memory and a broadcast value that was computed from its column sums."""
    if OPS[node.op].family is not Family.POINTWISE or len(node.inputs) != 2:
        return False
    full = [i for i in node.inputs if i.op != "expand"]
    broadcast = [i for i in node.inputs if i.op == "expand"]
    return len(full) == len(broadcast) == 1 and full[0] in column_sum_sources[broadcast[0].inputs[0]]


def _column_sum_sources(graph: IRGraph) -> dict[Node, frozenset[Node]]:
    """For each node, the tensors of higher rank whose column sums it is computed from."""
    sources: dict[Node, frozenset[Node]] = {}
    for node in graph.nodes:
        of_node = {x for i in node.inputs for x in sources[i]}
        if node.op == "sum" and attrs_of(node, at.SumAttrs).axes != (node.inputs[0].type.rank - 1,):
            of_node.add(node.inputs[0])
        rank = node.type.rank if isinstance(node.result, TensorType) else 0
        sources[node] = frozenset(x for x in of_node if x.type.rank > rank)
    return sources
