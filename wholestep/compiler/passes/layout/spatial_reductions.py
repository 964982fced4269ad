"""Spatial reductions over images (N, H, W, C): H and W are merged into one axis, with the elementwise producers.

A sum over W, then H, is many short column reductions; a sum over H·W is one long one.  N stays a separate axis, by
which threads divide the work, since there may be too few channels for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.types import Shape, TensorType, boolean, product
from wholestep.compiler.passes.layout.merge_batch_axes import is_stored_op
from wholestep.compiler.passes.rematerialize.copies import Rematerialized

HalfImages = dict[Node, frozenset[Node] | None]

BATCH, HEIGHT, WIDTH = 0, 1, 2  # axes of images


def merge_spatial_sums(graph: IRGraph) -> IRGraph:
    """Rewrite sums over H and W as one sum over H·W; the same graph if there are none."""
    return _merge_sums(graph, (HEIGHT, WIDTH))


def merge_batch_spatial_sums(graph: IRGraph) -> IRGraph:
    """Rewrite sums over N, H and W as one sum over N·H·W, for devices that split long reductions anyway."""
    return _merge_sums(graph, (BATCH, HEIGHT, WIDTH))


def _merge_sums(graph: IRGraph, axes: tuple[int, ...]) -> IRGraph:
    if all(_summed_images(n, axes) is None for n in graph.nodes):
        return graph
    merger = _AxesMerger(graph, axes)
    for node in graph.nodes:
        with b.origin(node):
            merger.visit(node)
    return graph.with_nodes(merger.new)


def _summed_images(node: Node, axes: tuple[int, ...]) -> Node | None:
    """The images that a node is the sum of, by one sum per axis, the last axis first; None for other nodes."""
    for axis in axes:
        if not _is_sum(node, axis):
            return None
        (node,) = node.inputs
    return node if node.type.rank == 4 else None


def _is_sum(node: Node, axis: int) -> bool:
    return node.op == "sum" and attrs_of(node, at.SumAttrs).axes == (axis,)


class _AxesMerger:
    """Rebuilds the graph, with `axes` of images merged into one wherever the merge costs no copy."""

    def __init__(self, graph: IRGraph, axes: tuple[int, ...]) -> None:
        self.axes = axes
        self.readers = graph.consumers()
        self.roots = set(graph.roots)
        self.half_images = half_images_of(graph)
        self.recomputed = self.find_recomputed(graph)  # values of sums that their other readers compute, too
        self.new: dict[Node, Node] = {}
        self.merged: dict[Node, Node | None] = {}
        first, merged_into_one = axes[0], len(axes) - 1
        self.kept_axes = {d: d if d < first else d - merged_into_one for d in range(4) if d not in axes}

    def visit(self, node: Node) -> None:
        images = _summed_images(node, self.axes)
        merged_form = None if images is None else self.merged_form(images)
        if merged_form is None:
            inputs = [self.new[i] for i in node.inputs]
            self.new[node] = Rematerialized.of(node, inputs) if node in self.recomputed else node.with_inputs(inputs)
        else:
            self.new[node] = b.sum_axes(merged_form, self.axes[:1])

    def find_recomputed(self, graph: IRGraph) -> set[Node]:
        """The functions of half images below the sums: nothing stores them, so that each kernel that reads them may."""
        recomputed: set[Node] = set()
        waiting = [image for n in graph.nodes if (image := _summed_images(n, self.axes)) is not None]
        while waiting:
            node = waiting.pop()
            if node not in recomputed and is_of_half_images(node, self.half_images) and not node.type.dtype.is_half:
                recomputed.add(node)
                waiting += node.inputs
        return recomputed

    def merged_shape(self, shape: Shape) -> Shape:
        first, last = self.axes[0], self.axes[-1] + 1
        return (*shape[:first], product(shape[first:last]), *shape[last:])

    def merged_form(self, node: Node) -> Node | None:
        if node not in self.merged:
            with b.origin(node):
                self.merged[node] = self.compute_merged(node)
        return self.merged[node]

    def compute_merged(self, node: Node) -> Node | None:
        shape = self.merged_shape(node.type.shape)
        if node.op == "expand":
            axes = attrs_of(node, at.ExpandAttrs).axes
            kept_axes = [self.kept_axes.get(axis) for axis in axes]
            return (
                None
                if None in kept_axes
                else b.expand_to(self.new[node.inputs[0]], shape, [a for a in kept_axes if a is not None])
            )
        if node.is_elementwise and self.is_fused(node):
            inputs = [self.merged_form(i) for i in node.inputs]
            return None if None in inputs else b.make(node.op, [i for i in inputs if i is not None], node.attrs)
        return b.reshape(self.new[node], shape) if is_stored_op(node) else None

    def is_fused(self, node: Node) -> bool:
        """Is the node computed in the sum's kernel: no other reader, a comparison, or as cheap to recompute as one?

        A value that is rounded to a half type is stored by the kernel that rounds it.
        """
        if node.type.dtype.is_half:
            return False
        alone = node not in self.roots and len(self.readers[node]) == 1
        return node.type.dtype == boolean or alone or _is_cheap(node) or is_of_half_images(node, self.half_images)


def _is_cheap(node: Node) -> bool:
    """Is the node a widening cast of a half value, or a `where` that selects between such casts and broadcasts?"""
    if node.op == "cast":
        return node.inputs[0].type.dtype.is_half
    branches = [_is_cheap(i) for i in node.inputs[1:] if i.op != "expand"] if node.op == "where" else []
    return bool(branches) and all(branches)


# Half images from which a sum computes its summand again: two readers load the bytes of one stored float32 image.
MOST_HALF_IMAGES = 3


def is_of_half_images(node: Node, half_images: HalfImages) -> bool:
    """Is a value a function of so few stored half images that loading them costs no more than storing it?

    The gradient g · f'(x) before a batch norm is read by its sums, and by the kernel after them.
    """
    images = half_images[node]
    return images is not None and 0 < len(images) <= MOST_HALF_IMAGES


def half_images_of(graph: IRGraph) -> HalfImages:
    """For each value, the half images that it is an elementwise function of; None if it has other large operands."""
    half_images: HalfImages = {}
    for node in graph.nodes:
        half_images[node] = _half_images(node, half_images)
    return half_images


def _half_images(node: Node, half_images: HalfImages) -> frozenset[Node] | None:
    if not isinstance(node.result, TensorType):
        return None
    if node.host or (node.op == "expand" and node.inputs[0].type.elements != node.type.elements):
        return frozenset()
    if node.type.dtype.is_half:
        return frozenset((node,))
    operands = [half_images[i] for i in node.inputs]
    if not node.is_elementwise or node.type.rank != 4 or None in operands:
        return None
    return frozenset(image for images in operands if images for image in images)


# -- variances -------------------------------------------------------------------------------------------------------


def variances_in_one_pass(graph: IRGraph) -> IRGraph:
    """Shifted single-pass variance: the column means m of x and the sums of (x - m)², in one pass over x.

    Both follow from the sums of y = x - s and y², where s is the first row: m = s + Σy/n and Σ(x - m)² = Σy² - (Σy)²/n.
    Since s is one of the values, cancellation loses only as many digits as s differs from their mean.
    """
    variances = {m: (x, squares) for squares in graph.nodes for m, x in _variance_terms(squares)}
    if not variances:
        return graph
    new: dict[Node, Node] = {}
    squared: dict[Node, Node] = {}
    for node in graph.nodes:
        if node in squared:
            new[node] = squared[node]
            continue
        new[node] = node.with_inputs([new[i] for i in node.inputs])
        if node in variances:
            x, squares = variances[node]
            with b.origin(node):
                new[node], squared[squares] = _mean_and_squares(new[x], new[node.inputs[1]])
    return graph.with_nodes(new)


def _variance_terms(node: Node) -> Iterator[tuple[Node, Node]]:
    """(mean, x), if the node is the sum over rows of (x - mean)²."""
    if not _is_sum(node, 0) or node.inputs[0].op != "mul" or node.type.rank != 1:
        return
    d, other = node.inputs[0].inputs
    if d is other and d.op == "sub" and d.inputs[1].op == "expand":
        x, mean = d.inputs[0], d.inputs[1].inputs[0]
        if mean.op == "div" and _is_sum(mean.inputs[0], 0) and mean.inputs[0].inputs[0] is x:
            yield mean, x


def _mean_and_squares(x: Node, count: Node) -> tuple[Node, Node]:
    stored = x.inputs[0] if x.op == "cast" else x
    _, channels = x.type.shape
    first = b.reshape(b.slice_axes(stored, (0, 0), (1, channels)), (channels,))
    wide = at.CastAttrs(x.type.dtype)

    def shift() -> Node:
        return b.sub(x, b.cast(b.expand_to(first, x.type.shape, (1,)), x.type.dtype))

    total, y = b.sum_axes(shift(), (0,)), shift()
    squares = b.sub(b.sum_axes(b.mul(y, y), (0,)), b.div(b.mul(total, total), count))
    start = (
        first if stored is x else Rematerialized("cast", (first,), wide, "", x.line)
    )  # computed in the kernel that adds it
    return b.add(start, b.div(total, count)), b.maximum(squares, b.zeros_like(squares))
