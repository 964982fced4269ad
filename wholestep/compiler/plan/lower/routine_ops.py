"""Ops that native routines compute, and which of their results are stored directly in the layout of their readers.

Ops of one routine over the same inputs are results of one call.  If the result of a call is only permuted, reshaped or
concatenated before it is read, the call writes it at its final position: the value is *assembled* without a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine
from wholestep.compiler.ir.types import Extent, TensorType
from wholestep.compiler.plan.model.access import Indices, identity, merge_index
from wholestep.compiler.plan.model.kernel import Index

# Op -> the routine that computes it.
ROUTINES: Mapping[str, str] = {
    "attention": "attention",
    "attention_lse": "attention",
    "attention_grad": "attention_grad",
    "exchange": "exchange",
}
# Operands and results that a routine accesses with a stride; the last axis of all others is contiguous.
STEPPED = frozenset({"lse"})


def is_call(node: Node) -> bool:
    return node.op in ROUTINES


def is_result(node: Node) -> bool:
    """Is the node a tensor that a routine writes?"""
    return is_call(node.inputs[0]) if node.op == "item" else is_call(node) and isinstance(node.result, TensorType)


def is_loop_result(node: Node) -> bool:
    """Is the node a result of a scan, which writes it iteration by iteration?"""
    return node.op == "item" and node.inputs[0].op == "scan"


def call_of(node: Node) -> object | None:
    """A key that identifies the call which computes or assembles the node; None for other ops."""
    while node.op in ("item", "assembled"):
        node = node.inputs[0]
    if node.op == "scan":
        return node
    return (ROUTINES[node.op], node.inputs, node.attrs) if is_call(node) else None


class Assembled(Node):
    """A stored value that calls write in parts: part i is stored at `places[i]`, indices in the part's axes."""

    __slots__ = ("places",)

    def __init__(
        self,
        parts: Sequence[Node],
        places: Sequence[Indices],
        type: TensorType,
        name: str = "",
        line: SourceLine | None = None,
    ) -> None:
        # This op is not part of the IR: it exists only while planning, and no table of ops has a row for it.
        self.op, self.inputs, self.attrs, self.name, self.line = "assembled", tuple(parts), at.NONE, name, line
        self.result, self.host = type, False
        self.places = tuple(places)

    def with_inputs(self, inputs: Sequence[Node]) -> Assembled:
        return Assembled(inputs, self.places, self.type, self.name, self.line)


def assemble(graph: IRGraph) -> IRGraph:
    """The graph with results of calls assembled in place: permuted or reshaped results, and their concatenations."""
    finder = _AssemblyFinder(graph)
    new: dict[Node, Node] = {}
    for old in graph.nodes:
        inputs = [new[i] for i in old.inputs]
        parts_and_places = finder.parts(old)
        if parts_and_places is None:
            new[old] = old.with_inputs(inputs)
        else:
            parts, places = zip(*parts_and_places, strict=True)
            new[old] = Assembled([new[p] for p in parts], places, old.type, old.name, old.line)
    return graph.with_nodes(new)


class _AssemblyFinder:
    def __init__(self, graph: IRGraph) -> None:
        self.read_once = graph.single_use_nodes()

    def parts(self, node: Node) -> list[tuple[Node, Indices]] | None:
        """The results of calls that a node can be assembled from, with the index of each; None if it cannot."""
        if node.op == "reshape":
            traced = self.trace(node)
            return None if traced is None or traced[0] is node.inputs[0] or not _is_in_rows(*traced) else [traced]
        if node.op != "concat":
            return None
        parts, axis, start = [], attrs_of(node, at.ConcatAttrs).axis, _zero()
        for i in node.inputs:
            traced = self.trace(i) if i in self.read_once else None
            if traced is None or not _is_in_rows(*traced):
                return None
            base, index = traced
            shifted = Index(index[axis].terms, index[axis].offset + start)
            parts.append((base, (*index[:axis], shifted, *index[axis + 1 :])))
            start = start + i.type.shape[axis]
        return parts if _is_one_call([base for base, _ in parts]) else None

    def trace(self, node: Node) -> tuple[Node, Indices] | None:
        """The call result that a node is a view of, and the index of the result's elements in the node."""
        if is_result(node) and node.inputs[0].op != "exchange":  # a collective writes its tensors contiguously
            return (node, identity(node.type.rank))
        if node.op not in ("permute", "reshape") or node.inputs[0] not in self.read_once:
            return None
        source = self.trace(node.inputs[0])
        if source is None:
            return None
        base, index = source
        if node.op == "permute":
            return base, tuple(index[d] for d in attrs_of(node, at.PermuteAttrs).order)
        merged = merge_index(node.inputs[0].type.shape, node.type.shape, index)
        return None if merged is None else (base, merged)


def _is_in_rows(part: Node, index: Indices) -> bool:
    """Is the last axis of the part contiguous there?  Routines write rows of consecutive elements."""
    return has_contiguous_columns(index, part.type.rank - 1)


def _zero() -> Extent:
    return 0


def _is_one_call(results: Sequence[Node]) -> bool:
    return len(set(results)) == len(results) and len({call_of(n) for n in results}) == 1


def compose_indices(outer: Indices, inner: Indices) -> Indices:
    """Composition: `outer`, whose axis i is the index `inner[i]`, as indices over the axes of `inner`."""
    out = []
    for i in outer:
        terms: dict[int, Extent] = {}
        offset = i.offset
        for a, c in i.terms:
            for b, d in inner[a].terms:
                terms[b] = terms.get(b, 0) + c * d
            offset = offset + inner[a].offset * c
        out.append(Index(tuple(sorted(terms.items())), offset))
    return tuple(out)


def has_contiguous_columns(index: Indices, column: int) -> bool:
    """Has the axis `column` stride 1 in the indexed tensor?"""
    strides = [dict(i.terms).get(column, 0) for i in index]
    return bool(strides) and strides[-1] == 1 and not any(strides[:-1])
