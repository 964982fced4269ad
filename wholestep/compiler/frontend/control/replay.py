"""Replay: inlines a recorded graph into another one, with other inputs, states and sizes of symbolic dimensions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, layer_path
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, SourceLine, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Dim, Extent, Shape, TensorType, shape_text
from wholestep.errors import ShapeError

Sizes = Mapping[str, Extent]


def replay(graph: ir.IRGraph, into: Graph, inputs: Mapping[str, Tensor], states: Mapping[str, Tensor]) -> list[Tensor]:
    """The outputs of a recorded graph as tensors of the graph `into`, whose states are updated as recorded.

    Each replay draws random numbers with new keys; symbolic dimensions are bound to the sizes of the inputs.
    """
    sizes = bind_sizes(graph, inputs)
    leaves = {"input": inputs, "parameter": states, "state": states}
    memo = _Memo(into, sizes, lambda node: leaves[node.op][node.attrs.name].node)  # type: ignore[attr-defined]
    outputs = [memo.of(o.node) for o in graph.outputs]
    pending = {u.name: into.latest(states[u.name]).node for u in graph.updates}
    updated_before = any(pending[u.name] is not states[u.name].node for u in graph.updates)
    # A network that is called twice in a step updates its states twice; the second update starts from the first one.
    late_memo = memo
    if updated_before:
        late_leaves = {**leaves, "state": {**states, **{n: Tensor(p, into) for n, p in pending.items()}}}
        late_memo = _Memo(into, sizes, lambda node: late_leaves[node.op][node.attrs.name].node, memo.draws)  # type: ignore[attr-defined]
    for name, node in [(u.name, late_memo.of(u.node)) for u in graph.updates]:
        into.advance(states[name], lambda _, new=node: Tensor(new, into))  # type: ignore[misc]
    return [Tensor(node, into) for node in outputs]


class _Memo:
    """Copies nodes of a recorded graph into another graph; memoized by node."""

    def __init__(
        self, into: Graph, sizes: Sizes, leaf: Callable[[Node], Node], draws: dict[str, str] | None = None
    ) -> None:
        self._into, self._sizes, self._leaf = into, sizes, leaf
        self.draws = {} if draws is None else draws  # recorded key -> the key of this replay
        self._new: dict[Node, Node] = {}

    def of(self, root: Node) -> Node:
        for node in toposort([root]):
            if node not in self._new:
                self._new[node] = self._replay_node(node)
        return self._new[root]

    def _replay_node(self, node: Node) -> Node:
        if node.op in ("input", "parameter", "state"):
            return self._leaf(node)
        if node.op == "scalar":
            return self._scalar(node.attrs)  # type: ignore[arg-type]
        attrs = with_sizes(node.attrs, self._sizes)
        if node.op in ops_with(Trait.DRAWS):
            attrs = dataclasses.replace(attrs, key=self._key(node.attrs.key))  # type: ignore[call-arg, attr-defined]
        return Node(node.op, [self._new[i] for i in node.inputs], attrs, node.name, _map_line(node.line))

    def _key(self, recorded: str) -> str:
        if recorded not in self.draws:
            path = recorded.split("/")[:-1]
            with self._into.at_scope((*self._into.open_scope, *path)):
                self.draws[recorded] = self._into.next_random_key()
        return self.draws[recorded]

    def _scalar(self, attrs: at.ScalarAttrs) -> Node:
        """The rate of a dropout is named after its random key, new in each replay; other scalars are shared by name."""
        key, dot, rest = attrs.name.rpartition(".rate")
        name = f"{self._key(key)}.rate" if dot and not rest and "random" in key else attrs.name
        existing = self._into.scalars.get(name)
        return (self._into.scalar(name, attrs.default) if existing is None else existing).node


def _map_line(line: SourceLine | None) -> SourceLine | None:
    return None if line is None else dataclasses.replace(line, layer=layer_path(line.layer))


# -- sizes -------------------------------------------------------------------------------------------------------


def bind_sizes(graph: ir.IRGraph, inputs: Mapping[str, Tensor]) -> dict[str, Extent]:
    """Binds the symbols of a recorded graph by unifying its input shapes with the arguments'; fails if they differ."""
    sizes: dict[str, Extent] = {}
    for node in graph.inputs:
        name, argument = node.attrs.name, inputs[node.attrs.name]  # type: ignore[attr-defined]
        recorded = node.type.shape
        fits = len(recorded) == argument.ndim and all(_unify(a, b, sizes) for a, b in zip(recorded, argument.shape))
        if not fits:
            bound = ", ".join(f"{s} = {n}" for s, n in sizes.items())
            fail(
                ShapeError,
                f"the network expects {name!r} of shape {shape_text(recorded)}; received {shape_text(argument.shape)}"
                + (f", with {bound}" if bound else "")
                + ". Integer sizes were fixed when it was imported; import it with an example of other sizes.",
            )
    return sizes


def _unify(recorded: Extent, extent: Extent, sizes: dict[str, Extent]) -> bool:
    if not isinstance(recorded, Dim):
        return recorded == extent
    ((names, factor), *more) = recorded.terms
    if not more and factor == 1 and len(names) == 1:
        return sizes.setdefault(names[0], extent) == extent
    return substitute_sizes(recorded, sizes) == extent


def substitute_sizes(extent: Extent, sizes: Sizes) -> Extent:
    """An extent with symbols replaced."""
    if not isinstance(extent, Dim):
        return extent
    total: Extent = 0
    for names, factor in extent.terms:
        term: Extent = factor
        for name in names:
            term = term * sizes.get(name, Dim.symbol(name))
        total = total + term
    return total


def _shape(shape: Iterable[Extent], sizes: Sizes) -> Shape:
    return tuple(substitute_sizes(e, sizes) for e in shape)


def _type(type: TensorType, sizes: Sizes) -> TensorType:
    return TensorType(_shape(type.shape, sizes), type.dtype)


def _graph(graph: ir.IRGraph, sizes: Sizes) -> ir.IRGraph:
    new: dict[Node, Node] = {}
    for n in graph.nodes:
        new[n] = Node(n.op, [new[i] for i in n.inputs], with_sizes(n.attrs, sizes), n.name, _map_line(n.line))
    return graph.with_nodes(new)


# Keyed by the annotation of an attribute in attrs.py; attributes of other types contain no extents.
_BY_TYPE: dict[str, Callable[[Any, Sizes], Any]] = {
    "Extent": substitute_sizes,
    "Shape": _shape,
    "TensorType": _type,
    "IRGraph": _graph,
}


def with_sizes(attrs: at.Attrs, sizes: Sizes) -> at.Attrs:
    """The attributes with their symbols replaced."""
    changes = {
        f.name: _BY_TYPE[str(f.type)](getattr(attrs, f.name), sizes)
        for f in dataclasses.fields(attrs)
        if str(f.type) in _BY_TYPE
    }
    return dataclasses.replace(attrs, **changes) if changes else attrs
