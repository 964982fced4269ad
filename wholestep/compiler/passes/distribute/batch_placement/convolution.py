"""Convolutions and pools: every image for itself, but for what is summed over them."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchSharded,
    Flow,
    Kind,
    Mixed,
    Partial,
    Replicated,
    agree,
)


def by_image(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    if all(isinstance(k, Replicated) or agree(k, BatchSharded(0)) for k in inputs):
        return BatchSharded(0)
    return Mixed(node, "slides windows over images that are not rows of the batch")


def convolution_rule(weight: int) -> Flow:
    """Images under a weight that does not depend on the batch."""

    def flow(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
        if not isinstance(inputs[weight], Replicated):
            return Mixed(node, "filters images with a weight that depends on the batch")
        return by_image(node, inputs, batch)

    return flow


def weight_gradient_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A sum over the images."""
    kind = by_image(node, inputs, batch)
    return Partial() if kind == BatchSharded(0) else kind


def partial_weight_gradient_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """Sums over some of the images each: which image goes to which sum depends on its place in the batch."""
    kind = by_image(node, inputs, batch)
    return Mixed(node, "adds up images by their place in the batch") if kind == BatchSharded(0) else kind
