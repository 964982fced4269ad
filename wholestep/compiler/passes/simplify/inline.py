"""Inlining of calls, and removal of the markers for autodiff after gradients have been computed."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite


def inline_calls(graph: IRGraph) -> IRGraph:
    """Replace every `call` by a copy of its graph, with the arguments in place of its inputs."""
    return rewrite(graph, lambda n: inline_graph(attrs_of(n, at.CallAttrs).graph, n.inputs) if n.op == "call" else n)


def inline_graph(graph: IRGraph, arguments: Sequence[Node]) -> tuple[Node, ...]:
    """The outputs of a graph, inlined over its arguments; its own calls stay."""
    new = dict(zip(graph.inputs, arguments, strict=True))
    for node in graph.nodes:
        if node not in new:
            new[node] = node.with_inputs([new[i] for i in node.inputs])
    return tuple(new[o.node] for o in graph.outputs)


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
