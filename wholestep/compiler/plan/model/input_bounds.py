"""Preconditions on a step's inputs, checked before it writes anything: bounds of indices, minimum extents.

Index bounds are found by following each index operand back through views to the input it comes from unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import IRGraph, Node, body_of
from wholestep.compiler.ir.type_rules.layers import values_per_channel
from wholestep.compiler.ir.types import Dim, Extent, Shape, evaluate, symbols_of
from wholestep.compiler.plan.model.kernel import Bound, Least

UNCHANGED = ("cast", "stop_gradient")  # ops that keep the position and value of every element
Cut = tuple[int, int, int]  # start, stop, step along an axis, as in Bound.part
Part = tuple[Cut, ...]
WHOLE: Cut = (0, 0, 1)


@dataclass(frozen=True)
class _IndexUse:
    """The elements of a node that are used as an index."""

    node: Node
    part: Part
    excused: int | None = None


def _index_operand(node: Node) -> tuple[Node, Extent] | None:
    """(index tensor, size of the axis that it indexes) of a lookup op; None for other ops."""
    if node.op == "cross_entropy":
        return node.inputs[1], node.inputs[0].type.shape[-1]
    if node.op == "gather":
        return node.inputs[1], node.inputs[0].type.shape[node.attrs.axis]  # type: ignore[attr-defined]
    if node.op == "scatter_add":
        return node.inputs[1], node.attrs.size  # type: ignore[attr-defined]
    return None


def index_bounds(graph: IRGraph) -> tuple[Bound, ...]:
    """Bounds of the inputs, or of parts of them, that reach an index operand unchanged.

    Kernels clamp every index.  Computed indices, and parts that cannot be determined, rely on that alone: a value that
    no lookup uses must not be rejected.
    """
    parts_by_input: dict[tuple[Node, Extent, int | None], dict[Part, None]] = {}
    for node in graph.nodes:
        inner, lookup = body_of(node), _index_operand(node)
        bounded: list[tuple[_IndexUse, Extent]] = []
        if lookup is not None:
            bounded.append((_all_of(lookup[0]), lookup[1]))
        if inner is not None:  # a bound on a parameter of the body is a bound on the argument
            arguments = dict(zip((i.attrs.name for i in inner.inputs), node.inputs, strict=True))  # type: ignore[attr-defined]
            bounded += [(_use_in_body(arguments[b.input], b), b.size) for b in index_bounds(inner)]
        for used, size in bounded:
            origin = _origin(used)
            if origin is not None and origin.node.op == "input" and origin.node.type.dtype.is_integer:
                parts_by_input.setdefault((origin.node, size, origin.excused), {})[origin.part] = None
    return tuple(
        Bound(input.attrs.name, size, excused, part)  # type: ignore[attr-defined]
        for (input, size, excused), parts in parts_by_input.items()
        for part in ([()] if _are_all(parts, input.type.shape) else parts)
    )


def _are_all(parts: Collection[Part], shape: Shape) -> bool:
    """Do the parts cover every element?  Detected only if they are intervals of one axis."""
    for axis, extent in enumerate(shape):
        if all(c == WHOLE for part in parts for d, c in enumerate(part) if d != axis):
            cuts = [part[axis] for part in parts]
            covered = 0
            for start, stop, step in sorted(cuts):
                covered = max(covered, stop) if step == 1 and 0 <= start <= covered else covered
            if WHOLE in cuts or (isinstance(extent, int) and covered >= extent):
                return True
    return not shape


def _all_of(node: Node, excused: int | None = None) -> _IndexUse:
    return _IndexUse(node, (WHOLE,) * node.type.rank, excused)


def _use_in_body(node: Node, bound: Bound) -> _IndexUse:
    """The elements of an argument that a body uses; a loop's body sees one slice of a sequence, with one axis less."""
    if not bound.part:
        return _all_of(node, bound.excused)
    return _IndexUse(node, (WHOLE,) * (node.type.rank - len(bound.part)) + bound.part, bound.excused)


def _origin(used: _IndexUse | None) -> _IndexUse | None:
    """The node whose elements reach an index unchanged, except one value: where(x != excused, x, 0) counts as x.

    None if the elements cannot be determined.
    """
    while used is not None:
        if used.node.op in _BEFORE:
            used = _BEFORE[used.node.op](used)
            continue
        replaced = _masked_index(used.node)
        if replaced is None or used.excused not in (None, replaced):
            return used
        used = replace(used, node=used.node.inputs[1], excused=replaced)
    return None


