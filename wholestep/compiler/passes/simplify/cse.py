"""Common subexpression elimination by value numbering: nodes that compute the same bits become one node."""

from __future__ import annotations

from collections.abc import Hashable

from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import Trait, ops_with

COMMUTATIVE = ops_with(Trait.COMMUTES)


def share_common_nodes(graph: IRGraph) -> IRGraph:
    """Merge nodes with the same op, inputs and attributes, bottom-up; the first one stays, with its name and line.

    Random nodes are a function of their key, so two with the same key and type have the same values.
    """
    value_numbers: dict[Node, int] = {}
    first: dict[Hashable, Node] = {}

    def merge(node: Node) -> Node:
        inputs = [value_numbers[i] for i in node.inputs]
        if node.op in COMMUTATIVE:
            inputs.sort()
        # repr distinguishes 0.0 from -0.0 in attributes, which == does not.
        key = (node.op, tuple(inputs), node.attrs, repr(getattr(node.attrs, "value", None)))
        representative = first.setdefault(key, node)
        value_numbers.setdefault(representative, len(value_numbers))
        return representative

    return rewrite(graph, merge)
