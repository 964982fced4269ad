"""A step that several ranks make together: which inputs hold rows of their own.  What follows is `passes/divide.py`."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Graph, Node, rewrite
from wholestep.compiler.ir.types import Dim, symbols_of


def divided(graph: Graph, batch: str) -> Graph:
    """The graph with the inputs marked that have one row for each of the batch.

    An output that has rows is left out, as it is with micro-batches: no rank has all of them, and `predict` does.
    """
    own = {n for n in graph.inputs if n.type.rank and n.type.shape[0] == Dim.symbol(batch)}

    def marked(node: Node) -> Node:
        if node not in own:
            return node
        return Node("input", (), replace(attrs_of(node, at.InputAttrs), divided=True), node.name, node.line)

    kept = tuple(o for o in graph.outputs if batch not in symbols_of(o.node.type.shape))
    return rewrite(replace(graph, outputs=kept), marked)


def is_divided(graph: Graph) -> bool:
    """Does a rank have rows of its own?"""
    return any(attrs_of(n, at.InputAttrs).divided for n in graph.inputs)
