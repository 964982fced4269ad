"""Placement rules of leaves, elementwise ops, and reductions along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    PlacementRule,
    Replicated,
    Sharded,
    SumOfRatios,
    common_sharding,
    placement_of_shape,
)

# -- leaves ------------------------------------------------------------------------------------------------------


def shape_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    return placement_of_shape(node, node.type.shape, axis)


def replicated_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    return Replicated()


def iota_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    if axis.mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis]):
        return Mixed(node, "numbers the rows of the batch, and a row has another number in a part of the batch")
    return shape_rule(node, inputs, axis)


def size_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    extent = attrs_of(node, at.SizeAttrs).extent
    if not axis.mentions(extent):
        return Replicated()
    if axis.divides(extent):
        return Partial()
    return Mixed(node, f"is the size {extent}, which is not a multiple of {axis.batch!r}")


# -- pointwise ---------------------------------------------------------------------------------------------------


def elementwise_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    distinct = set(inputs)
    if distinct <= {Replicated()}:
        return Replicated()
    if (sharding := common_sharding(inputs)) is not None:
        return sharding
    if SumOfRatios() in distinct:
        return Mixed(node, "is not linear in a mean over the batch")
    if Partial() in distinct:
        return Mixed(node, "is not linear in a sum over the batch")
    return Mixed(node, "combines rows of the batch with other rows")


def linear_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of add, sub, neg and stop_gradient: a linear function of Partial values is Partial."""
    distinct = set(inputs)
    if distinct == {Partial()}:
        return Partial()
    if distinct & {Partial(), SumOfRatios()} and distinct <= {Replicated(), Partial(), SumOfRatios()}:
        return SumOfRatios()
    return elementwise_rule(node, inputs, axis)


def multilinear_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of mul: linear in each operand if the other operand is Replicated."""
    varying = [placement for placement in inputs if placement != Replicated()]
    if varying in ([Partial()], [SumOfRatios()]):
        return varying[0]
    return elementwise_rule(node, inputs, axis)


def div_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    if list(inputs) == [Partial(), Partial()]:
        return SumOfRatios()
    return (multilinear_rule if inputs[1] == Replicated() else elementwise_rule)(node, inputs, axis)


def where_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of where: Partial if the condition is Replicated and each branch is Partial or 0."""
    branches = zip(inputs[1:], node.inputs[1:], strict=True)
    nonzero = {placement for placement, x in branches if placement != Replicated() or constant_value(x) != 0}
    if inputs[0] == Replicated() and nonzero == {Partial()}:
        return Partial()
    return elementwise_rule(node, inputs, axis)


def cast_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    exact = node.type.dtype.is_float or not node.inputs[0].type.dtype.is_float
    return inputs[0] if exact else elementwise_rule(node, inputs, axis)


# -- reduce and softmax ------------------------------------------------------------------------------------------


def _after_reduction(sharding: Sharded, reduced: Sequence[int]) -> Sharded:
    return sharding.at(sharding.axis - sum(d < sharding.axis for d in reduced))


def sum_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (placement,), axes = inputs, attrs_of(node, at.SumAttrs).axes
    if not isinstance(placement, Sharded):
        return placement
    return Partial() if placement.axis in axes else _after_reduction(placement, axes)


def nonlinear_along(axes_of: Callable[[Node], Sequence[int]], keeps_shape: bool) -> PlacementRule:
    """The rule of an op that is nonlinear along some axes: max, argmax, softmax."""

    def rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
        placement, axes = inputs[0], axes_of(node)
        if not isinstance(placement, Sharded):
            return elementwise_rule(node, inputs[:1], axis)
        if placement.axis in axes:
            return Mixed(node, "runs along the batch")
        return placement if keeps_shape else _after_reduction(placement, axes)

    return rule


def cross_entropy_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    if isinstance(inputs[0], Sharded) and inputs[0].axis == node.inputs[0].type.rank - 1:
        return Mixed(node, "has its classes along the batch")
    return elementwise_rule(node, inputs, axis)
