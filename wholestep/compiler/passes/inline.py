"""Calls become the nodes they stand for; stop_gradient goes once no gradient is left to stop."""

from __future__ import annotations

from collections.abc import Iterable

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Graph, Node, Output, Update, rewrite


def inline_calls(graph: Graph) -> Graph:
    """Replace every `call` by a copy of its graph, with the arguments in place of its inputs."""
    if all(n.op != "call" for n in graph.nodes):
        return graph
    new = _copy(graph.nodes, {})
    return Graph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _copy(nodes: Iterable[Node], known: dict[Node, Node]) -> dict[Node, Node]:
    """What each node becomes; `known` are those that have been decided."""
    new = dict(known)
    results: dict[Node, tuple[Node, ...]] = {}
    for node in nodes:
        if node in new:
            continue
        if node.op == "call":
            inner = attrs_of(node, at.CallAttrs).graph
            arguments = dict(zip(inner.inputs, (new[i] for i in node.inputs), strict=True))
            inside = _copy(inner.nodes, arguments)
            results[node] = tuple(inside[o.node] for o in inner.outputs)
            new[node] = node  # read by items only, which are replaced
        elif node.op == "item" and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        else:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return new


def strip_stop_gradients(graph: Graph) -> Graph:
    """Replace every `stop_gradient` by its input, and every `by_mode` that is left by its value in training.

    Runs after autodiff, which is what reads them; programs that do not train were rewritten when they were traced.
    """
    return rewrite(graph, lambda node: node.inputs[0] if node.op in ("stop_gradient", "by_mode") else node)
