"""View resolution: a chain of expands, permutes, slices and reshapes becomes an affine index into its base.

So views cost nothing: no kernel computes them, readers address the stored or computed value below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.shapes import reshape_quotients
from wholestep.compiler.ir.types import Extent, Shape, product
from wholestep.compiler.plan.model.kernel import Index

Indices = tuple[Index, ...]


@dataclass(frozen=True)
class Access:
    """An element of a stored or computed value: `index` into `base` viewed as `shape` (its own, or a reshape of it)."""

    base: Node
    shape: Shape
    index: Indices


@cache
def identity(rank: int) -> Indices:
    return tuple(Index.axis(d) for d in range(rank))


def without_units(shape: Shape) -> Shape:
    return tuple(e for e in shape if e != 1)


def is_reinterpretation(node: Node) -> bool:
    """Is the node a reshape that does more than add or drop axes of size 1?"""
    return node.op == "reshape" and without_units(node.type.shape) != without_units(node.inputs[0].type.shape)


def _scale_index(index: Index, start: Extent, step: int) -> Index:
    return Index(tuple((a, c * step) for a, c in index.terms), index.offset * step + start)


def _expand(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(index[d] for d in attrs.axes)


def _permute(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(index[attrs.order.index(d)] for d in range(len(index)))


def _slice(attrs: Any, _: Shape, index: Indices) -> Indices:
    return tuple(_scale_index(i, lo, step) for i, lo, step in zip(index, attrs.starts, attrs.steps, strict=True))


def _reshape_units(attrs: Any, shape: Shape, index: Indices) -> Indices:
    """The index below a reshape that only adds or drops axes of size 1."""
    remaining = iter([i for i, e in zip(index, attrs.shape, strict=True) if e != 1])
    return tuple(Index() if e == 1 else next(remaining) for e in shape)


def _same_index(attrs: Any, _: Shape, index: Indices) -> Indices:
    return index


VIEWS: Mapping[str, Callable[[Any, Shape, Indices], Indices]] = {
    "expand": _expand,
    "permute": _permute,
    "slice": _slice,
    "reshape": _reshape_units,
    "half_copy": _same_index,  # see HalfCopy in lower/materialize.py: another stored form of a state
}


def linear(index: Sequence[Index], shape: Shape) -> Index:
    """The row-major linear offset of an element."""
    terms: dict[int, Extent] = {}
    offset: Extent = 0
    stride: Extent = 1
    for i, extent in zip(reversed(index), reversed(shape), strict=True):
        assert i.over == 1, "an index with a quotient has no affine linear offset"
        for a, c in i.terms:
            terms[a] = terms.get(a, 0) + c * stride
        offset = offset + i.offset * stride
        stride = stride * extent
    return Index(tuple(sorted(terms.items())), offset)


def merge_index(shape: Shape, into: Shape, index: Indices) -> Indices | None:
    """The index in `into`, a reshape of `shape`, of element `index`; None if it splits an axis: that is not affine."""
    merged, axes = [], list(zip(index, shape, strict=True))
    for extent in into:
        group: list[tuple[Index, Extent]] = []
        # Take axes until their product is the new extent, then the following axes of size 1, which contribute nothing.
        while axes and (product(e for _, e in group) != extent or axes[0][1] == 1):
            group.append(axes.pop(0))
        if product(e for _, e in group) != extent:
            return None
        merged.append(linear([i for i, _ in group], tuple(e for _, e in group)))
    return tuple(merged) if not axes else None


def splits_axes_only(node: Node) -> bool:
    """Does a reshape only split axes of its input?  Then the position in the input is affine in the new axes."""
    shape = node.type.shape
    return merge_index(shape, node.inputs[0].type.shape, identity(len(shape))) is not None


def is_broadcast_reshape(node: Node) -> bool:
    """Is the node a reshape of a broadcast value, so that the index in the value is a quotient of the reshape's index?

    A norm's weight, one value per channel, is broadcast over the pixels; then channels and pixels are merged.
    """
    (source,) = node.inputs
    if node.op != "reshape" or source.op != "expand":
        return False
    (base,) = source.inputs
    axis_quotients = reshape_quotients(node.type.shape, source.type.shape)
    broadcast_axes: tuple[int, ...] = source.attrs.axes  # type: ignore[attr-defined]
    return (
        base.op not in (*VIEWS, "iota", "random")
        and axis_quotients is not None
        and all(axis_quotients[d] for d in broadcast_axes)
    )


def _repeat_access(node: Node, index: Indices) -> Access:
    (source,) = node.inputs
    axis_quotients = reshape_quotients(node.type.shape, source.type.shape)
    assert axis_quotients is not None, "materialization copies the input of a reshape of a view that merges axes"
    index_in_base = []
    for d in source.attrs.axes:  # type: ignore[attr-defined]
        quotient = axis_quotients[d]
        assert quotient is not None, "as above"
        position = linear([index[a] for a in quotient.axes], tuple(node.type.shape[a] for a in quotient.axes))
        index_in_base.append(Index(position.terms, position.offset, over=quotient.over))
    (base,) = source.inputs
    return Access(base, base.type.shape, tuple(index_in_base))


def resolve(node: Node, index: Indices) -> Access:
    """Follow views down to the stored or computed value."""
    while node.op in VIEWS:
        (source,) = node.inputs
        if is_reinterpretation(node):
            if source.op not in VIEWS:
                return Access(source, node.type.shape, index)
            merged = merge_index(node.type.shape, source.type.shape, index)
            if merged is None:
                return _repeat_access(node, index)
            index = merged
        else:
            index = VIEWS[node.op](node.attrs, source.type.shape, index)
        node = source
    return Access(node, node.type.shape, index)
