"""What a step may be given, checked before it writes anything: indices below which size, extents of which least one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import IRGraph, Node, body_of
from wholestep.compiler.ir.type_rules.layers import values_per_channel
from wholestep.compiler.ir.types import Dim, Extent, Shape, evaluate, symbols_of
from wholestep.compiler.plan.model.kernel import Bound, Least

UNCHANGED = ("cast", "stop_gradient")  # the same elements in the same places
Cut = tuple[int, int, int]  # of an axis: start, stop, step, as in Bound.part
Part = tuple[Cut, ...]
WHOLE: Cut = (0, 0, 1)


@dataclass(frozen=True)
class _Used:
    """The elements of a node that are used as an index."""

    node: Node
    part: Part
    excused: int | None = None


def _index_operand(node: Node) -> tuple[Node, Extent] | None:
    """(index tensor, size of the axis it points into) of an op that looks something up."""
    if node.op == "cross_entropy":
        return node.inputs[1], node.inputs[0].type.shape[-1]
    if node.op == "gather":
        return node.inputs[1], node.inputs[0].type.shape[node.attrs.axis]  # type: ignore[attr-defined]
    if node.op == "scatter_add":
        return node.inputs[1], node.attrs.size  # type: ignore[attr-defined]
    return None


def index_bounds(graph: IRGraph) -> tuple[Bound, ...]:
    """Bounds of the inputs, or of parts of them, that reach an index unchanged.

    Kernels clamp every index.  What is computed, or is a part that cannot be told, is left to that: a value that no
    lookup uses must not be refused.
    """
    found: dict[tuple[Node, Extent, int | None], dict[Part, None]] = {}
    for node in graph.nodes:
        inner, looked_up = body_of(node), _index_operand(node)
        bounded: list[tuple[_Used, Extent]] = []
        if looked_up is not None:
            bounded.append((_all_of(looked_up[0]), looked_up[1]))
        if inner is not None:  # a bound on a parameter of its own is one on what is passed for it
            passed = dict(zip((i.attrs.name for i in inner.inputs), node.inputs, strict=True))  # type: ignore[attr-defined]
            bounded += [(_use_in_body(passed[b.input], b), b.size) for b in index_bounds(inner)]
        for used, size in bounded:
            origin = _origin(used)
            if origin is not None and origin.node.op == "input" and origin.node.type.dtype.is_integer:
                found.setdefault((origin.node, size, origin.excused), {})[origin.part] = None
    return tuple(
        Bound(input.attrs.name, size, excused, part)  # type: ignore[attr-defined]
        for (input, size, excused), parts in found.items()
        for part in ([()] if _are_all(parts, input.type.shape) else parts)
    )


def _are_all(parts: Collection[Part], shape: Shape) -> bool:
    """Is every element in one of the parts?  Told where they are intervals of one axis."""
    for axis, extent in enumerate(shape):
        if all(c == WHOLE for part in parts for d, c in enumerate(part) if d != axis):
            cuts = [part[axis] for part in parts]
            end = 0
            for start, stop, step in sorted(cuts):
                end = max(end, stop) if step == 1 and 0 <= start <= end else end
            if WHOLE in cuts or (isinstance(extent, int) and end >= extent):
                return True
    return not shape


def _all_of(node: Node, excused: int | None = None) -> _Used:
    return _Used(node, (WHOLE,) * node.type.rank, excused)


def _use_in_body(node: Node, bound: Bound) -> _Used:
    """What a held graph uses of an argument; a loop's body sees one step of a sequence: an axis less."""
    if not bound.part:
        return _all_of(node, bound.excused)
    return _Used(node, (WHOLE,) * (node.type.rank - len(bound.part)) + bound.part, bound.excused)


def _origin(used: _Used | None) -> _Used | None:
    """Where an index comes from unchanged, but for one value: where(x != excused, x, 0) is x.  None: unknown."""
    while used is not None:
        if used.node.op in _BEFORE:
            used = _BEFORE[used.node.op](used)
            continue
        replaced = _masked_index(used.node)
        if replaced is None or used.excused not in (None, replaced):
            return used
        used = replace(used, node=used.node.inputs[1], excused=replaced)
    return None


