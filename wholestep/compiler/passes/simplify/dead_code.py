"""Dead code elimination."""

from __future__ import annotations

from wholestep.compiler.ir.graph import IRGraph, Node, leaf_name


def drop_dead_code(graph: IRGraph) -> IRGraph:
    """Drop updates that assign a state its own value.

    Nothing else needs deleting: a graph contains only what its outputs and updates need (`IRGraph.nodes` walks back
    from them), so a node without readers is already gone.  Declared inputs stay: they are part of the interface.
    """
    live = tuple(u for u in graph.updates if not _is_state(u.node, u.name))
    return graph if len(live) == len(graph.updates) else IRGraph(graph.outputs, live, graph.inputs)


def _is_state(node: Node, name: str) -> bool:
    return node.is_state and leaf_name(node) == name
