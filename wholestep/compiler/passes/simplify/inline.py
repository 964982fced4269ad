"""Inlining of calls, unrolling of loops, and removal of the markers for autodiff.

A call becomes a copy of its graph; a `scan` with a fixed number of steps becomes one copy of its body per step.  Nested
loops are unrolled before all other passes, so that a program has one level of loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, body_of, rewrite, with_body
from wholestep.errors import GraphError


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


def unroll_inner_loops(graph: IRGraph) -> IRGraph:
    """Unroll the loops in the bodies of other loops."""
    if all(n.op != "scan" for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        body = body_of(node) if node.op == "scan" else None
        new[node] = rebuilt if body is None else with_body(rebuilt, unroll_loops(body))
    return graph.with_nodes(new)


def unroll_loops(graph: IRGraph) -> IRGraph:
    """The graph with every loop unrolled, those in custom gradients too."""
    return rewrite(graph, lambda n: _unroll(n) if n.op == "scan" else n)


def _unroll(node: Node) -> tuple[Node, ...]:
    """All results of a loop, by one copy of its body per step."""
    a = attrs_of(node, at.ScanAttrs)
    if not isinstance(a.length, int):
        raise GraphError(
            f"a loop inside another one needs a fixed number of steps; this one has {a.length}"
            + (f" ({node.line})" if node.line else "")
            + ". Make that dimension an integer, or exchange the inner and the outer loop."
        )
    carries, sequences = list(node.inputs[: a.carries]), node.inputs[a.carries : a.carries + a.sequences]
    invariant = node.inputs[a.carries + a.sequences :]
    carry_history = [[c] for c in carries]
    stacks: list[list[Node]] = [[] for _ in a.graph.outputs[a.carries :]]
    with build.origin(node):
        for t in reversed(range(a.length)) if a.reverse else range(a.length):
            results = inline_graph(a.graph, [*carries, *(_slot(s, t) for s in sequences), *invariant])
            carries = list(results[: a.carries])
            for values, value in zip((*carry_history, *stacks), results, strict=True):
                values.append(value)
        ordered = [list(reversed(v)) if a.reverse else v for v in (*carry_history, *stacks)]
        return tuple(_stack(v) if v else build.full(0, type) for v, type in zip(ordered, node.results, strict=True))


def _slot(stack: Node, index: int) -> Node:
    shape = stack.type.shape
    slot = build.slice_axes(stack, (index, *(0,) * (len(shape) - 1)), (index + 1, *shape[1:]))
    return build.reshape(slot, shape[1:])


def _stack(values: Sequence[Node]) -> Node:
    return build.concat([build.reshape(v, (1, *v.type.shape)) for v in values], 0)
