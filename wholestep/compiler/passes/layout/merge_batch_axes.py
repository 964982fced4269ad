"""Flattening: ops of (batch, time, width) computed as ops of (batch·time, width), as the product before them is.

A product of (batch, time, k) by (k, n) is one of (batch·time, k) by (k, n), split into (batch, time, n) afterwards.
To the planner such a split is another reading of memory: whatever follows it is a kernel of its own.  This pass moves
splits of leading axes behind the pointwise ops and reductions that follow, so that those stand next to the product:

    f(split a, split c)         = split f(a, c)
    sum over the width, split a = split (sum over the width, a)
    sum over all parts, split a = sum over the whole, a          (adds in another order)

An op moves only where its other inputs have a flat form that costs nothing, and only where that brings it next to
something: an op all of whose followers need the parts stays with them.  Axes of size 1 are parts like others: what is
computed of (batch, time, 1), a row's mean with its axis kept, becomes one number per row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import LEAVES, OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import Shape, TensorType, boolean, product
from wholestep.compiler.target import Target

REDUCTIONS = frozenset(name for name, op in OPS.items() if op.family is Family.REDUCE)
VIEWS = ops_with(Trait.VIEW)


def flatten(graph: IRGraph, target: Target) -> IRGraph:
    """Move splits of leading axes behind the ops that follow them; the same graph where nothing moves.

    Moves that turn out not to bring an op next to another are taken back, until all that are left do: each round
    takes back at least one for good.
    """
    stays: set[Node] = set()
    while True:
        attempt = _Attempt(graph, stays, target)
        taken_back = attempt.useless_moves() | attempt.separated_moves()
        if not taken_back:
            return attempt.result()
        stays |= taken_back


# -- splits ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitAxes:
    """A reshape that writes the leading axes `whole` as more axes, `parts`, and keeps the axes behind them."""

    whole: Shape
    parts: Shape

    @property
    def rank_lost(self) -> int:
        return len(self.parts) - len(self.whole)

    def undo(self, shape: Shape) -> Shape:
        assert shape[: len(self.parts)] == self.parts, f"{shape} does not begin with {self.parts}"
        return (*self.whole, *shape[len(self.parts) :])

    def is_kept(self, axis: int) -> bool:
        return axis >= len(self.parts)


def split_of(node: Node) -> SplitAxes | None:
    """The split that a node is, of something computed; None where it is no split, or one of a leaf, which is free."""
    if node.op != "reshape" or not _is_computed(node.inputs[0]):
        return None
    whole, parts = node.inputs[0].type.shape, node.type.shape
    while whole and parts and whole[-1] == parts[-1]:
        whole, parts = whole[:-1], parts[:-1]
    # Behind an axis of length 0 the leading axes may be anything.
    return SplitAxes(whole, parts) if len(parts) > len(whole) > 0 and product(whole) == product(parts) else None


def _is_computed(node: Node) -> bool:
    while node.op in VIEWS:
        (node,) = node.inputs
    return not (node.host or node.op in LEAVES)


def _without_units(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)


def is_reinterpretation(node: Node) -> bool:
    """A reshape whose source is in memory anyway: no index into the source says where an element is."""
    return node.op == "reshape" and _without_units(node.type.shape) != _without_units(node.inputs[0].type.shape)


# -- the walk ----------------------------------------------------------------------------------------------------


class _Attempt:
    """The graph with every op moved that can be, except those in `stays`."""

    def __init__(self, graph: IRGraph, stays: set[Node], target: Target) -> None:
        self.graph, self.target = graph, target
        self.consumers = graph.consumers()
        self.roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
        self.stored: set[Node] = set()  # new nodes that are in memory anyway, since several read them
        self.remade: set[Node] = (
            set()
        )  # new nodes over leaves alone: the planner makes them again wherever they are read
        self.moved: set[Node] = set()  # old nodes, as are those collapsed
        self.collapsed: set[Node] = set()
        self.flat: dict[tuple[Node, SplitAxes], Node | None] = {}
        self.new: dict[Node, Node] = {}
        for old in graph.nodes:
            node = old.with_inputs([self.new[i] for i in old.inputs])
            with b.origin(old):
                moved = None if old in stays or old in self.roots else self._move(node)
                self.new[old] = moved or self._collapse(old, node) or _merge_reshapes(node)
            if moved is not None:
                self.moved.add(old)
            if _is_remade(node, self.remade):
                self.remade.add(self.new[old])
            if old in self.roots or len(self.consumers[old]) > 1:
                self.stored.add(self.new[old])

    def result(self) -> IRGraph:
        new = self.new
        if all(a is b for a, b in new.items()):
            return self.graph
        return IRGraph(
            tuple(Output(o.name, new[o.node]) for o in self.graph.outputs),
            tuple(Update(u.name, new[u.node]) for u in self.graph.updates),
            tuple(new[i] for i in self.graph.inputs),
        )

    def useless_moves(self) -> set[Node]:
        """Moved ops that could share a kernel with a follower in parts, and have none that is flat."""
        in_vain: set[Node] = set()
        for old in reversed(self.graph.nodes):
            if old in self.moved:
                followers = [c for c in self.consumers[old] if may_follow(c)]
                flat = [c for c in followers if c in self.collapsed or (c in self.moved and c not in in_vain)]
                if followers and not flat:
                    in_vain.add(old)
        return in_vain

    def separated_moves(self) -> set[Node]:
        """Moved ops that would be cut from the rows they belong to.

        The kernel of a product may hold what follows element by element (near), but no reduction along a row nor what
        depends on one (far).  Where far ops read two near ones or more, all of those would be written for them; in
        parts, near and far ops share a kernel that reads the product alone.
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
        """To which products each old node is near and far; a product is a bit.

        What reads a product by way of an op that did not move, such as another product, is neither.
        """
        near: dict[Node, int] = {}
        far: dict[Node, int] = {}
        beyond: dict[Node, int] = {}
        products = 0
        for old in self.graph.nodes:
            close, away, out = (_union(mask[i] for i in old.inputs) for mask in (near, far, beyond))
            split = split_of(self.new[old])
            if split is not None and self._takes_followers(self.new[old].inputs[0]):
                close, products = close | 1 << products, products + 1
            if old.op != "reshape" and old not in self.moved:
                close, away, out = 0, 0, close | away | out
            elif old.op != "reshape" and not old.is_elementwise:
                close, away = 0, close | away
            near[old], far[old], beyond[old] = close & ~(away | out), away & ~out, out
        return near, far

    def _takes_followers(self, node: Node) -> bool:
        """Is it a product whose kernel computes what follows?  Large ones of half operands may be plain."""
        plain = self.target.fusion.plain_products and node.op == "matmul" and node.inputs[0].type.dtype.is_half
        return node.op == "matmul" and not plain

    # -- ops that move -------------------------------------------------------------------------------------------

    def _move(self, node: Node) -> Node | None:
        """The node as a split of its flat form; None where it has none."""
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
        if split is None or axis is None or not split.is_kept(axis):
            return None
        return b.reshape(_reduce(node, x.inputs[0], axis - split.rank_lost), node.type.shape)

    def _collapse(self, old: Node, node: Node) -> Node | None:
        """Sums over axis 1, then axis 0 are one sum over both as one axis, where what they read is in memory."""
        count, x = 0, node
        while x.op == node.op and x.op in ("sum", "max") and reduced_axis(x) == count and x not in self.stored:
            count, x = count + 1, x.inputs[0]
        if count < 2 or _are_images(x, count):
            return None
        split = split_of(x)
        if split is not None and len(split.parts) == count:
            flat, axes = x.inputs[0], len(split.whole)
        elif x.type.rank > count and (is_reinterpretation(x) or _is_stored_op(x)):
            flat, axes = b.reshape(x, (product(x.type.shape[:count]), *x.type.shape[count:])), 1
        else:
            return None
        for _ in range(count):
            self.collapsed.add(old)
            old = old.inputs[0]
        for axis in reversed(range(axes)):
            flat = _reduce(node, flat, axis)
        return flat

    # -- flat forms ----------------------------------------------------------------------------------------------

    def _flat(self, node: Node, split: SplitAxes) -> Node | None:
        """The node with its parts as the whole; None where that would cost something."""
        if (node, split) not in self.flat:
            self.flat[node, split] = self._make_flat(node, split)
        return self.flat[node, split]

    def _make_flat(self, node: Node, split: SplitAxes) -> Node | None:
        whole = split.undo(node.type.shape)
        if node.op == "reshape" and (node.inputs[0].type.shape == whole or is_reinterpretation(node)):
            return b.reshape(node.inputs[0], whole)
        if node.op == "expand":
            return self._expand(node, split)
        if node.op == "iota":
            axis = attrs_of(node, at.IotaAttrs).axis
            return b.iota(whole, axis - split.rank_lost, node.type.dtype) if split.is_kept(axis) else None
        if node.op == "random":  # an element's number depends on its place in memory
            a = attrs_of(node, at.RandomAttrs)
            return b.make("random", (), at.RandomAttrs(a.key, TensorType(whole, node.type.dtype), a.first))
        # The planner does not store a comparison either, but makes it again, if its inputs are there.
        if node.is_elementwise and (node in self.remade or node.type.dtype == boolean):
            return self._elementwise(node, split)
        return b.reshape(node, whole) if self._is_in_memory(node) else None

    def _elementwise(self, node: Node, split: SplitAxes) -> Node | None:
        flat = [self._flat(i, split) for i in node.inputs]
        return None if None in flat else b.make(node.op, [i for i in flat if i is not None], node.attrs)

    def _expand(self, node: Node, split: SplitAxes) -> Node | None:
        """An expand of what has none of the parts among its axes, or all of them."""
        (x,), axes = node.inputs, attrs_of(node, at.ExpandAttrs).axes
        behind = [d - split.rank_lost for d in axes if split.is_kept(d)]
        whole = split.undo(node.type.shape)
        if len(behind) == len(axes):
            return b.expand_to(x, whole, behind)
        if axes[: len(split.parts)] != tuple(range(len(split.parts))):
            return None
        flat = self._flat(x, split)
        return None if flat is None else b.expand_to(flat, whole, [*range(len(split.whole)), *behind])

    def _is_in_memory(self, node: Node) -> bool:
        # Another shape of a matrix that lies in blocks of columns is a copy.
        blocked = self.target.blocks_columns and node.type.rank <= 2
        dense = node.op in ops_with(Trait.GIVEN) or (node.is_state and not blocked)
        return dense or (node in self.stored and _is_stored_op(node))


