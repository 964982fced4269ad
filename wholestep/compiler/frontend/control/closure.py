"""Functions that are recorded once: what they use from outside becomes a parameter of the graph that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.frontend.trace import record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType
from wholestep.records import dataclass


@dataclass(frozen=True)
class Closed:
    """A graph; what was used from outside, for which its last parameters stand; and what depends on the first ones."""

    graph: ir.IRGraph
    outside: list[Node]
    varying: list[Node]


def parameter(kind: str, number: int, type: TensorType) -> Node:
    """A leaf that stands for what a recorded function is given."""
    return record("input", [], at.InputAttrs(f"{kind}{number}", type))


def close(
    results: Sequence[Node], parameters: Sequence[Node], known: Mapping[Node, Node] | None = None, kind: str = "steady"
) -> Closed:
    """Results as a function of the parameters, and of what they take from outside, called by its `kind` and a number.

    What does not depend on the parameters is computed outside.  Views and constants are repeated inside: they cost
    nothing there.  `known` nodes from outside have one of the parameters already.
    """
    order = toposort(results)
    varying = _dependents(order, set(parameters))
    new = {p: p for p in parameters} | {n: p for n, p in (known or {}).items() if n not in varying}
    outside: dict[Node, Node] = {}

    def inside(node: Node) -> Node:
        if node not in new:
            if node in varying or _is_repeated(node):
                new[node] = node.with_inputs([inside(i) for i in node.inputs])
            else:
                new[node] = outside[node] = parameter(kind, len(outside), node.type)
        return new[node]

    for node in order:  # in order, so that nothing recurses deeply
        if node in varying:
            inside(node)
    outputs = tuple(ir.Output(f"y{i}", inside(r)) for i, r in enumerate(results))
    graph = ir.IRGraph(outputs, (), (*parameters, *outside.values()))
    return Closed(graph, list(outside), [n for n in order if n in varying])


def _dependents(order: Sequence[Node], varying: set[Node]) -> set[Node]:
    """What depends on the given nodes, and whatever a gradient among it is taken through."""
    for node in order:
        if any(i in varying for i in node.inputs):
            varying.add(node)
    for node in order:
        if node.op == "gradient" and node in varying:
            loss, *wanted = node.inputs
            below = set(wanted)
            for n in toposort([loss]):
                if any(i in below for i in n.inputs):
                    below.add(n)
                    varying.add(n)
    return varying


def _is_repeated(node: Node) -> bool:
    """Is a value from outside cheap to have inside: a view, or made of constants alone?"""
    steady = ops_with(Trait.STEADY)
    return node.op in ops_with(Trait.VIEW) or all(n.inputs or n.op in steady for n in toposort([node]))
