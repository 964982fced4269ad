"""Dropping what a step computes for nothing."""

from __future__ import annotations

from wholestep.compiler.ir.graph import IRGraph, Node


def drop_dead_code(graph: IRGraph) -> IRGraph:
    """Drop the updates that give a state its own value.

    Nothing else needs deleting: a graph holds only what its outputs and updates need (`Graph.nodes` walks back from
    them), so a node that lost its last reader is gone already.  Declared inputs stay: they are part of the interface.
    """
    kept = tuple(u for u in graph.updates if not _is_state(u.node, u.name))
    return graph if len(kept) == len(graph.updates) else IRGraph(graph.outputs, kept, graph.inputs)


def _is_state(node: Node, name: str) -> bool:
    return node.is_state and node.attrs.name == name  # type: ignore[attr-defined]
