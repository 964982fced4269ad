"""Views are free: a chain of expands, permutes, slices and reshapes becomes an index into what lies below it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.shapes import quotients
from wholestep.compiler.ir.types import Extent, Shape, product
from wholestep.compiler.plan.model.kernel import Index

Indices = tuple[Index, ...]


@dataclass(frozen=True)
class Access:
    """Element `index` of `base`, seen with `shape` (its own, or another of as many elements)."""

    base: Node
    shape: Shape
    index: Indices


@cache
def identity(rank: int) -> Indices:
    return tuple(Index.axis(d) for d in range(rank))


def without_units(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)


def is_reinterpretation(node: Node) -> bool:
    """A reshape that does more than add or drop axes of size 1."""
    return node.op == "reshape" and without_units(node.type.shape) != without_units(node.inputs[0].type.shape)


def _scale_index(index: Index, start: Extent, step: int) -> Index:
    return Index(tuple((a, c * step) for a, c in index.terms), index.offset * step + start)


def _expand(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(index[d] for d in attrs.axes)


def _permute(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(index[attrs.order.index(d)] for d in range(len(index)))


def _slice(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(_scale_index(i, lo, step) for i, lo, step in zip(index, attrs.starts, attrs.steps, strict=True))


def _units(attrs: Any, shape: Shape, index: Indices) -> Indices:
    """Through a reshape that only adds or drops axes of size 1."""
    kept = iter([i for i, e in zip(index, attrs.shape, strict=True) if e != 1])
    return tuple(Index() if e == 1 else next(kept) for e in shape)


def _same(attrs: Any, _: Shape, index: Indices) -> Indices:
    return index


VIEWS: Mapping[str, Callable[[Any, Shape, Indices], Indices]] = {
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "reshape": _units,
    "half_copy": _same,  # see HalfCopy in lower/materialize.py: another stored form of a state
}


def linear(index: Sequence[Index], shape: Shape) -> Index:
    """The row-major position of an element."""
    terms: dict[int, Extent] = {}
    offset: Extent = 0
    stride: Extent = 1
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        assert i.over == 1, "a quotient is no part of a position"
        for a, c in i.terms:
            terms[a] = terms.get(a, 0) + c * stride
        offset = offset + i.offset * stride
        stride = stride * extent
    return Index(tuple(sorted(terms.items())), offset)


def merge_index(shape: Shape, into: Shape, index: Indices) -> Indices | None:
    """Element `index` of `shape` in a reshape to `into`; None where an axis is cut: its position is not affine."""
    out, axes = [], list(zip(index, shape, strict=True))
    for extent in into:
        group: list[tuple[Index, Extent]] = []
        while axes and (product(e for _, e in group) != extent or axes[0][1] == 1):
            group.append(axes.pop(0))
        if product(e for _, e in group) != extent:
            return None
        out.append(linear([i for i, _ in group], tuple(e for _, e in group)))
    return tuple(out) if not axes else None


def cuts_axes(node: Node) -> bool:
    """A reshape that writes each axis of its input as one or more axes: an index into it says where an element is."""
    shape = node.type.shape
    return merge_index(shape, node.inputs[0].type.shape, identity(len(shape))) is not None


def repeats(node: Node) -> bool:
    """A reshape of something repeated along axes: the place in what is repeated is a quotient of the reshape's place.

    A norm's weight, one number per channel, is repeated along the pixels; channels and pixels are then one axis.
    """
    (source,) = node.inputs
    if node.op != "reshape" or source.op != "expand":
        return False
    (base,) = source.inputs
    places = quotients(node.type.shape, source.type.shape)
    kept: tuple[int, ...] = source.attrs.axes  # type: ignore[attr-defined]
    return base.op not in (*VIEWS, "iota", "random") and places is not None and all(places[d] for d in kept)


def _repeat_access(node: Node, index: Indices) -> Access:
    (source,) = node.inputs
    places = quotients(node.type.shape, source.type.shape)
    assert places is not None, "prepare() puts a copy under a reshape of a view that merges axes"
    out = []
    for d in source.attrs.axes:  # type: ignore[attr-defined]
        place = places[d]
        assert place is not None, "the same"
        whole = linear([index[a] for a in place.axes], tuple(node.type.shape[a] for a in place.axes))
        out.append(Index(whole.terms, whole.offset, over=place.over))
    (base,) = source.inputs
    return Access(base, base.type.shape, tuple(out))


def resolve(node: Node, index: Indices) -> Access:
    """Follow views down to what is stored or computed."""
    while node.op in VIEWS:
        (source,) = node.inputs
        if is_reinterpretation(node):
            if source.op not in VIEWS:
                return Access(source, node.type.shape, index)
            below = merge_index(node.type.shape, source.type.shape, index)
            if below is None:
                return _repeat_access(node, index)
            index = below
        else:
            index = VIEWS[node.op](node.attrs, source.type.shape, index)
        node = source
    return Access(node, node.type.shape, index)
