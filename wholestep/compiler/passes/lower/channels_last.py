"""NHWC layout assignment: convolutions and pools compute with channels last, since kernels vectorize over channels.

The layout is propagated through elementwise ops, reductions and views of their results; a permute back to NCHW is
inserted where an op needs it.  Most permutes cancel with their inverse, and the others are views.  `image_views.py`
propagates it further, for devices that read strided images slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import divide

T = TypeVar("T")

LAST = (0, 2, 3, 1)  # (N, C, H, W) -> (N, H, W, C)
SECOND = (0, 3, 1, 2)  # (N, H, W, C) -> (N, C, H, W)


def channels_last(graph: IRGraph) -> IRGraph:
    """The same program with images in NHWC layout."""
    return propagate_layout(graph, LayoutPropagation())


def propagate_layout(graph: IRGraph, propagation: LayoutPropagation) -> IRGraph:
    """The program with every node in the layout that the propagation chooses; unchanged without windows."""
    if not any(is_window(n) for n in graph.nodes):
        return graph
    for node in graph.nodes:
        with b.origin(node):
            propagation.visit(node)
    original = propagation.in_original_layout
    return graph.with_roots(map(original, graph.roots), map(original, graph.inputs))


def is_window(node: Node) -> bool:
    return OPS[node.op].family is Family.WINDOW and not getattr(node.attrs, "last", True)


class LayoutPropagation:
    """Holds the value of each node of the old graph in its original layout, with channels last, or in both."""

    def __init__(self) -> None:
        self.original: dict[Node, Node] = {}
        self.channels_last: dict[Node, Node] = {}

    def in_original_layout(self, node: Node) -> Node:
        if node not in self.original:
            self.original[node] = b.permute(self.channels_last[node], SECOND)
        return self.original[node]

    def in_channels_last(self, node: Node) -> Node:
        if node not in self.channels_last:
            self.channels_last[node] = self.permute_expand(node) or b.permute(self.in_original_layout(node), LAST)
        return self.channels_last[node]

    def permute_expand(self, node: Node) -> Node | None:
        """A broadcast in NHWC layout without a permute, if the axes of its operand keep their order."""
        if node.op != "expand":
            return None
        a = attrs_of(node, at.ExpandAttrs)
        axes = [LAST.index(d) for d in a.axes]
        if axes != sorted(axes):
            return None
        return b.expand_to(self.in_original_layout(node.inputs[0]), tuple(a.shape[d] for d in LAST), axes)

    def is_image(self, node: Node) -> bool:
        """Is the node held with channels last only?"""
        return node in self.channels_last and node not in self.original

    def visit(self, node: Node) -> None:
        if is_window(node):
            self.channels_last[node] = b.make(
                node.op,
                [self.in_channels_last(i) for i in node.inputs],
                replace(node.attrs, last=True),  # type: ignore[call-arg]
            )
            if node.op == "conv2d_grad_weight":  # updates read weight gradients in the layout of the parameters
                self.in_original_layout(node)
            return
        if any(map(self.is_image, node.inputs)) and self.propagate(node):
            return
        if getattr(node.attrs, "order", ()) == LAST and node.inputs[0] in self.channels_last:
            self.original[node] = self.channels_last[node.inputs[0]]
            return
        if (steps := _steps_between(node)) is not None and (
            source := node.inputs[0].inputs[0].inputs[0]
        ) in self.channels_last:
            self.channels_last[node] = b.interleave_zeros(self.in_channels_last(source), [steps[d] for d in LAST])
            return
        self.original[node] = node.with_inputs([self.in_original_layout(i) for i in node.inputs])

    def propagate(self, node: Node) -> bool:
        """Compute a node in NHWC layout, if it is the same op over permuted axes; was it possible?"""
        if node.is_elementwise and node.type.rank == 4:
            self.channels_last[node] = b.make(node.op, [self.in_channels_last(i) for i in node.inputs], node.attrs)
        elif node.op in ("sum", "max"):
            return self.reduce(node)
        elif node.op in MOVEMENTS:
            self.channels_last[node] = b.make(
                node.op, [self.in_channels_last(i) for i in node.inputs], MOVEMENTS[node.op](node.attrs)
            )
        else:
            return False
        return True

    def reduce(self, node: Node) -> bool:
        """A reduction whose remaining axes have the same order in both layouts."""
        axes = attrs_of(node, at.ReduceAttrs).axes
        remaining_axes = [LAST.index(d) for d in range(4) if d not in axes]
        if remaining_axes != sorted(remaining_axes):
            return False
        reduce = b.sum_axes if node.op == "sum" else b.max_axes
        self.original[node] = reduce(self.in_channels_last(node.inputs[0]), [LAST.index(d) for d in axes])
        return True


def _steps_between(node: Node) -> list[int] | None:
    """The steps of a dilation (elements of an image with zeros between them), if the node is the pattern that
    `b.spread` builds."""
    pad = node.inputs[0] if node.op == "reshape" and node.type.rank == 4 else None
    if pad is None or pad.op != "pad" or pad.inputs[0].op != "reshape" or pad.inputs[0].inputs[0].type.rank != 4:
        return None
    (column,) = pad.inputs
    steps = [divide(e, s) for e, s in zip(node.type.shape, column.inputs[0].type.shape, strict=True)]
    int_steps = [s for s in steps if isinstance(s, int)]
    if len(int_steps) < 4 or max(int_steps) == 1:
        return None
    dilated = b.interleave_zeros(column.inputs[0], int_steps)
    is_dilation = dilated.inputs[0].attrs == pad.attrs and dilated.inputs[0].inputs[0].attrs == column.attrs
    return int_steps if is_dilation else None


def _channels_last_order(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(values[d] for d in LAST)


def _slice(a: at.SliceAttrs) -> at.Attrs:
    return at.SliceAttrs(_channels_last_order(a.starts), _channels_last_order(a.stops), _channels_last_order(a.steps))


def _pad(a: at.PadAttrs) -> at.Attrs:
    return at.PadAttrs(_channels_last_order(a.low), _channels_last_order(a.high), a.value)


def _concat(a: at.ConcatAttrs) -> at.Attrs:
    return at.ConcatAttrs(LAST.index(a.axis))


MOVEMENTS: dict[str, Callable[[Any], at.Attrs]] = {"slice": _slice, "pad": _pad, "concat": _concat}
