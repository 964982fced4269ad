"""Placement rules of convolutions and pools: row-wise per image; weight gradients are sums over images."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchPlacement,
    BatchSharded,
    Mixed,
    Partial,
    PlacementRule,
    Replicated,
    are_compatible,
)


def per_image_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    if all(isinstance(k, Replicated) or are_compatible(k, BatchSharded(0)) for k in inputs):
        return BatchSharded(0)
    return Mixed(node, "slides windows over images that are not rows of the batch")


def convolution_rule(weight: int) -> PlacementRule:
    """Row-wise, if the weight (the input of this index) is replicated."""

    def flow(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
        if not isinstance(inputs[weight], Replicated):
            return Mixed(node, "convolves images with a weight that depends on the batch")
        return per_image_rule(node, inputs, batch)

    return flow


def weight_gradient_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """A sum over the images."""
    placement = per_image_rule(node, inputs, batch)
    return Partial() if placement == BatchSharded(0) else placement


def partial_weight_gradient_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """Several partial sums, assigned to images by their position in the batch: not separable by rows."""
    placement = per_image_rule(node, inputs, batch)
    return Mixed(node, "sums images by their position in the batch") if placement == BatchSharded(0) else placement
