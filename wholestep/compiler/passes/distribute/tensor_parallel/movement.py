"""Sharding rules of views and concat: which axis of the result is sharded; None if the op cuts through shards."""

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
    reshape_sharding,
    shard_shape,
    slice_sharding,
    widths_of,
)
from wholestep.compiler.passes.distribute.tensor_parallel.propagate import RuleResult, ShardingPropagation


def reshape(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), a = node.inputs, attrs_of(node, at.ReshapeAttrs)
    placement = s.placements[x]
    if isinstance(placement, Sharded):
        new_sharding = reshape_sharding(x.type.shape, placement, a.shape, s.ranks)
        return (
            None
            if new_sharding is None
            else (
                s.local_op(node, [s.local_values[x]], at.ReshapeAttrs(shard_shape(a.shape, new_sharding, s.ranks))),
                new_sharding,
            )
        )
    return _view_of_partial_sum(s, node)


def permute(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), a = node.inputs, attrs_of(node, at.PermuteAttrs)
    placement = s.placements[x]
    if isinstance(placement, Sharded):
        return s.local_op(node, [s.local_values[x]]), placement.at(a.order.index(placement.axis))
    return _view_of_partial_sum(s, node)


def _view_of_partial_sum(s: ShardingPropagation, node: Node) -> RuleResult:
    """A view of a partial sum is a partial sum."""
    (x,) = node.inputs
    return (s.local_op(node, [s.local_values[x]]), PartialTerm()) if isinstance(s.placements[x], PartialTerm) else None


def expand(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), a = node.inputs, attrs_of(node, at.ExpandAttrs)
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    new_sharding = placement.at(a.axes[placement.axis])
    return s.local_op(
        node, [s.local_values[x]], at.ExpandAttrs(shard_shape(a.shape, new_sharding, s.ranks), a.axes)
    ), new_sharding


def slice_(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), a = node.inputs, attrs_of(node, at.SliceAttrs)
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return _view_of_partial_sum(s, node)
    axis, extent = placement.axis, x.type.shape[placement.axis]
    new_sharding = slice_sharding(extent, placement, a.starts[axis], a.stops[axis]) if a.steps[axis] == 1 else None
    ends = [None if new_sharding is None else divide(end, s.ranks) for end in (a.starts[axis], a.stops[axis])]
    if new_sharding is None or ends[0] is None or ends[1] is None:
        return None
    starts, stops = (_replace_extent(bounds, axis, end) for bounds, end in zip((a.starts, a.stops), ends, strict=True))
    return s.local_op(node, [s.local_values[x]], replace(a, starts=starts, stops=stops)), new_sharding


def _replace_extent(shape: tuple[Extent, ...], axis: int, extent: Extent | None) -> tuple[Extent, ...]:
    assert extent is not None
    return (*shape[:axis], extent, *shape[axis + 1 :])


def pad(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), a = node.inputs, attrs_of(node, at.PadAttrs)
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    axis = placement.axis
    new_sharding = pad_sharding(x.type.shape[axis], placement, a.low[axis], a.high[axis])
    if new_sharding is None or a.low[axis] % s.ranks or a.high[axis] % s.ranks:
        return None
    low, high = ((*padding[:axis], padding[axis] // s.ranks, *padding[axis + 1 :]) for padding in (a.low, a.high))
    return s.local_op(node, [s.local_values[x]], at.PadAttrs(low, high, a.value)), new_sharding


def concat(s: ShardingPropagation, node: Node) -> RuleResult:
    """Along another axis, operands take the placement of the first sharded one; along the same, blocks are appended."""
    axis, shardings = attrs_of(node, at.ConcatAttrs).axis, s.shardings(node.inputs)
    if not shardings:
        return None
    first = shardings[0]
    if first.axis != axis:
        return s.local_op(node, [s.shard(i, first) for i in node.inputs]), first
    placements = [s.placements[i] for i in node.inputs]
    if OnAllRanks() in placements or PartialTerm() in placements or any(k.axis != axis for k in shardings):
        return None
    extents = [i.type.shape[axis] for i in node.inputs]
    blocks = {divide(extent, k.outer) for extent, k in zip(extents, shardings, strict=True)}
    if len(blocks) > 1 or any(k.widths for k in shardings):
        widths = [widths_of(extent, k) for extent, k in zip(extents, shardings, strict=True)]
        if None in widths:
            return None
        new_sharding = Sharded.of_blocks(axis, [width for each in widths for width in each or ()])
        return s.local_op(node, [s.local_values[i] for i in node.inputs]), new_sharding
    outer: Extent = 0
    for k in shardings:
        outer = k.outer + outer
    return s.local_op(node, [s.local_values[i] for i in node.inputs]), Sharded(axis, outer)
