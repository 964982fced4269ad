"""Common subexpressions: nodes that compute the same bits become one node."""

from __future__ import annotations

from collections.abc import Hashable

from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import Trait, ops_with

COMMUTATIVE = ops_with(Trait.COMMUTES)


def share_common_nodes(graph: IRGraph) -> IRGraph:
    """Merge nodes with the same op, inputs and attributes, bottom-up; the first one stays, with its name and line.

    Random nodes are a function of their key, so two with the same key and type are the same numbers.
    """
    numbers: dict[Node, int] = {}
    first: dict[Hashable, Node] = {}

    def merge(node: Node) -> Node:
        inputs = [numbers[i] for i in node.inputs]
        if node.op in COMMUTATIVE:
            inputs.sort()
        # repr tells 0.0 from -0.0 in attributes, which == does not.
        key = (node.op, tuple(inputs), node.attrs, repr(getattr(node.attrs, "value", None)))
        kept = first.setdefault(key, node)
        numbers.setdefault(kept, len(numbers))
        return kept

    return rewrite(graph, merge)
