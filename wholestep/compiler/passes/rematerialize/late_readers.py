"""What can be made of one value in memory is made again by those who need it late, instead of being stored.

The derivative of a GELU is made of its argument, a normalised row of the row and two numbers: the argument and the row
are in memory anyway.  Storing what is made of them and reading it in the backward pass costs as many bytes again.  So

    f(x, small) for each late reader of f(x, small), where x is in memory and takes no more bytes than the result

A reader is *late* if it also depends on a contraction or a routine that depends on x: no kernel could hold both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import LEAVES, Trait, ops_with
from wholestep.compiler.ir.types import TensorType

VIEWS = ops_with(Trait.VIEW)
BARRIERS = ops_with(Trait.PRODUCT) | {"scan"}
MADE = frozenset({"iota", "random"})  # wherever they are needed


class Again(Node):
    """A value that was made before: it is computed in the kernel of its reader."""

    __slots__ = ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Again(self.op, inputs, self.attrs, self.name, self.line)


def read_again(graph: IRGraph) -> IRGraph:
    """Give every late reader its own copy of such a value; the same graph where there is none.  Not to be followed by a
    pass that makes equal nodes one."""
    found = _Found(graph)
    new: dict[Node, Node] = {}
    changed = False
    for node in graph.nodes:
        copies: dict[Node, Node] = {}  # of this reader
        again = [i for i in node.inputs if found.is_again(i, node)]
        changed |= bool(again)
        new[node] = node.with_inputs([found.copy(i, new, copies) if i in again else new[i] for i in node.inputs])
    if not changed:
        return graph
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


class _Found:
    """Of each pointwise value the one whole tensor that it is made of, and who reads what late."""

    def __init__(self, graph: IRGraph) -> None:
        self.before: dict[Node, int] = {}  # a set of bits: the barriers that a node depends on
        self.behind: dict[Node, int] = {}  # those that depend on it
        self.sources: dict[Node, frozenset[Node]] = {}
        barriers = [n for n in graph.nodes if n.op in BARRIERS]
        bit = {n: 1 << i for i, n in enumerate(barriers)}
        for n in graph.nodes:
            self.before[n] = bit.get(n, 0)
            for i in n.inputs:
                self.before[n] |= self.before[i]
        readers = graph.consumers()
        for n in reversed(graph.nodes):
            self.behind[n] = bit.get(n, 0)
            for r in readers[n]:
                self.behind[n] |= self.behind[r]
        self.stored = {n for n in graph.nodes if any(self._is_late(n, r) for r in _beyond_views(n, readers))}
        for n in graph.nodes:
            self.sources[n] = self._sources_of(n)

    def _sources_of(self, node: Node) -> frozenset[Node]:
        """The values of as many elements that a chain of pointwise ops begins with."""
        if not isinstance(node.result, TensorType):
            return frozenset((node,))
        if node.op == "expand" and node.inputs[0].type.elements != node.type.elements:
            return frozenset()
        if node.op == "reshape":
            return self.sources[node.inputs[0]]
        if node.op in MADE or node.host or (node.op in LEAVES and not node.type.rank):
            return frozenset()
        narrows = node.op == "cast" and node.type.dtype.size < node.inputs[0].type.dtype.size
        if not node.is_elementwise or narrows:
            return frozenset((node,))
        made_of = frozenset(x for i in node.inputs if i.type.elements == node.type.elements for x in self.sources[i])
        return made_of if len(made_of) < 2 else frozenset((node,))

    def _is_late(self, node: Node, reader: Node) -> bool:
        """Does a reader wait for a contraction that waits for the node?"""
        return bool(self.before[reader] & self.behind[node])

    def is_again(self, node: Node, reader: Node) -> bool:
        """Shall a reader make an input of its own?"""
        made = _skip_views(node)
        if not made.is_elementwise or made in self.sources[made] or reader.op in BARRIERS:
            return False
        if len(self.sources[made]) != 1:
            return False
        (source,) = self.sources[made]
        of, to = source.type.dtype.size, made.type.dtype.size
        if made.op == "cast" and made.inputs[0] is source and of < to:
            return True  # everyone reads the narrow one
        cheap = of < to or (of == to and source in self.stored)
        return cheap and self._is_late(source, reader) and not self._is_late(source, made)

    def copy(self, node: Node, new: dict[Node, Node], copies: dict[Node, Node]) -> Node:
        """The chain from the source on once more."""
        chain = node.is_elementwise or node.op == "reshape"
        if not chain or node.host or not self.sources[node] or node in self.sources[node]:
            return new[node]
        if node not in copies:
            inputs = [self.copy(i, new, copies) for i in node.inputs]
            copies[node] = Again(node.op, inputs, node.attrs, node.name, node.line)
        return copies[node]


def _skip_views(node: Node) -> Node:
    while node.op == "reshape":
        node = node.inputs[0]
    return node


def _beyond_views(node: Node, readers: dict[Node, list[Node]]) -> Iterator[Node]:
    """Who reads a node, perhaps in another shape."""
    for r in readers[node]:
        if r.op in VIEWS:
            yield from _beyond_views(r, readers)
        else:
            yield r
