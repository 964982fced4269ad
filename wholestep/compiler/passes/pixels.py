"""Sums over the pixels of images, (N, H, W, C): rows and columns are one axis, and what only they read is made there.

Sums over W, then H, would add up as many short columns as an image has rows; a sum over H·W adds up one long one.  The
images stay apart: channels may be too few to be shared, images are not.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Graph, Node, Output, Update
from wholestep.compiler.ir.ops import LEAVES
from wholestep.compiler.ir.types import Shape, boolean
from wholestep.compiler.passes.flatten import VIEWS

HEIGHT, WIDTH, CHANNELS = 1, 2, 3  # axes of images


def sum_pixels(graph: Graph) -> Graph:
    """Write sums over both axes of images as sums over one; the same graph where there are none."""
    if not any(_is_over_pixels(n) for n in graph.nodes):
        return graph
    merger = _Merger(graph)
    for node in graph.nodes:
        with b.origin(node):
            merger.visit(node)
    new = merger.new
    return Graph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _is_over_pixels(node: Node) -> bool:
    """The sum over H of a sum over W."""
    return _is_sum(node, HEIGHT) and _is_sum(node.inputs[0], WIDTH) and node.inputs[0].inputs[0].type.rank == 4


def _is_sum(node: Node, axis: int) -> bool:
    return node.op == "sum" and attrs_of(node, at.SumAttrs).axes == (axis,)


class _Merger:
    """The new node of every old one, and images as (N, H·W, C) where that costs nothing."""

    def __init__(self, graph: Graph) -> None:
        self.readers = graph.consumers()
        self.roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
        self.new: dict[Node, Node] = {}
        self.merged: dict[Node, Node | None] = {}

    def visit(self, node: Node) -> None:
        flat = self.flat(node.inputs[0].inputs[0]) if _is_over_pixels(node) else None
        if flat is None:
            self.new[node] = node.with_inputs([self.new[i] for i in node.inputs])
        else:
            self.new[node] = b.sum_axes(flat, (HEIGHT,))

    def flat(self, node: Node) -> Node | None:
        if node not in self.merged:
            with b.origin(node):
                self.merged[node] = self.make_flat(node)
        return self.merged[node]

    def make_flat(self, node: Node) -> Node | None:
        shape = _flat_shape(node.type.shape)
        if node.op == "expand":
            axes = attrs_of(node, at.ExpandAttrs).axes
            kept = [{0: 0, CHANNELS: 2}.get(axis) for axis in axes]
            return (
                None
                if None in kept
                else b.expand_to(self.new[node.inputs[0]], shape, [a for a in kept if a is not None])
            )
        if node.is_elementwise and self.is_made_here(node):
            inputs = [self.flat(i) for i in node.inputs]
            return None if None in inputs else b.make(node.op, [i for i in inputs if i is not None], node.attrs)
        stored = not (node.host or node.op in LEAVES or node.op in VIEWS)
        return b.reshape(self.new[node], shape) if stored else None

    def is_made_here(self, node: Node) -> bool:
        """A value that nobody else reads; a comparison is made again wherever it is read."""
        return node.type.dtype == boolean or (node not in self.roots and len(self.readers[node]) == 1)


def _flat_shape(shape: Shape) -> Shape:
    n, height, width, channels = shape
    return n, height * width, channels
