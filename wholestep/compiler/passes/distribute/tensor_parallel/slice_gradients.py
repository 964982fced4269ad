"""Gradients of slices: a sum of zero-padded tensors that tile an axis is rewritten as their concatenation.

Needed for blocks of unequal widths (grouped-query attention: queries next to fewer keys and values in one matrix): the
zeros of a pad carry no block widths, so sharding could not be propagated through the sum; through a concat it can.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite


def padded_sums_to_concats(graph: IRGraph) -> IRGraph:
    """Rewrite sums of zero-padded slices as concatenations."""
    return rewrite(graph, _as_concat)


def _as_concat(node: Node) -> Node:
    if node.op != "add":
        return node
    terms = _terms(node)
    axes = {axis for term in terms for axis in _pad_axes(term)}
    if len(axes) != 1 or any(term.op != "pad" or attrs_of(term, at.PadAttrs).value for term in terms):
        return node
    (axis,), end = axes, 0
    terms.sort(key=lambda term: attrs_of(term, at.PadAttrs).low[axis])
    for term in terms:
        extent = term.inputs[0].type.shape[axis]
        if attrs_of(term, at.PadAttrs).low[axis] != end or not isinstance(extent, int):
            return node  # they overlap, or leave gaps
        end += extent
    if end != node.type.shape[axis]:
        return node
    with b.origin(node):
        return b.concat([term.inputs[0] for term in terms], axis)


def _terms(node: Node) -> list[Node]:
    return [term for i in node.inputs for term in _terms(i)] if node.op == "add" else [node]


def _pad_axes(node: Node) -> list[int]:
    if node.op != "pad":
        return []
    a = attrs_of(node, at.PadAttrs)
    return [axis for axis, ends in enumerate(zip(a.low, a.high, strict=True)) if any(ends)]
