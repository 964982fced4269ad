"""Merging of batch axes: ops over (batch, time, width) are computed over (batch·time, width), to fuse with a GEMM.

A product of (batch, time, k) by (k, n) is one of (batch·time, k) by (k, n), reshaped to (batch, time, n) afterwards.
The planner cannot fuse across such a reshape (`split` below), so its consumers would be separate kernels.  This pass
sinks splits of leading axes below the elementwise ops and reductions that consume them (reshape sinking):

    f(split a, split c)         = split f(a, c)
    sum over the width, split a = split (sum over the width, a)
    sum over all parts, split a = sum over the whole, a          (adds in another order)

An op moves only if its other inputs have a merged form at no cost, and only if it then can fuse with something: an op
whose consumers all need the split form stays.  Axes of size 1 are merged like others: a value of shape
(batch, time, 1), such as the mean of a row with its axis kept, becomes one scalar per row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, below
from wholestep.compiler.ir.ops import LEAVES, OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import Shape, TensorType, boolean, product
from wholestep.compiler.target import Target

REDUCTIONS = frozenset(name for name, op in OPS.items() if op.family is Family.REDUCE)
VIEWS = ops_with(Trait.VIEW)


def merge_batch_axes(graph: IRGraph, target: Target) -> IRGraph:
    """Sink splits of leading axes below their consumers; the same graph if nothing moves.

    Optimistic: all possible moves are made, then those that enable no fusion are reverted, until none is left.  Each
    round reverts at least one move permanently, so the loop ends.
    """
    stays: set[Node] = set()
    while True:
        attempt = _Attempt(graph, stays, target)
        reverted = attempt.useless_moves() | attempt.separated_moves()
        if not reverted:
            return attempt.result()
        stays |= reverted


# -- splits ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitAxes:
    """A reshape that splits the leading axes `whole` into more axes, `parts`, and keeps the trailing axes."""

    whole: Shape
    parts: Shape

    @property
    def rank_reduction(self) -> int:
        return len(self.parts) - len(self.whole)

    def undo(self, shape: Shape) -> Shape:
        assert shape[: len(self.parts)] == self.parts, f"{shape} does not begin with {self.parts}"
        return (*self.whole, *shape[len(self.parts) :])

    def is_trailing(self, axis: int) -> bool:
        return axis >= len(self.parts)


def split_of(node: Node) -> SplitAxes | None:
    """The split that a reshape performs; None for other nodes, and for views of leaves, which cost nothing."""
    if node.op != "reshape" or not _is_computed(node.inputs[0]):
        return None
    merged, split_axes = node.inputs[0].type.shape, node.type.shape
    while merged and split_axes and merged[-1] == split_axes[-1]:
        merged, split_axes = merged[:-1], split_axes[:-1]
    # If a trailing axis has extent 0, the leading axes can have any product: compare it too.
    return (
        SplitAxes(merged, split_axes)
        if len(split_axes) > len(merged) > 0 and product(merged) == product(split_axes)
        else None
    )


def _is_computed(node: Node) -> bool:
    node = below(node, VIEWS)
    return not (node.host or node.op in LEAVES)


def _without_units(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)


def is_reinterpretation(node: Node) -> bool:
    """A reshape that changes more than unit axes: an element's index in the source is not an index expression, so the
    source has to be in memory anyway."""
    return node.op == "reshape" and _without_units(node.type.shape) != _without_units(node.inputs[0].type.shape)


# -- the walk ----------------------------------------------------------------------------------------------------


class _Attempt:
    """One round: the graph with every possible move, except for the ops in `stays`."""

    def __init__(self, graph: IRGraph, stays: set[Node], target: Target) -> None:
        self.graph, self.target = graph, target
        self.consumers = graph.consumers()
        self.roots = set(graph.roots)
        self.stored: set[Node] = set()  # new nodes that are in memory anyway, since they have several readers
        self.recomputed: set[Node] = set()  # new nodes over leaves alone, which the planner recomputes in every reader
        self.moved: set[Node] = set()  # old nodes, including those in `collapsed`
        self.collapsed: set[Node] = set()
        self.merged: dict[tuple[Node, SplitAxes], Node | None] = {}
        self.new: dict[Node, Node] = {}
        for old in graph.nodes:
            node = old.with_inputs([self.new[i] for i in old.inputs])
            with b.origin(old):
                moved = None if old in stays or old in self.roots else self._move(node)
                self.new[old] = moved or self._collapse(old, node) or _merge_reshapes(node)
            if moved is not None:
                self.moved.add(old)
            if _is_recomputed(node, self.recomputed):
                self.recomputed.add(self.new[old])
            if old in self.roots or len(self.consumers[old]) > 1:
                self.stored.add(self.new[old])

    def result(self) -> IRGraph:
        return self.graph.with_nodes(self.new)

    def useless_moves(self) -> set[Node]:
        """Moved ops that could fuse with a consumer in split form, and have no consumer in merged form."""
        useless: set[Node] = set()
        for old in reversed(self.graph.nodes):
            if old in self.moved:
                consumers = [c for c in self.consumers[old] if can_fuse_with_producer(c)]
                flat = [c for c in consumers if c in self.collapsed or (c in self.moved and c not in useless)]
                if consumers and not flat:
                    useless.add(old)
        return useless

    def separated_moves(self) -> set[Node]:
        """Moved ops that would be separated from the row reductions that consume them.

        A GEMM epilogue can contain elementwise consumers (near), but no reduction along a row and nothing that depends
        on one (far).  If far ops read two or more near ops, the epilogue would store all of those; in split form, near
        and far ops are one kernel that loads the product alone.
        """
        near, far = self._distances()
        read_from_far: dict[int, list[Node]] = {}
        for old in self.graph.nodes:
            products = near[old] & _union(far[c] for c in self.consumers[old])
            while products:
                lowest = products & -products
                read_from_far.setdefault(lowest, []).append(old)
                products ^= lowest
        return {n for nodes in read_from_far.values() if len(nodes) > 1 for n in nodes if n in self.moved}

    def _distances(self) -> tuple[dict[Node, int], dict[Node, int]]:
        """For each old node, the bit sets of products to which it is near and far.

        A node that reads a product through an op that did not move, such as another product, is neither.
        """
        near: dict[Node, int] = {}
        far: dict[Node, int] = {}
        beyond: dict[Node, int] = {}
        products = 0
        for old in self.graph.nodes:
            near_inputs, far_inputs, beyond_inputs = (
                _union(mask[i] for i in old.inputs) for mask in (near, far, beyond)
            )
            split = split_of(self.new[old])
            if split is not None and self._has_epilogue(self.new[old].inputs[0]):
                near_inputs, products = near_inputs | 1 << products, products + 1
            if old.op != "reshape" and old not in self.moved:
                near_inputs, far_inputs, beyond_inputs = 0, 0, near_inputs | far_inputs | beyond_inputs
            elif old.op != "reshape" and not old.is_elementwise:
                near_inputs, far_inputs = 0, near_inputs | far_inputs
            near[old], far[old], beyond[old] = (
                near_inputs & ~(far_inputs | beyond_inputs),
                far_inputs & ~beyond_inputs,
                beyond_inputs,
            )
        return near, far

    def _has_epilogue(self, node: Node) -> bool:
        """Is the node a product with a fusible epilogue?  A target may compute large half products without one."""
        plain = self.target.fusion.plain_products and node.op == "matmul" and node.inputs[0].type.dtype.is_half
        return node.op == "matmul" and not plain

    # -- ops that move -------------------------------------------------------------------------------------------

    def _move(self, node: Node) -> Node | None:
        """The node rewritten as a split of its merged form; None if it has no merged form."""
        if node.is_elementwise:
            return self._move_elementwise(node)
        if node.op == "expand":
            return self._move_expand(node)
        return self._move_reduction(node) if node.op in REDUCTIONS else None

    def _move_elementwise(self, node: Node) -> Node | None:
        for split in dict.fromkeys(map(split_of, node.inputs)):
            if split is not None and (flat := self._elementwise(node, split)) is not None:
                return b.reshape(flat, node.type.shape)
        return None

    def _move_expand(self, node: Node) -> Node | None:
        split = split_of(node.inputs[0])
        if split is None or node.type.shape[: len(split.parts)] != split.parts:
            return None
        flat = self._expand(node, split)
        return None if flat is None else b.reshape(flat, node.type.shape)

    def _move_reduction(self, node: Node) -> Node | None:
        (x,) = node.inputs
        split, axis = split_of(x), reduced_axis(node)
        if split is None or axis is None or not split.is_trailing(axis):
            return None
        return b.reshape(_reduce(node, x.inputs[0], axis - split.rank_reduction), node.type.shape)

    def _collapse(self, old: Node, node: Node) -> Node | None:
        """Consecutive reductions over leading axes become one over the merged axis, if their operand is in memory."""
        count, x = 0, node
        while x.op == node.op and x.op in ("sum", "max") and reduced_axis(x) == count and x not in self.stored:
            count, x = count + 1, x.inputs[0]
        if count < 2 or _are_images(x, count):
            return None
        split = split_of(x)
        if split is not None and len(split.parts) == count:
            flat, axes = x.inputs[0], len(split.whole)
        elif x.type.rank > count and (is_reinterpretation(x) or is_stored_op(x)):
            flat, axes = b.reshape(x, (product(x.type.shape[:count]), *x.type.shape[count:])), 1
        else:
            return None
        for _ in range(count):
            self.collapsed.add(old)
            old = old.inputs[0]
        for axis in reversed(range(axes)):
            flat = _reduce(node, flat, axis)
        return flat

    # -- merged forms --------------------------------------------------------------------------------------------

    def _merge(self, node: Node, split: SplitAxes) -> Node | None:
        """The node with the split axes merged; None if that would cost a copy.  Memoized."""
        if (node, split) not in self.merged:
            self.merged[node, split] = self._compute_merged(node, split)
        return self.merged[node, split]

    def _compute_merged(self, node: Node, split: SplitAxes) -> Node | None:
        merged_shape = split.undo(node.type.shape)
        if node.op == "reshape" and (node.inputs[0].type.shape == merged_shape or is_reinterpretation(node)):
            return b.reshape(node.inputs[0], merged_shape)
        if node.op == "expand":
            return self._expand(node, split)
        if node.op == "iota":
            axis = attrs_of(node, at.IotaAttrs).axis
            return (
                b.iota(merged_shape, axis - split.rank_reduction, node.type.dtype) if split.is_trailing(axis) else None
            )
        if node.op == "random":  # counter-based: an element depends on its linear index only
            a = attrs_of(node, at.RandomAttrs)
            return b.make("random", (), at.RandomAttrs(a.key, TensorType(merged_shape, node.type.dtype), a.first))
        # The planner does not store comparisons either, but recomputes them from inputs in memory.
        if node.is_elementwise and (node in self.recomputed or node.type.dtype == boolean):
            return self._elementwise(node, split)
        return b.reshape(node, merged_shape) if self._is_in_memory(node) else None

    def _elementwise(self, node: Node, split: SplitAxes) -> Node | None:
        flat = [self._merge(i, split) for i in node.inputs]
        return None if None in flat else b.make(node.op, [i for i in flat if i is not None], node.attrs)

    def _expand(self, node: Node, split: SplitAxes) -> Node | None:
        """The merged form of a broadcast of a value with none of the split axes, or with all of them."""
        (x,), axes = node.inputs, attrs_of(node, at.ExpandAttrs).axes
        trailing = [d - split.rank_reduction for d in axes if split.is_trailing(d)]
        merged_shape = split.undo(node.type.shape)
        if len(trailing) == len(axes):
            return b.expand_to(x, merged_shape, trailing)
        if axes[: len(split.parts)] != tuple(range(len(split.parts))):
            return None
        flat = self._merge(x, split)
        return None if flat is None else b.expand_to(flat, merged_shape, [*range(len(split.whole)), *trailing])

    def _is_in_memory(self, node: Node) -> bool:
        # A reshape of a matrix that is stored in blocks of columns is a copy.
        blocked = self.target.blocks_columns and node.type.rank <= 2
        dense = node.op in ops_with(Trait.GIVEN) or (node.is_state and not blocked)
        return dense or (node in self.stored and is_stored_op(node))


# -- kinds of ops ------------------------------------------------------------------------------------------------


def _are_images(node: Node, count: int) -> bool:
    """Sums over all pixels of (N, H, W, C), which spatial_reductions.py handles."""
    return node.type.rank == 4 and count == 3


def is_stored_op(node: Node) -> bool:
    """Can a kernel store this value?"""
    return not (node.host or node.op in LEAVES or node.op in VIEWS)


def _is_recomputed(node: Node, recomputed: set[Node]) -> bool:
    over_leaves = all(i in recomputed for i in node.inputs)
    return node.op in LEAVES or (over_leaves and (node.is_elementwise or node.op in VIEWS))


def can_fuse_with_producer(node: Node) -> bool:
    """Could the node fuse with its producer?"""
    if node.op in REDUCTIONS:
        return reduced_axis(node) == node.inputs[0].type.rank - 1
    return node.is_elementwise or node.op == "expand"


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def _merge_reshapes(node: Node) -> Node:
    if node.op != "reshape" or node.inputs[0].op != "reshape":
        return node
    return b.reshape(node.inputs[0].inputs[0], node.type.shape)


def reduced_axis(node: Node) -> int | None:
    """The axis of a reduction over a single axis; None for other nodes."""
    if node.op == "argmax":
        return attrs_of(node, at.ArgmaxAttrs).axis
    if node.op not in ("sum", "max"):
        return None
    axes = attrs_of(node, at.ReduceAttrs).axes
    return axes[0] if len(axes) == 1 else None


def _reduce(like: Node, x: Node, axis: int) -> Node:
    if like.op == "argmax":
        return b.make("argmax", (x,), at.ArgmaxAttrs(axis))
    return b.sum_axes(x, (axis,)) if like.op == "sum" else b.max_axes(x, (axis,))