# -- kinds of ops ------------------------------------------------------------------------------------------------


def _are_images(node: Node, count: int) -> bool:
    """Sums over all pixels of (N, H, W, C): see spatial_reductions.py."""
    return node.type.rank == 4 and count == 3


def _is_stored_op(node: Node) -> bool:
    """A value that a kernel may write."""
    return not (node.host or node.op in LEAVES or node.op in VIEWS)


def _is_remade(node: Node, remade: set[Node]) -> bool:
    over_leaves = all(i in remade for i in node.inputs)
    return node.op in LEAVES or (over_leaves and (node.is_elementwise or node.op in VIEWS))


def may_follow(node: Node) -> bool:
    """Could the node share a kernel with what it reads?"""
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
    """The one axis that a reduction is over; None for other ops."""
    if node.op == "argmax":
        return attrs_of(node, at.ArgmaxAttrs).axis
    if node.op not in ("sum", "max"):
        return None
    axes: tuple[int, ...] = node.attrs.axes  # type: ignore[attr-defined]
    return axes[0] if len(axes) == 1 else None


def _reduce(like: Node, x: Node, axis: int) -> Node:
    if like.op == "argmax":
        return b.make("argmax", (x,), at.ArgmaxAttrs(axis))
    return b.sum_axes(x, (axis,)) if like.op == "sum" else b.max_axes(x, (axis,))
