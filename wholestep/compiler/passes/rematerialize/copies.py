"""Copies of values for their readers: the node class that the planner reads, and the rebuild of a graph with copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine
from wholestep.compiler.ir.ops import Trait, ops_with

VIEWS = ops_with(Trait.VIEW)
BARRIERS = ops_with(Trait.PRODUCT) | {"scan"}  # ops whose operand and reader are never in one kernel
INDEX_FUNCTIONS = frozenset({"iota", "random"})  # ops computed from indices alone, by any kernel that reads them

Images = dict[Node, Node]  # node of a graph -> its replacement


class Rematerialized(Node):
    """A rematerialized value, which is computed a second time.

    in_reader: the planner computes it in the kernel of its reader, or in a neighbouring one.
    late: it is computed as late as possible, since recomputation is meant to save its memory in the meantime.
    """

    __slots__ = ("in_reader", "late")

    def __init__(
        self,
        op: str,
        inputs: Sequence[Node],
        attrs: Attrs,
        name: str = "",
        line: SourceLine | None = None,
        *,
        in_reader: bool = True,
        late: bool = False,
    ) -> None:
        super().__init__(op, inputs, attrs, name, line)
        self.in_reader, self.late = in_reader, late

    def copy(self, inputs: Sequence[Node], attrs: Attrs) -> Node:
        return Rematerialized(self.op, inputs, attrs, self.name, self.line, in_reader=self.in_reader, late=self.late)

    @classmethod
    def of(cls, node: Node, inputs: Sequence[Node], *, in_reader: bool = True, late: bool = False) -> Node:
        """The same operation on other inputs, marked as rematerialized."""
        return cls(node.op, inputs, node.attrs, node.name, node.line, in_reader=in_reader, late=late)


def is_in_reader(node: Node) -> bool:
    """Is the node computed in the kernel of its reader?"""
    return isinstance(node, Rematerialized) and node.in_reader


def is_late(node: Node) -> bool:
    """Is the node rematerialized to save memory, so that it must not be computed early?"""
    return isinstance(node, Rematerialized) and node.late


def copy_for_readers(graph: IRGraph, new: Images, input_of: Callable[[Node, Node, Images], Node]) -> IRGraph:
    """Rebuild a graph in which readers read copies: `input_of(value, reader, copies)` returns a reader's new input.

    `new` is filled with the image of each node; `copies` belongs to the reader, so that its inputs share them.  The
    same graph if nothing is copied.  Common subexpression elimination must not run afterwards: it merges the copies.
    """
    for node in graph.nodes:
        copies: Images = {}
        new[node] = node.with_inputs([input_of(i, node, copies) for i in node.inputs])
    return graph.with_nodes(new)
