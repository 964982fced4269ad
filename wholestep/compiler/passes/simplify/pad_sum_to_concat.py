"""Sums of zero-padded, disjoint slices become concatenations.

    pad(a, 0 .. n) + pad(b, n .. n + m)   = concat(a, b)             (but -0 + 0 is +0: see fold.py)
    reshape(concat(a, b))                 = concat(reshape a, reshape b)     if only the axes before it are merged

The gradient of a tensor that is sliced is such a sum, with one addition of zeros per slice.  The parts of a concat can
be stored directly at their offsets by the kernels that compute them (concat elimination).
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node


def concat_pad_sums(graph: IRGraph) -> IRGraph:
    """Replace sums of disjoint pads by concatenations, in the shape in which their readers use them."""
    readers, roots = graph.consumers(), set(graph.roots)
    inner = graph.single_use_nodes()
    new: dict[Node, Node] = {}
    for old in graph.nodes:
        node = old.with_inputs([new[i] for i in old.inputs])
        with b.origin(old):
            if old.op == "add":
                node = concat_of_pads([new[t] for t in terms(old, inner)]) or node
            elif (
                old.op == "reshape"
                and all_readers_reshape_to(old, readers[old.inputs[0]])
                and old.inputs[0] not in roots
            ):
                node = reshape_parts(node) or node
        new[old] = node
    return graph.with_nodes(new)


def terms(total: Node, inner: set[Node]) -> list[Node]:
    """The terms of a tree of additions, as far as its inner nodes have no other readers."""
    result = []
    for i in total.inputs:
        result += terms(i, inner) if i.op == "add" and i in inner else [i]
    return result


def all_readers_reshape_to(reshape: Node, readers: Sequence[Node]) -> bool:
    return all(r.op == "reshape" and r.type == reshape.type for r in readers)


def concat_of_pads(pads: Sequence[Node]) -> Node | None:
    """The concatenation equal to a sum of pads, if the pads are zero and tile the result without overlap."""
    if any(p.op != "pad" or attrs_of(p, at.PadAttrs).value != 0 for p in pads):
        return None
    axis = padded_axis(pads)
    if axis is None:
        return None
    ordered = sorted(pads, key=lambda p: attrs_of(p, at.PadAttrs).low[axis])
    end = 0
    for p in ordered:
        length = p.inputs[0].type.shape[axis]
        if not isinstance(length, int) or attrs_of(p, at.PadAttrs).low[axis] != end:
            return None
        end += length
    return b.concat([p.inputs[0] for p in ordered], axis) if end == pads[0].type.shape[axis] else None


def padded_axis(pads: Sequence[Node]) -> int | None:
    """The axis along which all pads add elements; None if there are several, or none."""
    attrs = [attrs_of(p, at.PadAttrs) for p in pads]
    axes = {d for a in attrs for d, ends in enumerate(zip(a.low, a.high, strict=True)) if any(ends)}
    return axes.pop() if len(axes) == 1 else None


def reshape_parts(node: Node) -> Node | None:
    """A reshape of the axes before the concatenated one, applied to each part instead."""
    (concat,) = node.inputs
    if concat.op != "concat":
        return None
    axis = attrs_of(concat, at.ConcatAttrs).axis
    trailing = concat.type.rank - axis
    leading = node.type.rank - trailing
    if leading < 0 or node.type.shape[leading:] != concat.type.shape[axis:]:
        return None
    return b.concat([b.reshape(p, (*node.type.shape[:leading], *p.type.shape[axis:])) for p in concat.inputs], leading)
