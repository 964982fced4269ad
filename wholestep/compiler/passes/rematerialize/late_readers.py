"""Rematerialization for the backward pass: elementwise functions of one stored tensor are recomputed by late readers.

The derivative of a GELU is a function of its argument, a normalized row one of the row and two scalars; argument and
row are in memory anyway.  Storing such a value for the backward pass and loading it there costs its bytes again.  So

    f(x, small) is duplicated for each late reader, if x is in memory and takes no more bytes than the result

where x may be two tensors in a half type, which are in memory because operands and results of products are rounded.
A reader is *late* if it also depends on a barrier (a contraction or a library routine) that depends on x: then no fused
kernel can contain both.  Invariant: the same ops on the same operands.
"""

from __future__ import annotations

from collections.abc import Iterator

from wholestep.compiler.ir.graph import IRGraph, Node, below
from wholestep.compiler.ir.ops import LEAVES
from wholestep.compiler.ir.types import TensorType, boolean
from wholestep.compiler.passes.rematerialize.copies import (
    BARRIERS,
    INDEX_FUNCTIONS,
    VIEWS,
    Images,
    Rematerialized,
    copy_for_readers,
)

MASK_BYTES = 2  # per element, to store and load a mask: as many as loading a half tensor, which its reader often loads


def rematerialize_late_reads(graph: IRGraph) -> IRGraph:
    """Give every late reader of a recomputable value its own copy of the value."""
    late_readers = _LateReaders(graph)
    new: Images = {}

    def input_of(value: Node, reader: Node, copies: Images) -> Node:
        return late_readers.copy(value, new, copies) if late_readers.is_recomputed(value, reader) else new[value]

    return copy_for_readers(graph, new, input_of)


class _LateReaders:
    """For each elementwise value, the tensors of its size that it is computed from; and which readers are late.

    Reachability is a bit set of barriers per node: those it depends on (`before`), and those that depend on it.
    """

    def __init__(self, graph: IRGraph) -> None:
        self.before: dict[Node, int] = {}  # bit set of the barriers that a node depends on
        self.after: dict[Node, int] = {}  # bit set of the barriers that depend on it
        self.sources: dict[Node, frozenset[Node]] = {}
        barriers = [n for n in graph.nodes if n.op in BARRIERS]
        bit = {n: 1 << i for i, n in enumerate(barriers)}
        for n in graph.nodes:
            self.before[n] = bit.get(n, 0)
            for i in n.inputs:
                self.before[n] |= self.before[i]
        readers = graph.consumers()
        for n in reversed(graph.nodes):
            self.after[n] = bit.get(n, 0)
            for r in readers[n]:
                self.after[n] |= self.after[r]
        self.stored = {n for n in graph.nodes if any(self._is_late(n, r) for r in _beyond_views(n, readers))}
        for n in graph.nodes:
            self.sources[n] = self._sources_of(n)

    def _sources_of(self, node: Node) -> frozenset[Node]:
        """The tensors of equal size at the start of a chain of elementwise ops; the node itself if several."""
        if not isinstance(node.result, TensorType):
            return frozenset((node,))
        if node.op == "expand" and node.inputs[0].type.elements != node.type.elements:
            return frozenset()
        if node.op == "reshape":
            return self.sources[node.inputs[0]]
        if node.op in INDEX_FUNCTIONS or node.host or (node.op in LEAVES and not node.type.rank):
            return frozenset()
        narrows = node.op == "cast" and node.type.dtype.size < node.inputs[0].type.dtype.size
        if not node.is_elementwise or narrows:
            return frozenset((node,))
        sources = frozenset(x for i in node.inputs if i.type.elements == node.type.elements for x in self.sources[i])
        halves = all(x.type.dtype.is_half for x in sources)  # two half values in memory take the bytes of one float32
        return sources if len(sources) < 2 or (halves and len(sources) == 2) else frozenset((node,))

    def _is_late(self, node: Node, reader: Node) -> bool:
        """Does the reader depend on a barrier that depends on the node?"""
        return bool(self.before[reader] & self.after[node])

    def is_recomputed(self, node: Node, reader: Node) -> bool:
        """Should a reader recompute this input?"""
        value = below(node, ("reshape",))
        if not value.is_elementwise or value in self.sources[value] or reader.op in BARRIERS:
            return False
        sources = self.sources[value]
        if not sources:
            return False
        source_bytes, value_bytes = sum(s.type.dtype.size for s in sources), value.type.dtype.size
        if value.op == "cast" and value.inputs[0] in sources and source_bytes < value_bytes:
            return True  # loading the narrower source is cheaper for every reader
        is_mask = value.type.dtype == boolean and source_bytes <= MASK_BYTES
        stored = all(s in self.stored or (s.type.dtype.is_half and len(sources) > 1) for s in sources)
        cheap = source_bytes < value_bytes or is_mask or (source_bytes == value_bytes and stored)
        return cheap and all(self._is_late(s, reader) and not self._is_late(s, value) for s in sources)

    def copy(self, node: Node, new: Images, copies: Images) -> Node:
        """Duplicate the chain of elementwise ops from the source to this node."""
        chain = node.is_elementwise or node.op == "reshape"
        if not chain or node.host or not self.sources[node] or node in self.sources[node]:
            return new[node]
        if node not in copies:
            inputs = [self.copy(i, new, copies) for i in node.inputs]
            copies[node] = Rematerialized.of(node, inputs)
        return copies[node]


def _beyond_views(node: Node, readers: dict[Node, list[Node]]) -> Iterator[Node]:
    """The readers of a node, through views."""
    for r in readers[node]:
        if r.op in VIEWS:
            yield from _beyond_views(r, readers)
        else:
            yield r