def _before_reshape(used: _IndexUse) -> _IndexUse | None:
    """The used elements of a reshape's operand; None if a part is used and more than axes of length 1 change."""
    (x,), old = used.node.inputs, used.node.type.shape
    if all(c == WHOLE for c in used.part):
        return _all_of(x, used.excused)
    long_axes = [c for c, e in zip(used.part, old, strict=True) if e != 1]
    if [e for e in old if e != 1] != [e for e in x.type.shape if e != 1]:
        return None
    cuts = iter(long_axes)
    return replace(used, node=x, part=tuple(WHOLE if e == 1 else next(cuts) for e in x.type.shape))


def _before_permute(used: _IndexUse) -> _IndexUse:
    order = attrs_of(used.node, at.PermuteAttrs).order
    return replace(used, node=used.node.inputs[0], part=tuple(used.part[order.index(d)] for d in range(len(order))))


def _before_expand(used: _IndexUse) -> _IndexUse:
    axes = attrs_of(used.node, at.ExpandAttrs).axes
    return replace(used, node=used.node.inputs[0], part=tuple(used.part[d] for d in axes))


def _before_slice(used: _IndexUse) -> _IndexUse | None:
    (x,), a = used.node.inputs, attrs_of(used.node, at.SliceAttrs)
    cuts = zip(used.part, a.starts, a.stops, a.steps, x.type.shape, strict=True)
    part = [
        _compose_cuts(cut, WHOLE if (start, stop, step) == (0, e, 1) else _slice_cut(start, stop, step, e))
        for cut, start, stop, step, e in cuts
    ]
    determined = [c for c in part if c is not None]
    return replace(used, node=x, part=tuple(determined)) if len(determined) == len(part) else None


def _slice_cut(start: Extent, stop: Extent, step: int, extent: Extent) -> Cut | None:
    first, last = (
        _constant_position(start, extent),
        0 if stop == extent and isinstance(stop, Dim) else _constant_position(stop, extent),
    )
    return None if first is None or last is None else (first, last, step)


def _constant_position(position: Extent, extent: Extent) -> int | None:
    """A position on an axis as an integer, counted from the end if only that distance is constant."""
    if isinstance(position, int):
        return position
    from_end = position - extent
    return from_end if isinstance(from_end, int) and from_end < 0 else None


def _compose_cuts(cut: Cut, slice_cut: Cut | None) -> Cut | None:
    """A cut of a slice, expressed as a cut of the axis that was sliced."""
    if slice_cut is None or cut == WHOLE:
        return slice_cut
    if slice_cut == WHOLE:
        return cut
    start, _, step = slice_cut
    if step != 1 or start < 0 or min(cut[:2]) < 0 or cut[1] == 0:
        return None
    return start + cut[0], start + cut[1], cut[2]


_BEFORE: dict[str, Callable[[_IndexUse], _IndexUse | None]] = {
    **dict.fromkeys(UNCHANGED, lambda used: replace(used, node=used.node.inputs[0])),
    "reshape": _before_reshape,
    "permute": _before_permute,
    "expand": _before_expand,
    "slice": _before_slice,
}


def _masked_index(node: Node) -> int | None:
    """The value v of where(index != v, index, 0); None for other nodes."""
    if node.op != "where" or node.inputs[0].op != "not_equal" or constant_value(node.inputs[2]) != 0:
        return None
    tested, value = node.inputs[0].inputs
    masked = constant_value(value)
    return int(masked) if tested is node.inputs[1] and masked is not None else None


def least_sizes(graph: IRGraph) -> tuple[Least, ...]:
    """The minimum extents that ops require beyond the smallest call: batch norm needs two values per channel."""
    sizes: dict[Least, None] = {}
    for node in graph.nodes:
        inner = body_of(node)
        if inner is not None:
            sizes |= dict.fromkeys(least_sizes(inner))
        if node.op in ("batch_norm", "batch_norm_grad"):
            count = values_per_channel(node.inputs[0].type.shape)
            if evaluate(count, dict.fromkeys(symbols_of((count,)), 1)) < 2:
                sizes[Least(count, 2, "a batch norm cannot compute the variance of a single value per channel")] = None
    return tuple(sizes)
