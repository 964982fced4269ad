"""The IR verifier: checks that a graph is well formed, before and after every pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from wholestep.compiler.ir.graph import IRGraph, Node, body_of, leaf_name
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import TensorType, Type
from wholestep.errors import GraphError, WholestepError

# Leaves that share a namespace: a parameter is a state with a gradient.
_KIND = {"input": "input", "parameter": "state", "state": "state", "scalar": "scalar"}


def verify(graph: IRGraph, verified: set[Node] | None = None) -> None:
    """Raise GraphError, naming the node and its source line, unless the graph is well formed.

    `verified` caches nodes that have been checked and is extended by this graph's: a pass leaves most nodes unchanged.
    """
    fresh = graph.nodes if verified is None else [node for node in graph.nodes if node not in verified]
    for node in fresh:
        _check_node(node)
    if verified is not None:
        verified.update(fresh)
    _check_leaves(graph)
    _check_inputs(graph)
    _check_outputs(graph)
    _check_updates(graph)


def _check_node(node: Node) -> None:
    if node.op not in OPS:
        raise GraphError(f"{_describe(node)}: unknown op {node.op!r}.")
    expected = OPS[node.op].attrs
    if type(node.attrs) is not expected:
        raise GraphError(f"{_describe(node)} has attributes {type(node.attrs).__name__}; expected {expected.__name__}.")
    inner = body_of(node)
    if inner is not None:
        _check_body(node, inner)
    derived = _infer_type(node)
    if derived != node.result:
        raise GraphError(
            f"{_describe(node)} has type {node.result}, but the type inferred from its inputs is {derived}."
        )


def _infer_type(node: Node) -> Type:
    try:
        return OPS[node.op].infer(tuple(i.result for i in node.inputs), node.attrs)
    except (WholestepError, AssertionError) as error:
        raise GraphError(f"{_describe(node)} does not fit its inputs: {error}") from error


def _check_body(node: Node, inner: IRGraph) -> None:
    """A nested graph is a pure function of its parameters: it neither reads nor updates states."""
    if inner.updates:
        raise GraphError(f"the body of {_describe(node)} updates {inner.updates[0].name!r}; return the value instead.")
    for name, leaf in inner.states().items():
        raise GraphError(f"the body of {_describe(node)} reads the {leaf.op} {name!r}; pass it as an argument.")
    try:
        verify(inner)
    except GraphError as error:
        raise GraphError(f"in the body of {_describe(node)}: {error}") from error


def _check_leaves(graph: IRGraph) -> None:
    seen: dict[tuple[str, str], Node] = {}
    for node in graph.nodes:
        if node.op not in _KIND:
            continue
        key = _KIND[node.op], leaf_name(node)
        first = seen.setdefault(key, node)
        if (first.op, first.attrs) != (node.op, node.attrs):
            raise GraphError(
                f"two different leaves are named {key[1]!r}: {_describe(first)} with {first.attrs}, and "
                f"{_describe(node)} with {node.attrs}. Rename one of them."
            )


def _check_inputs(graph: IRGraph) -> None:
    for node in graph.inputs:
        if node.op != "input":
            raise GraphError(f"{_describe(node)} is declared as an input of the graph, but it is not an input leaf.")
    _need_unique("input", map(leaf_name, graph.inputs))
    declared = set(graph.inputs)
    for node in graph.nodes:
        if node.op == "input" and node not in declared:
            raise GraphError(
                f"{_describe(node)} is read but missing from the graph's inputs; declare it: Graph(inputs=...)."
            )


def _check_outputs(graph: IRGraph) -> None:
    _need_unique("output", (o.name for o in graph.outputs))
    for output in graph.outputs:
        _need_tensor(f"the output {output.name!r}", output.node)


def _check_updates(graph: IRGraph) -> None:
    states = graph.states()
    _need_unique("update", (u.name for u in graph.updates))
    for update in graph.updates:
        _need_tensor(f"the update of {update.name!r}", update.node)
        if update.name not in states:
            raise GraphError(
                f"{_describe(update.node)} updates {update.name!r}, which is not a state of the graph; it has "
                f"{sorted(states)}."
            )
        state_type = states[update.name].type
        if update.node.type != state_type:
            raise GraphError(
                f"{_describe(update.node)} updates {update.name!r} of type {state_type} with {update.node.type}."
            )


def _need_unique(what: str, names: Iterable[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise GraphError(f"{count} {what}s are named {name!r}; each needs its own name.")


def _need_tensor(what: str, node: Node) -> None:
    if not isinstance(node.result, TensorType):
        raise GraphError(f"{what} is {_describe(node)} with several results; pick one with an item node.")


def _describe(node: Node) -> str:
    """The description of a node in an error message: op, name and source line."""
    leaf = getattr(node.attrs, "name", "")
    label = f" {node.name or leaf!r}" if node.name or leaf else ""
    return f"{node.op}{label}" + (f" ({node.line})" if node.line else "")
