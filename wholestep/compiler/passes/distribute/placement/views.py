"""Placement rules of views, pad and concat: which axis of the result is sharded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Extent, divide, product
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    Replicated,
    Sharded,
    placement_of_shape,
)
from wholestep.compiler.passes.distribute.placement.pointwise import linear_rule


def reshape_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """A reshape keeps the row-major order of elements, so the product of extents outside of the shards is kept: at most
    one axis of the new shape can be the sharded one."""
    (placement,), old, new = inputs, node.inputs[0].type.shape, node.type.shape
    if not isinstance(placement, Sharded):
        return placement
    outside = product(old[: placement.axis])
    for new_axis, extent in enumerate(new):
        same_axis = product(new[:new_axis]) == outside and extent == old[placement.axis]
        if placement.widths and same_axis:
            return placement.at(new_axis)
        outer = divide(outside * placement.outer, product(new[:new_axis]))
        if not placement.widths and outer is not None and axis.divides(extent, outer):
            return Sharded(new_axis, outer, uniform=placement.uniform and same_axis)
    return Mixed(node, "tears the rows of the batch apart")


def permute_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (placement,), order = inputs, attrs_of(node, at.PermuteAttrs).order
    return placement.at(order.index(placement.axis)) if isinstance(placement, Sharded) else placement


def expand_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (placement,), a = inputs, attrs_of(node, at.ExpandAttrs)
    new = any(axis.mentions(extent) for d, extent in enumerate(a.shape) if d not in a.axes)
    if isinstance(placement, Replicated):
        broadcast = placement_of_shape(node, a.shape, axis)
        return replace(broadcast, uniform=True) if isinstance(broadcast, Sharded) else broadcast
    if new and isinstance(placement, Sharded):
        return Mixed(node, "pairs the rows of the batch with each other")
    if new:
        return Mixed(node, "broadcasts a value of the whole batch to each row")
    return placement.at(a.axes[placement.axis]) if isinstance(placement, Sharded) else placement


def slice_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of slice: along the sharded axis it must consist of consecutive blocks."""
    (placement,), a = inputs, attrs_of(node, at.SliceAttrs)
    if not isinstance(placement, Sharded):
        return placement
    d, extent = placement.axis, node.inputs[0].type.shape[placement.axis]
    if (a.starts[d], a.stops[d], a.steps[d]) == (0, extent, 1):
        return placement
    blocks = _slice_blocks(placement, extent, a.starts[d], a.stops[d]) if a.steps[d] == 1 else None
    return Mixed(node, "picks rows by their position in the batch") if blocks is None else blocks


def _slice_blocks(sharding: Sharded, extent: Extent, start: Extent, stop: Extent) -> Sharded | None:
    """The sharding of a slice of consecutive blocks; None if the slice cuts through a block."""
    if sharding.widths:
        ends: list[Extent] = [0, *accumulate(sharding.widths)]
        aligned = start in ends and stop in ends and start != stop
        widths = sharding.widths[ends.index(start) : ends.index(stop)] if aligned else ()
        return Sharded.of_blocks(sharding.axis, widths) if aligned else None
    block = divide(extent, sharding.outer)
    if block is None or divide(start, block) is None:
        return None
    outer = divide(stop - start, block)
    return None if outer is None or outer == 0 else replace(sharding, outer=outer)


def pad_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of pad: along the sharded axis it must add complete blocks."""
    (placement,), a = inputs, attrs_of(node, at.PadAttrs)
    if placement == Partial() and a.value != 0:
        return Mixed(node, "adds a constant to a sum over the batch")
    if not isinstance(placement, Sharded) or not (a.low[placement.axis] or a.high[placement.axis]):
        return placement
    block = None if placement.widths else divide(node.inputs[0].type.shape[placement.axis], placement.outer)
    low, high = (None if block is None else divide(p[placement.axis], block) for p in (a.low, a.high))
    if low is None or high is None:
        return Mixed(node, "adds rows to the batch")
    return replace(placement, outer=placement.outer + low + high)


def concat_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of concat: along the sharded axis, the blocks of the operands follow each other, but batches cannot be
    concatenated."""
    along = attrs_of(node, at.ConcatAttrs).axis
    shardings = [k for k in inputs if isinstance(k, Sharded) and k.axis == along]
    if not shardings:
        return linear_rule(node, inputs, axis)
    blocks = None if axis.batch or len(shardings) < len(inputs) else _join_blocks(node, shardings)
    return Mixed(node, "concatenates batches") if blocks is None else blocks


def _join_blocks(node: Node, shardings: Sequence[Sharded]) -> Sharded | None:
    along = shardings[0].axis
    operands = [(operand.type.shape[along], k) for operand, k in zip(node.inputs, shardings, strict=True)]
    if not any(k.widths for _, k in operands) and len({divide(extent, k.outer) for extent, k in operands}) == 1:
        outer: Extent = 0
        for _, k in operands:
            outer = k.outer + outer
        return Sharded(along, outer)
    widths: list[int] = []
    for extent, k in operands:
        if (widths_of_operand := k.block_widths(extent)) is None:
            return None
        widths += widths_of_operand
    return Sharded.of_blocks(along, widths)
