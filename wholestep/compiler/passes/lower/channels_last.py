"""Images inside a program have their channels last: a pixel's channels are consecutive, what kernels vectorise over.

Convolutions and pools are rewritten, and so is what only computes with their results; a permutation stands where
channels must come second again.  Most permutations meet their inverse, the others are views: nobody sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import divide

LAST = (0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
SECOND = (0, 3, 1, 2)  # and back


def channels_last(graph: IRGraph) -> IRGraph:
    """The same program over images with their channels last."""
    if not any(_is_window(n) for n in graph.nodes):
        return graph
    mover = _Mover()
    for node in graph.nodes:
        with b.origin(node):
            mover.visit(node)
    return IRGraph(
        tuple(Output(o.name, mover.plain(o.node)) for o in graph.outputs),
        tuple(Update(u.name, mover.plain(u.node)) for u in graph.updates),
        tuple(mover.plain(i) for i in graph.inputs),
    )


def _is_window(node: Node) -> bool:
    return OPS[node.op].family is Family.WINDOW and not getattr(node.attrs, "last", True)


class _Mover:
    """For each node of the old graph its value as it was, its value with channels last, or both."""

    def __init__(self) -> None:
        self.as_it_was: dict[Node, Node] = {}
        self.with_last: dict[Node, Node] = {}

    def plain(self, node: Node) -> Node:
        if node not in self.as_it_was:
            self.as_it_was[node] = b.permute(self.with_last[node], SECOND)
        return self.as_it_was[node]

    def last(self, node: Node) -> Node:
        if node not in self.with_last:
            self.with_last[node] = self.permute_expand(node) or b.permute(self.as_it_was[node], LAST)
        return self.with_last[node]

    def permute_expand(self, node: Node) -> Node | None:
        """An expand has its axes wherever they are wanted, as long as they keep their order."""
        if node.op != "expand":
            return None
        a = attrs_of(node, at.ExpandAttrs)
        axes = [LAST.index(d) for d in a.axes]
        if axes != sorted(axes):
            return None
        return b.expand_to(self.plain(node.inputs[0]), tuple(a.shape[d] for d in LAST), axes)

    def visit(self, node: Node) -> None:
        if _is_window(node):
            self.with_last[node] = b.make(node.op, [self.last(i) for i in node.inputs], replace(node.attrs, last=True))  # type: ignore[call-arg]
            if node.op == "conv2d_grad_weight":  # read by updates, over parameters as they are
                self.plain(node)
            return
        if any(i in self.with_last and i not in self.as_it_was for i in node.inputs) and self.follows(node):
            return
        if (steps := _steps_between(node)) is not None and (
            source := node.inputs[0].inputs[0].inputs[0]
        ) in self.with_last:
            self.with_last[node] = b.spread(self.last(source), [steps[d] for d in LAST])
            return
        self.as_it_was[node] = node.with_inputs([self.plain(i) for i in node.inputs])

    def follows(self, node: Node) -> bool:
        """Compute a node from images with channels last, where that is the same op over other axes."""
        if node.is_elementwise and node.type.rank == 4:
            self.with_last[node] = b.make(node.op, [self.last(i) for i in node.inputs], node.attrs)
        elif node.op in ("sum", "max"):
            return self.reduce(node)
        elif node.op in MOVEMENTS:
            self.with_last[node] = b.make(node.op, [self.last(i) for i in node.inputs], MOVEMENTS[node.op](node.attrs))
        else:
            return False
        return True

    def reduce(self, node: Node) -> bool:
        """A reduction whose remaining axes are in the same order."""
        axes = node.attrs.axes  # type: ignore[attr-defined]
        kept = [LAST.index(d) for d in range(4) if d not in axes]
        if kept != sorted(kept):
            return False
        reduce = b.sum_axes if node.op == "sum" else b.max_axes
        self.as_it_was[node] = reduce(self.last(node.inputs[0]), [LAST.index(d) for d in axes])
        return True


def _steps_between(node: Node) -> list[int] | None:
    """The steps at which a node has the elements of other images, and zeros between them: what `b.spread` makes."""
    pad = node.inputs[0] if node.op == "reshape" and node.type.rank == 4 else None
    if pad is None or pad.op != "pad" or pad.inputs[0].op != "reshape" or pad.inputs[0].inputs[0].type.rank != 4:
        return None
    (column,) = pad.inputs
    steps = [divide(e, s) for e, s in zip(node.type.shape, column.inputs[0].type.shape, strict=True)]
    known = [s for s in steps if isinstance(s, int)]
    if len(known) < 4 or max(known) == 1:
        return None
    made = b.spread(column.inputs[0], known)
    same = made.inputs[0].attrs == pad.attrs and made.inputs[0].inputs[0].attrs == column.attrs
    return known if same else None


def _channels_last_order(values: Sequence[object]) -> tuple[object, ...]:
    return tuple(values[d] for d in LAST)


def _slice(a: at.SliceAttrs) -> at.Attrs:
    return at.SliceAttrs(_channels_last_order(a.starts), _channels_last_order(a.stops), _channels_last_order(a.steps))  # type: ignore[arg-type]


def _pad(a: at.PadAttrs) -> at.Attrs:
    return at.PadAttrs(_channels_last_order(a.low), _channels_last_order(a.high), a.value)  # type: ignore[arg-type]


def _concat(a: at.ConcatAttrs) -> at.Attrs:
    return at.ConcatAttrs(LAST.index(a.axis))


MOVEMENTS: dict[str, Callable[[Any], at.Attrs]] = {"slice": _slice, "pad": _pad, "concat": _concat}
