"""Placement rules of gather and scatter, matrix products, convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    PlacementRule,
    Replicated,
    Sharded,
    are_compatible,
    common_sharding,
)
from wholestep.compiler.passes.distribute.placement.pointwise import multilinear_rule

# -- by index ----------------------------------------------------------------------------------------------------


def gather_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (data, index), along, rank = inputs, attrs_of(node, at.GatherAttrs).axis, node.inputs[1].type.rank
    if isinstance(index, Sharded) and isinstance(data, Replicated):
        return index.at(along + index.axis)
    if isinstance(index, Replicated) and isinstance(data, Sharded) and data.axis != along:
        return data.at(data.axis if data.axis < along else data.axis + rank - 1)
    if isinstance(index, Replicated) and not isinstance(data, Sharded):
        return data
    return Mixed(node, "picks rows of the batch by index")


def scatter_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (updates, index), along, rank = inputs, attrs_of(node, at.ScatterAddAttrs).axis, node.inputs[1].type.rank
    if axis.mentions(attrs_of(node, at.ScatterAddAttrs).size):
        return Mixed(node, "writes rows of the batch by index")
    if isinstance(updates, Sharded) and along <= updates.axis < along + rank:
        if index == Replicated() or common_sharding([index, updates.at(updates.axis - along)]) is not None:
            return Partial()
    elif isinstance(updates, Sharded) and isinstance(index, Replicated):
        return updates.at(updates.axis if updates.axis < along else updates.axis - rank + 1)
    if isinstance(index, Replicated) and not isinstance(updates, Sharded):
        return updates
    return Mixed(node, "sums rows of the batch by index")


def update_slice_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    return Mixed(node, "appends rows of the batch to a buffer")


# -- products ----------------------------------------------------------------------------------------------------


def matmul_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    a, c = inputs
    role_a, role_c = (_gemm_dimension(node, i, placement) for i, placement in enumerate(inputs))
    if isinstance(a, Sharded) and isinstance(c, Sharded):
        same = common_sharding([a.at(0), c.at(0)]) if role_a == role_c else None
        if same is None:
            return Mixed(node, "multiplies rows of the batch with other rows")
        return Partial() if role_a == "k" else same.at(a.axis)
    if isinstance(a, Sharded) and isinstance(c, Replicated) and role_a == "m":
        return a.at(node.type.rank - 2)
    if isinstance(c, Sharded) and isinstance(a, Replicated) and role_c == "n":
        return c.at(node.type.rank - 1)
    return multilinear_rule(node, inputs, axis)


def contracted_axis(node: Node, operand: int) -> int:
    """The contracted axis of an operand of a matmul."""
    a = attrs_of(node, at.MatmulAttrs)
    is_last = not a.transpose_a if operand == 0 else a.transpose_b
    return node.type.rank - (1 if is_last else 2)


def _gemm_dimension(node: Node, operand: int, placement: Placement) -> str | int | None:
    """The GEMM dimension along which an operand is sharded: "m", "n" or "k", or the number of a leading axis."""
    if not isinstance(placement, Sharded):
        return None
    if placement.axis < node.type.rank - 2:
        return placement.axis
    return "k" if placement.axis == contracted_axis(node, operand) else "mn"[operand]


# -- windows -----------------------------------------------------------------------------------------------------


def per_image_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    if all(isinstance(k, Replicated) or are_compatible(k, Sharded(0)) for k in inputs):
        return Sharded(0)
    return Mixed(node, "slides windows over images that are not rows of the batch")


def multilinear(rule: PlacementRule) -> PlacementRule:
    """The rule of an op that is linear in each operand: one Partial operand makes the result Partial."""

    def rule_with_partial(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
        varying = [placement for placement in inputs if placement != Replicated()]
        return Partial() if varying == [Partial()] else rule(node, inputs, axis)

    return rule_with_partial


def convolution_rule(weight: int) -> PlacementRule:
    """The rule of an op that is row-wise if its weight (the input of this index) is replicated."""

    def rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
        if not isinstance(inputs[weight], Replicated):
            return Mixed(node, "convolves images with a weight that depends on the batch")
        return per_image_rule(node, inputs, axis)

    return rule


def weight_gradient_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of an op whose result is a sum over the images of the batch."""
    placement = per_image_rule(node, inputs, axis)
    return Partial() if placement == Sharded(0) else placement


def partial_weight_gradient_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """Several partial sums, assigned to images by their position in the batch: not separable, unless by images."""
    placement = per_image_rule(node, inputs, axis)
    if attrs_of(node, at.PooledConvAttrs).parts == node.inputs[0].type.shape[0]:
        return placement
    return Mixed(node, "sums images by their position in the batch") if placement == Sharded(0) else placement
