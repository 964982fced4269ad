"""Loop unrolling: a `scan` with a fixed number of steps becomes one copy of its body per step.

Nested loops are unrolled before all other passes, so that a program has one level of loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, body_of, with_body
from wholestep.errors import GraphError


def unroll_inner_loops(graph: IRGraph) -> IRGraph:
    """Unroll the loops in the bodies of other loops."""
    if all(n.op != "scan" for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        body = body_of(node) if node.op == "scan" else None
        new[node] = rebuilt if body is None else with_body(rebuilt, unroll_loops(body))
    return _rebuild(graph, new)


def unroll_loops(graph: IRGraph) -> IRGraph:
    """The graph with every loop unrolled, those in custom gradients too."""
    if all(body_of(n) is None for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    results: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "scan":
            results[node] = _unroll(node, [new[i] for i in node.inputs])
            new[node] = node  # only `item` nodes read it, and they are replaced
        elif node.op == "item" and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        else:
            inner, rebuilt = body_of(node), node.with_inputs([new[i] for i in node.inputs])
            new[node] = rebuilt if inner is None else with_body(rebuilt, unroll_loops(inner))
    return _rebuild(graph, new)


def _rebuild(graph: IRGraph, new: dict[Node, Node]) -> IRGraph:
    return graph.with_nodes(new)


def _unroll(node: Node, inputs: Sequence[Node]) -> list[Node]:
    """All results of a loop, by one copy of its body per step."""
    a = attrs_of(node, at.ScanAttrs)
    if not isinstance(a.length, int):
        raise GraphError(
            f"a loop inside another one needs a fixed number of steps; this one has {a.length}"
            + (f" ({node.line})" if node.line else "")
            + ". Make that dimension an integer, or exchange the inner and the outer loop."
        )
    body = unroll_loops(a.graph)
    carries, sequences = list(inputs[: a.carries]), inputs[a.carries : a.carries + a.sequences]
    invariant = inputs[a.carries + a.sequences :]
    carry_history = [[c] for c in carries]
    stacks: list[list[Node]] = [[] for _ in body.outputs[a.carries :]]
    with build.origin(node):
        for t in reversed(range(a.length)) if a.reverse else range(a.length):
            results = _step(body, [*carries, *(_slot(s, t) for s in sequences), *invariant])
            carries = results[: a.carries]
            for values, value in zip((*carry_history, *stacks), results, strict=True):
                values.append(value)
        ordered = [list(reversed(v)) if a.reverse else v for v in (*carry_history, *stacks)]
        return [_stack(v) if v else build.full(0, type) for v, type in zip(ordered, node.results, strict=True)]


def _step(body: IRGraph, inputs: Sequence[Node]) -> list[Node]:
    new = dict(zip(body.inputs, inputs, strict=True))
    for n in body.nodes:
        if n not in new:
            new[n] = n.with_inputs([new[i] for i in n.inputs])
    return [new[o.node] for o in body.outputs]


def _slot(stack: Node, index: int) -> Node:
    shape = stack.type.shape
    slot = build.slice_axes(stack, (index, *(0,) * (len(shape) - 1)), (index + 1, *shape[1:]))
    return build.reshape(slot, shape[1:])


def _stack(values: Sequence[Node]) -> Node:
    return build.concat([build.reshape(v, (1, *v.type.shape)) for v in values], 0)
