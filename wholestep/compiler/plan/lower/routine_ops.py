"""Ops that are a kernel of their own, with a native routine: which they are, and what they write in place.

Ops of one routine over the same inputs are results of one call.  A value that is only moved before it is read, or put
next to others, is written where its readers look for it: it is *assembled* there by the calls that compute it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.types import Extent, TensorType
from wholestep.compiler.plan.model.access import Indices, identity, merge_index
from wholestep.compiler.plan.model.kernel import Index

# op -> the routine that computes it
ROUTINES: Mapping[str, str] = {
    "attention": "attention",
    "attention_lse": "attention",
    "attention_grad": "attention_grad",
    "exchange": "exchange",
}
# Operands and results that a routine walks with a step of its own; of all others the last axis is consecutive elements.
STEPPED = frozenset({"lse"})


def is_call(node: Node) -> bool:
    return node.op in ROUTINES


def is_result(node: Node) -> bool:
    """Is the node a tensor that a routine writes?"""
    return is_call(node.inputs[0]) if node.op == "item" else is_call(node) and isinstance(node.result, TensorType)


def is_loop_result(node: Node) -> bool:
    """Is the node what a loop writes, step by step?"""
    return node.op == "item" and node.inputs[0].op == "scan"


def call_of(node: Node) -> object | None:
    """What all results of one call have in common, and what is assembled from them; None for other ops."""
    while node.op in ("item", "assembled"):
        node = node.inputs[0]
    if node.op == "scan":
        return node
    return (ROUTINES[node.op], node.inputs, node.attrs) if is_call(node) else None


class Assembled(Node):
    """A value in memory; part i lies at `places[i]`, indices over the axes of the part."""

    __slots__ = ("places",)

    def __init__(
        self,
        parts: Sequence[Node],
        places: Sequence[Indices],
        type: TensorType,
        name: str = "",
        line: SourceLine | None = None,
    ) -> None:
        # No op of the IR: it exists between here and the end of planning, and no table has a row for it.
        self.op, self.inputs, self.attrs, self.name, self.line = "assembled", tuple(parts), at.NONE, name, line
        self.result, self.host = type, False
        self.places = tuple(places)

    def with_inputs(self, inputs: Sequence[Node]) -> Assembled:
        return Assembled(inputs, self.places, self.type, self.name, self.line)


def assemble(graph: IRGraph) -> IRGraph:
    """The graph with every value assembled that can be: moved results of calls, and concatenations of such."""
    finder = _Finder(graph)
    new: dict[Node, Node] = {}
    for old in graph.nodes:
        inputs = [new[i] for i in old.inputs]
        found = finder.parts(old)
        if found is None:
            new[old] = old.with_inputs(inputs)
        else:
            parts, places = zip(*found, strict=True)
            new[old] = Assembled([new[p] for p in parts], places, old.type, old.name, old.line)
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


class _Finder:
    def __init__(self, graph: IRGraph) -> None:
        roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
        readers = graph.consumers()
        self.read_once = {n for n in graph.nodes if len(readers[n]) == 1 and n not in roots}

    def parts(self, node: Node) -> list[tuple[Node, Indices]] | None:
        """The results of calls that a node is assembled from, and where each goes; None if it is not."""
        if node.op == "reshape":
            found = self.trace(node)
            return None if found is None or found[0] is node.inputs[0] or not _is_in_rows(*found) else [found]
        if node.op != "concat":
            return None
        parts, axis, start = [], attrs_of(node, at.ConcatAttrs).axis, _zero()
        for i in node.inputs:
            found = self.trace(i) if i in self.read_once else None
            if found is None or not _is_in_rows(*found):
                return None
            base, index = found
            moved = Index(index[axis].terms, index[axis].offset + start)
            parts.append((base, (*index[:axis], moved, *index[axis + 1 :])))
            start = start + i.type.shape[axis]
        return parts if _is_one_call([base for base, _ in parts]) else None

    def trace(self, node: Node) -> tuple[Node, Indices] | None:
        """The result that a node is another view of, and where each of its elements is in the node."""
        if is_result(node) and node.inputs[0].op != "exchange":  # its tensors go from end to end
            return (node, identity(node.type.rank))
        if node.op not in ("permute", "reshape") or node.inputs[0] not in self.read_once:
            return None
        below = self.trace(node.inputs[0])
        if below is None:
            return None
        base, index = below
        if node.op == "permute":
            return base, tuple(index[d] for d in attrs_of(node, at.PermuteAttrs).order)
        moved = merge_index(node.inputs[0].type.shape, node.type.shape, index)
        return None if moved is None else (base, moved)


def _is_in_rows(part: Node, place: Indices) -> bool:
    """Does a routine write consecutive elements there, as all of them do?"""
    return has_contiguous_columns(place, part.type.rank - 1)


def _zero() -> Extent:
    return 0


def _is_one_call(results: Sequence[Node]) -> bool:
    return len(set(results)) == len(results) and len({call_of(n) for n in results}) == 1


def compose_indices(outer: Indices, inner: Indices) -> Indices:
    """`outer`, whose axes are positions in `inner`, over the axes of `inner`."""
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
    """Does the axis `column` walk consecutive elements of what is indexed?"""
    inside = [dict(i.terms).get(column, 0) for i in index]
    return bool(inside) and inside[-1] == 1 and not any(inside[:-1])
