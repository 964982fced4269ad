"""Loops written out: what a `scan` of a fixed number of steps stands for without one.

A loop inside a loop is written out before anything else happens, so that a program has one level of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, body_of, with_held_graph
from wholestep.errors import GraphError


def unroll_inner_loops(graph: IRGraph) -> IRGraph:
    """Write out the loops in the bodies of others."""
    if all(n.op != "scan" for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        body = body_of(node) if node.op == "scan" else None
        new[node] = moved if body is None else with_held_graph(moved, unroll_loops(body))
    return _rebuilt(graph, new)


def unroll_loops(graph: IRGraph) -> IRGraph:
    """The graph with every loop written out, step after step; those in gradients of a user's own too."""
    if all(body_of(n) is None for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    results: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "scan":
            results[node] = _unroll(node, [new[i] for i in node.inputs])
            new[node] = node  # read by items only, which are replaced
        elif node.op == "item" and node.inputs[0] in results:
            new[node] = results[node.inputs[0]][attrs_of(node, at.ItemAttrs).index]
        else:
            inner, moved = body_of(node), node.with_inputs([new[i] for i in node.inputs])
            new[node] = moved if inner is None else with_held_graph(moved, unroll_loops(inner))
    return _rebuilt(graph, new)


def _rebuilt(graph: IRGraph, new: dict[Node, Node]) -> IRGraph:
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _unroll(node: Node, inputs: Sequence[Node]) -> list[Node]:
    """All results of a loop, by one copy of its body per step."""
    a = attrs_of(node, at.ScanAttrs)
    if not isinstance(a.length, int):
        raise GraphError(
            f"a loop inside another one needs a fixed number of steps; this one has {a.length}"
            + (f" ({node.line})" if node.line else "")
            + ". Give that dimension a number, or make the inner loop the outer one."
        )
    body = unroll_loops(a.graph)
    carries, sequences = list(inputs[: a.carries]), inputs[a.carries : a.carries + a.sequences]
    steady = inputs[a.carries + a.sequences :]
    trails = [[c] for c in carries]
    stacks: list[list[Node]] = [[] for _ in body.outputs[a.carries :]]
    with build.origin(node):
        for t in reversed(range(a.length)) if a.reverse else range(a.length):
            found = _step(body, [*carries, *(_slot(s, t) for s in sequences), *steady])
            carries = found[: a.carries]
            for values, value in zip((*trails, *stacks), found, strict=True):
                values.append(value)
        ordered = [list(reversed(v)) if a.reverse else v for v in (*trails, *stacks)]
        return [_stack(v) if v else build.full(0, type) for v, type in zip(ordered, node.results, strict=True)]


def _step(body: IRGraph, inputs: Sequence[Node]) -> list[Node]:
    new = dict(zip(body.inputs, inputs, strict=True))
    for n in body.nodes:
        if n not in new:
            new[n] = n.with_inputs([new[i] for i in n.inputs])
    return [new[o.node] for o in body.outputs]


def _slot(stack: Node, number: int) -> Node:
    shape = stack.type.shape
    cut = build.slice_axes(stack, (number, *(0,) * (len(shape) - 1)), (number + 1, *shape[1:]))
    return build.reshape(cut, shape[1:])


def _stack(values: Sequence[Node]) -> Node:
    return build.concat([build.reshape(v, (1, *v.type.shape)) for v in values], 0)
