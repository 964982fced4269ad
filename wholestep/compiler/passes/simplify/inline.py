"""Inlining of calls, and removal of the markers for autodiff after gradients have been computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite


def inline_calls(graph: IRGraph) -> IRGraph:
    """Replace every `call` by a copy of its graph, with the arguments in place of its inputs."""
    if all(n.op != "call" for n in graph.nodes):
        return graph
    new = _copy(graph.nodes, {})
    return graph.with_nodes(new)


def inline_graph(graph: IRGraph, arguments: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of a graph, inlined over its arguments."""
    inside = _copy(graph.nodes, dict(zip(graph.inputs, arguments, strict=True)))
    return tuple(inside[o.node] for o in graph.outputs)


def _copy(nodes: Iterable[Node], replaced: dict[Node, Node]) -> dict[Node, Node]:
    """Copies of all nodes, except for those in `known`; calls are inlined recursively."""
    new = dict(replaced)
    results: dict[Node, tuple[Node, ...]] = {}
    for node in nodes:
        if node in new:
            continue
        if node.op == "call":
            results[node] = inline_graph(attrs_of(node, at.CallAttrs).graph, [new[i] for i in node.inputs])
            new[node] = node  # only `item` nodes read it, and they are replaced
        elif node.op == "item" and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        else:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return new


def strip_stop_gradients(graph: IRGraph) -> IRGraph:
    """Remove the markers for autodiff, which compute nothing.

    A `stop_gradient` becomes its input, a result of a `custom_gradient` its forward value, and every remaining
    `by_mode` its value in training.  Runs after autodiff; programs without training were rewritten when they were
    traced.
    """
    return rewrite(graph, _strip)


def _strip(node: Node) -> Node:
    return node.inputs[0] if node.op in ("stop_gradient", "by_mode") else _forward_value(node)


def drop_custom_gradients(graph: IRGraph) -> IRGraph:
    """Replace every result of a `custom_gradient` by its forward value, in programs without gradients."""
    return rewrite(graph, _forward_value)


def _forward_value(node: Node) -> Node:
    if node.op != "item" or node.inputs[0].op != "custom_gradient":
        return node
    return node.inputs[0].inputs[attrs_of(node, at.ItemAttrs).index]
