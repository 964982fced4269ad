"""Placement rules of leaves, elementwise ops, and reductions along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchPlacement,
    BatchSharded,
    Mixed,
    Partial,
    PlacementRule,
    Replicated,
    SumOfRatios,
    common_sharding,
    is_multiple,
    mentions,
    placement_of_shape,
)

# -- leaves ------------------------------------------------------------------------------------------------------


def batch_shape_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    return placement_of_shape(node, node.type.shape, batch)


def replicated_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    return Replicated()


def iota_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis], batch):
        return Mixed(node, "numbers the rows of the batch, and a row has another number in a part of the batch")
    return batch_shape_rule(node, inputs, batch)


def size_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    extent = attrs_of(node, at.SizeAttrs).extent
    if not mentions(extent, batch):
        return Replicated()
    if is_multiple(extent, batch):
        return Partial()
    return Mixed(node, f"is the size {extent}, which is not a multiple of {batch!r}")


# -- pointwise ---------------------------------------------------------------------------------------------------


def elementwise_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    distinct = set(inputs)
    if distinct <= {Replicated()}:
        return Replicated()
    if (rows := common_sharding(inputs)) is not None:
        return rows
    if SumOfRatios() in distinct:
        return Mixed(node, "is not linear in a mean over the batch")
    if Partial() in distinct:
        return Mixed(node, "is not linear in a sum over the batch")
    return Mixed(node, "combines rows of the batch with other rows")


def linear_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """add, sub, neg, stop_gradient: a linear function of Partial values is Partial."""
    distinct = set(inputs)
    if distinct == {Partial()}:
        return Partial()
    if distinct & {Partial(), SumOfRatios()} and distinct <= {Replicated(), Partial(), SumOfRatios()}:
        return SumOfRatios()
    return elementwise_rule(node, inputs, batch)


def mul_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """mul: linear in one factor if the other is Replicated."""
    placement, other = inputs if inputs[1] == Replicated() else inputs[::-1]
    return (
        placement
        if other == Replicated() and placement in (Partial(), SumOfRatios())
        else elementwise_rule(node, inputs, batch)
    )


def div_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if list(inputs) == [Partial(), Partial()]:
        return SumOfRatios()
    return mul_rule(node, inputs, batch) if inputs[1] == Replicated() else elementwise_rule(node, inputs, batch)


def where_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """Partial if the condition is Replicated and each branch is Partial or 0."""
    zero = [
        placement == Replicated() and constant_value(x) == 0
        for placement, x in zip(inputs[1:], node.inputs[1:], strict=True)
    ]
    sums = {placement for placement, is_zero in zip(inputs[1:], zero, strict=True) if not is_zero}
    return Partial() if inputs[0] == Replicated() and sums == {Partial()} else elementwise_rule(node, inputs, batch)


def cast_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    exact = node.type.dtype.is_float or not node.inputs[0].type.dtype.is_float
    return inputs[0] if exact else elementwise_rule(node, inputs, batch)


# -- reduce and softmax ------------------------------------------------------------------------------------------


def _without(axis: int, removed: Sequence[int]) -> int:
    return axis - sum(d < axis for d in removed)


def sum_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,), axes = inputs, attrs_of(node, at.SumAttrs).axes
    if not isinstance(placement, BatchSharded):
        return placement
    return Partial() if placement.axis in axes else placement.at(_without(placement.axis, axes))


def nonlinear_along(axes_of: Callable[[Node], Sequence[int]], keeps_shape: bool) -> PlacementRule:
    """The rule of an op that is nonlinear along some axes: max, argmax, softmax."""

    def flow(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
        placement, axes = inputs[0], axes_of(node)
        if not isinstance(placement, BatchSharded):
            return elementwise_rule(node, inputs[:1], batch)
        if placement.axis in axes:
            return Mixed(node, "runs along the batch")
        return placement if keeps_shape else placement.at(_without(placement.axis, axes))

    return flow


def cross_entropy_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if isinstance(inputs[0], BatchSharded) and inputs[0].axis == node.inputs[0].type.rank - 1:
        return Mixed(node, "has its classes along the batch")
    return elementwise_rule(node, inputs, batch)