def _before_reshape(used: _Used) -> _Used | None:
    """All of it is all of it; of a part, axes of length 1 may come and go."""
    (x,), old = used.node.inputs, used.node.type.shape
    if all(c == WHOLE for c in used.part):
        return _all_of(x, used.excused)
    kept = [c for c, e in zip(used.part, old, strict=True) if e != 1]
    if [e for e in old if e != 1] != [e for e in x.type.shape if e != 1]:
        return None
    cuts = iter(kept)
    return replace(used, node=x, part=tuple(WHOLE if e == 1 else next(cuts) for e in x.type.shape))


def _before_permute(used: _Used) -> _Used:
    order = attrs_of(used.node, at.PermuteAttrs).order
    return replace(used, node=used.node.inputs[0], part=tuple(used.part[order.index(d)] for d in range(len(order))))


def _before_expand(used: _Used) -> _Used:
    axes = attrs_of(used.node, at.ExpandAttrs).axes
    return replace(used, node=used.node.inputs[0], part=tuple(used.part[d] for d in axes))


def _before_slice(used: _Used) -> _Used | None:
    (x,), a = used.node.inputs, attrs_of(used.node, at.SliceAttrs)
    cuts = zip(used.part, a.starts, a.stops, a.steps, x.type.shape, strict=True)
    part = [
        _compose_cuts(cut, WHOLE if (start, stop, step) == (0, e, 1) else _slice_cut(start, stop, step, e))
        for cut, start, stop, step, e in cuts
    ]
    known = [c for c in part if c is not None]
    return replace(used, node=x, part=tuple(known)) if len(known) == len(part) else None


def _slice_cut(start: Extent, stop: Extent, step: int, extent: Extent) -> Cut | None:
    first, last = _place(start, extent), 0 if stop == extent and isinstance(stop, Dim) else _place(stop, extent)
    return None if first is None or last is None else (first, last, step)


def _place(place: Extent, extent: Extent) -> int | None:
    """A place on an axis as a number, counted from its end where only that is one."""
    if isinstance(place, int):
        return place
    left = place - extent
    return left if isinstance(left, int) and left < 0 else None


def _compose_cuts(cut: Cut, taken: Cut | None) -> Cut | None:
    """A cut of what a slice took, as one of the axis that it was taken from."""
    if taken is None or cut == WHOLE:
        return taken
    if taken == WHOLE:
        return cut
    start, _, step = taken
    if step != 1 or start < 0 or min(cut[:2]) < 0 or cut[1] == 0:
        return None
    return start + cut[0], start + cut[1], cut[2]


_BEFORE: dict[str, Callable[[_Used], _Used | None]] = {
    **dict.fromkeys(UNCHANGED, lambda used: replace(used, node=used.node.inputs[0])),
    "reshape": _before_reshape,
    "permute": _before_permute,
    "expand": _before_expand,
    "slice": _before_slice,
}


def _masked_index(node: Node) -> int | None:
    """The value that a choice between an index and 0 leaves out."""
    if node.op != "where" or node.inputs[0].op != "not_equal" or constant_value(node.inputs[2]) != 0:
        return None
    tested, value = node.inputs[0].inputs
    left_out = constant_value(value)
    return int(left_out) if tested is node.inputs[1] and left_out is not None else None


def least_sizes(graph: IRGraph) -> tuple[Least, ...]:
    """The extents of which an op needs more elements than the smallest call would give it."""
    found: dict[Least, None] = {}
    for node in graph.nodes:
        inner = body_of(node)
        if inner is not None:
            found |= dict.fromkeys(least_sizes(inner))
        if node.op in ("batch_norm", "batch_norm_grad"):
            count = values_per_channel(node.inputs[0].type.shape)
            if evaluate(count, dict.fromkeys(symbols_of((count,)), 1)) < 2:
                found[Least(count, 2, "a batch norm has no variance of one value per channel")] = None
    return tuple(found)
