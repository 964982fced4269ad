"""Calls become the nodes they stand for; what only gradients ask for goes once they have been taken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, rewrite


def inline_calls(graph: IRGraph) -> IRGraph:
    """Replace every `call` by a copy of its graph, with the arguments in place of its inputs."""
    if all(n.op != "call" for n in graph.nodes):
        return graph
    new = _copy(graph.nodes, {})
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def inline_graph(graph: IRGraph, arguments: Sequence[Node]) -> tuple[Node, ...]:
    """What a held graph gives, over its arguments."""
    inside = _copy(graph.nodes, dict(zip(graph.inputs, arguments, strict=True)))
    return tuple(inside[o.node] for o in graph.outputs)


def _copy(nodes: Iterable[Node], known: dict[Node, Node]) -> dict[Node, Node]:
    """What each node becomes; `known` are those that have been decided."""
    new = dict(known)
    results: dict[Node, tuple[Node, ...]] = {}
    for node in nodes:
        if node in new:
            continue
        if node.op == "call":
            results[node] = inline_graph(attrs_of(node, at.CallAttrs).graph, [new[i] for i in node.inputs])
            new[node] = node  # read by items only, which are replaced
        elif node.op == "item" and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        else:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return new


def strip_stop_gradients(graph: IRGraph) -> IRGraph:
    """Drop what tells autodiff what to do, and computes nothing.

    A `stop_gradient` becomes its input, a result of a `custom_gradient` the value it is, and every `by_mode` that is
    left its value in training.  Runs after autodiff; programs that do not train were rewritten when they were traced.
    """
    return rewrite(graph, _strip)


def _strip(node: Node) -> Node:
    return node.inputs[0] if node.op in ("stop_gradient", "by_mode") else _as_it_is(node)


def drop_custom_gradients(graph: IRGraph) -> IRGraph:
    """Replace every result of a `custom_gradient` by the value it is: no gradient will be asked for."""
    return rewrite(graph, _as_it_is)


def _as_it_is(node: Node) -> Node:
    if node.op != "item" or node.inputs[0].op != "custom_gradient":
        return node
    return node.inputs[0].inputs[attrs_of(node, at.ItemAttrs).index]
