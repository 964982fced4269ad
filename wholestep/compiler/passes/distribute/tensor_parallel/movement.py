"""What moves elements: which axis of the result has the parts."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Extent, divide
from wholestep.compiler.passes.distribute.tensor_parallel.placements import (
    OnAllRanks,
    PartialTerm,
    Sharded,
    pad_sharding,
    part_of,
    reshape_sharding,
    slice_sharding,
    widths_of,
)
from wholestep.compiler.passes.distribute.tensor_parallel.propagate import Made, ShardingPropagation


def reshape(s: ShardingPropagation, node: Node) -> Made:
    (x,), a = node.inputs, attrs_of(node, at.ReshapeAttrs)
    kind = s.kinds[x]
    if isinstance(kind, Sharded):
        found = reshape_sharding(x.type.shape, kind, a.shape, s.ranks)
        return (
            None
            if found is None
            else (s.local(node, [s.held[x]], at.ReshapeAttrs(part_of(a.shape, found, s.ranks))), found)
        )
    return _as_it_is(s, node)


def permute(s: ShardingPropagation, node: Node) -> Made:
    (x,), a = node.inputs, attrs_of(node, at.PermuteAttrs)
    kind = s.kinds[x]
    if isinstance(kind, Sharded):
        return s.local(node, [s.held[x]]), kind.at(a.order.index(kind.axis))
    return _as_it_is(s, node)


def _as_it_is(s: ShardingPropagation, node: Node) -> Made:
    """A share that is moved is one; so are some of its elements."""
    (x,) = node.inputs
    return (s.local(node, [s.held[x]]), PartialTerm()) if isinstance(s.kinds[x], PartialTerm) else None


def expand(s: ShardingPropagation, node: Node) -> Made:
    (x,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    found = kind.at(a.axes[kind.axis])
    return s.local(node, [s.held[x]], at.ExpandAttrs(part_of(a.shape, found, s.ranks), a.axes)), found


def slice_(s: ShardingPropagation, node: Node) -> Made:
    (x,), a = node.inputs, attrs_of(node, at.SliceAttrs)
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return _as_it_is(s, node)
    axis, extent = kind.axis, x.type.shape[kind.axis]
    found = slice_sharding(extent, kind, a.starts[axis], a.stops[axis]) if a.steps[axis] == 1 else None
    ends = [None if found is None else divide(end, s.ranks) for end in (a.starts[axis], a.stops[axis])]
    if found is None or ends[0] is None or ends[1] is None:
        return None
    starts, stops = (_with(of, axis, end) for of, end in zip((a.starts, a.stops), ends, strict=True))
    return s.local(node, [s.held[x]], replace(a, starts=starts, stops=stops)), found


def _with(shape: tuple[Extent, ...], axis: int, extent: Extent | None) -> tuple[Extent, ...]:
    assert extent is not None
    return (*shape[:axis], extent, *shape[axis + 1 :])


def pad(s: ShardingPropagation, node: Node) -> Made:
    (x,), a = node.inputs, attrs_of(node, at.PadAttrs)
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    axis = kind.axis
    found = pad_sharding(x.type.shape[axis], kind, a.low[axis], a.high[axis])
    if found is None or a.low[axis] % s.ranks or a.high[axis] % s.ranks:
        return None
    low, high = ((*of[:axis], of[axis] // s.ranks, *of[axis + 1 :]) for of in (a.low, a.high))
    return s.local(node, [s.held[x]], at.PadAttrs(low, high, a.value)), found


def concat(s: ShardingPropagation, node: Node) -> Made:
    """Side by side along another axis, or block behind block."""
    axis, splits = attrs_of(node, at.ConcatAttrs).axis, s.splits(node.inputs)
    if not splits:
        return None
    first = splits[0]
    if first.axis != axis:
        return s.local(node, [s.part(i, first) for i in node.inputs]), first
    kinds = [s.kinds[i] for i in node.inputs]
    if OnAllRanks() in kinds or PartialTerm() in kinds or any(k.axis != axis for k in splits):
        return None
    extents = [i.type.shape[axis] for i in node.inputs]
    blocks = {divide(extent, k.outer) for extent, k in zip(extents, splits, strict=True)}
    if len(blocks) > 1 or any(k.widths for k in splits):
        widths = [widths_of(extent, k) for extent, k in zip(extents, splits, strict=True)]
        if None in widths:
            return None
        found = Sharded.of_blocks(axis, [width for each in widths for width in each or ()])
        return s.local(node, [s.held[i] for i in node.inputs]), found
    outer: Extent = 0
    for k in splits:
        outer = k.outer + outer
    return s.local(node, [s.held[i] for i in node.inputs]), Sharded(axis, outer)
