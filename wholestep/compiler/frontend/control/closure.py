"""Closure conversion (lambda lifting): captured values of a recorded function become parameters of its graph."""

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
class ClosedGraph:
    """A closed graph; captured nodes, bound to its last parameters; the nodes that depend on its first parameters."""

    graph: ir.IRGraph
    outside: list[Node]
    varying: list[Node]


def parameter(kind: str, number: int, type: TensorType) -> Node:
    """An input leaf for a parameter of a recorded function."""
    return record("input", [], at.InputAttrs(f"{kind}{number}", type))


def close(
    results: Sequence[Node], parameters: Sequence[Node], bound: Mapping[Node, Node] | None = None, kind: str = "steady"
) -> ClosedGraph:
    """The results as a graph over the parameters and over captured values, whose leaves are named `kind` and a number.

    Values that do not depend on the parameters are computed outside (loop-invariant code motion), except for views and
    constants, which are duplicated inside because they cost nothing.  `bound` maps outside nodes to the parameters that
    they are already bound to.
    """
    order = toposort(results)
    varying = _dependents(order, set(parameters))
    replacement = {p: p for p in parameters} | {n: p for n, p in (bound or {}).items() if n not in varying}
    outside: dict[Node, Node] = {}

    def lift(node: Node) -> Node:
        if node not in replacement:
            if node in varying or _is_duplicated(node):
                replacement[node] = node.with_inputs([lift(i) for i in node.inputs])
            else:
                replacement[node] = outside[node] = parameter(kind, len(outside), node.type)
        return replacement[node]

    for node in order:  # in topological order, which bounds the depth of the recursion
        if node in varying:
            lift(node)
    outputs = tuple(ir.Output(f"y{i}", lift(r)) for i, r in enumerate(results))
    graph = ir.IRGraph(outputs, (), (*parameters, *outside.values()))
    return ClosedGraph(graph, list(outside), [n for n in order if n in varying])


def _dependents(order: Sequence[Node], varying: set[Node]) -> set[Node]:
    """The nodes that depend on `varying`, and all nodes between the loss and the arguments of gradients among them."""
    for node in order:
        if any(i in varying for i in node.inputs):
            varying.add(node)
    for node in order:
        if node.op == "gradient" and node in varying:
            loss, *arguments = node.inputs
            on_path = set(arguments)
            for n in toposort([loss]):
                if any(i in on_path for i in n.inputs):
                    on_path.add(n)
                    varying.add(n)
    return varying


def _is_duplicated(node: Node) -> bool:
    """Is an outside value cheap to duplicate inside: a view, or a function of constants only?"""
    constants = ops_with(Trait.STEADY)
    return node.op in ops_with(Trait.VIEW) or all(n.inputs or n.op in constants for n in toposort([node]))
