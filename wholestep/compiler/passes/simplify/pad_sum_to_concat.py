"""Regrouping: sums of parts that do not overlap are put side by side instead.

    pad(a, 0 .. n) + pad(b, n .. n + m)   = concat(a, b)             (but -0 + 0 is +0: see fold.py)
    reshape(concat(a, b))                 = concat(reshape a, reshape b)     where the axes in front are merged

The gradient of a tensor that is cut into slices is such a sum, with as many additions of zeros as there are slices;
what is put side by side can be written in place by whoever computes it.
"""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update


def regroup(graph: IRGraph) -> IRGraph:
    """Replace sums of disjoint pads by concatenations, in the shape in which those are read."""
    readers = graph.consumers()
    roots = {o.node for o in graph.outputs} | {u.node for u in graph.updates}
    inner = {n for n in graph.nodes if len(readers[n]) == 1 and n not in roots}
    new: dict[Node, Node] = {}
    for old in graph.nodes:
        node = old.with_inputs([new[i] for i in old.inputs])
        with b.origin(old):
            if old.op == "add":
                node = side_by_side([new[t] for t in terms(old, inner)]) or node
            elif old.op == "reshape" and is_read_as(old, readers[old.inputs[0]]) and old.inputs[0] not in roots:
                node = reshape_parts(node) or node
        new[old] = node
    if all(a is b for a, b in new.items()):
        return graph
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def terms(total: Node, inner: set[Node]) -> list[Node]:
    """What a tree of additions adds, where nobody else reads what is inside it."""
    found = []
    for i in total.inputs:
        found += terms(i, inner) if i.op == "add" and i in inner else [i]
    return found


def is_read_as(reshape: Node, readers: Sequence[Node]) -> bool:
    return all(r.op == "reshape" and r.type == reshape.type for r in readers)


def side_by_side(pads: Sequence[Node]) -> Node | None:
    """The concatenation that a sum of pads is, if they are zero outside and fill the result without overlap."""
    if any(p.op != "pad" or attrs_of(p, at.PadAttrs).value != 0 for p in pads):
        return None
    padded = {d for p in pads for d, low_high in enumerate(_margins(p)) if any(low_high)}
    if len(padded) != 1:
        return None
    (axis,) = padded
    ordered = sorted(pads, key=lambda p: _margins(p)[axis][0])
    end = 0
    for p in ordered:
        length = p.inputs[0].type.shape[axis]
        if not isinstance(length, int) or _margins(p)[axis][0] != end:
            return None
        end += length
    return b.concat([p.inputs[0] for p in ordered], axis) if _margins(ordered[-1])[axis][1] == 0 else None


def _margins(pad: Node) -> list[tuple[int, int]]:
    a = attrs_of(pad, at.PadAttrs)
    return list(zip(a.low, a.high, strict=True))


def reshape_parts(node: Node) -> Node | None:
    """A reshape of the axes in front of a concatenation's, done to each part instead."""
    (whole,) = node.inputs
    if whole.op != "concat":
        return None
    axis = attrs_of(whole, at.ConcatAttrs).axis
    behind = whole.type.rank - axis
    front = node.type.rank - behind
    if front < 0 or node.type.shape[front:] != whole.type.shape[axis:]:
        return None
    return b.concat([b.reshape(p, (*node.type.shape[:front], *p.type.shape[axis:])) for p in whole.inputs], front)
