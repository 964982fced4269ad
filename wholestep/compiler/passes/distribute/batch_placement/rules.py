"""The placement analysis: one rule per op, and the rules of ops that contain graphs (scan, custom_gradient)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.mesh import DATA, MODEL
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.distribute.batch_placement import convolution, movement, pointwise
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchPlacement,
    BatchSharded,
    Mixed,
    Partial,
    PlacementRule,
    Replicated,
    SumOfRatios,
    TuplePlacement,
    are_compatible,
    mentions,
    placement_of_shape,
)
from wholestep.compiler.passes.lower.decompose import decomposition_over_leaves


def placements_of(
    roots: Iterable[Node], batch: str, known: Mapping[Node, BatchPlacement] | None = None
) -> dict[Node, BatchPlacement]:
    """The placement of every node that the roots depend on; those in `known` are not computed."""
    kinds: dict[Node, BatchPlacement] = dict(known or {})
    for node in toposort(roots):
        if node not in kinds:
            kinds[node] = placement_of(node, [kinds[i] for i in node.inputs], batch)
    return kinds


def placement_of(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """The placement of a node over inputs of these placements."""
    for placement in inputs:
        if isinstance(placement, Mixed):
            return placement
    family = OPS[node.op].family
    flow = PLACEMENT_RULES.get(node.op) or _BY_FAMILY.get(family)
    assert flow is not None, f"{node.op} must be lowered before the placement analysis"
    return flow(node, inputs, batch)


# -- layers ------------------------------------------------------------------------------------------------------


def _decomposed_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """The placement of the decomposition; the composite is blamed for any of its primitives."""
    leaves, parts = decomposition_over_leaves(node)
    inner = placements_of(parts, batch, dict(zip(leaves, inputs, strict=True)))
    kinds = tuple(_blame_composite(node, inner[p]) for p in parts)
    return kinds[0] if isinstance(node.result, TensorType) else TuplePlacement(kinds)


def _blame_composite(node: Node, placement: BatchPlacement) -> BatchPlacement:
    return (
        Mixed(node, f"{placement.reason} inside (`{placement.blame.op}`)")
        if isinstance(placement, Mixed)
        else placement
    )


def _item_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (several,) = inputs
    assert isinstance(several, TuplePlacement), f"{node.inputs[0]!r} must be lowered before the placement analysis"
    return several.kinds[attrs_of(node, at.ItemAttrs).index]


# -- collectives -------------------------------------------------------------------------------------------------


def _collective_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """A collective over the data axis replicates its result; ranks of the model axis hold the same rows."""
    if getattr(node.attrs, "axis", DATA) == MODEL:
        placements = tuple(_model_collective_rule(node, placement) for placement in inputs)
        return placements[0] if isinstance(node.result, TensorType) else TuplePlacement(placements)
    if any(isinstance(placement, BatchSharded) for placement in inputs):
        return Mixed(node, "sums rows of the batch by their position")
    return Replicated() if isinstance(node.result, TensorType) else TuplePlacement(tuple(Replicated() for _ in inputs))


def _model_collective_rule(node: Node, placement: BatchPlacement) -> BatchPlacement:
    """Linear in its operand, so the placement stays; but a scatter or gather must not be along the batch axis."""
    kinds = {node.op, getattr(node.attrs, "kind", "")}
    if isinstance(placement, BatchSharded) and placement.axis == 0 and kinds & {"reduce_scatter", "all_gather"}:
        return Mixed(node, "concatenates rows of the batch by their position")
    return placement


# -- loops ----------------------------------------------------------------------------------------------------


def _scan_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """A scan is row-wise if its body is, and if the placements of its carries are a fixpoint of the body."""
    attrs = attrs_of(node, at.ScanAttrs)
    first, last = attrs.carries, attrs.carries + attrs.sequences
    step_inputs = [_step_placement(node, placement) for placement in inputs[first:last]]
    carried = list(inputs[:first])
    for _ in range(first + 1):  # a Replicated carry may become BatchSharded: iterate to the fixpoint
        body_inputs = dict(zip(attrs.graph.inputs, (*carried, *step_inputs, *inputs[last:]), strict=True))
        for placement in body_inputs.values():
            if isinstance(placement, Mixed | Partial | SumOfRatios):
                return placement if isinstance(placement, Mixed) else Mixed(node, "scans over a sum over the batch")
        body_placements = placements_of([o.node for o in attrs.graph.outputs], batch, body_inputs)
        after = [body_placements[o.node] for o in attrs.graph.outputs]
        for placement in after:
            if isinstance(placement, Mixed):
                return placement
        if after[:first] == carried:
            break
        fresh = [placement_of_shape(node.inputs[i], node.inputs[i].type.shape, batch) for i in range(first)]
        carried = [
            new if old == Replicated() or are_compatible(old, new) else old
            for old, new in zip(carried, fresh, strict=True)
        ]
    if not all(map(are_compatible, after[:first], carried)) or any(isinstance(k, Partial | SumOfRatios) for k in after):
        return Mixed(node, "has a carry that does not keep the rows of the batch from step to step")
    return TuplePlacement(tuple(k.at(k.axis + 1) if isinstance(k, BatchSharded) else k for k in after))


def _step_placement(node: Node, placement: BatchPlacement) -> BatchPlacement:
    if isinstance(placement, BatchSharded):
        return placement.at(placement.axis - 1) if placement.axis else Mixed(node, "scans along the batch axis")
    return placement


# -- custom gradients --------------------------------------------------------------------------------------------------


def _custom_gradient_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    """The placements of its results pass through, if its gradient graph maps placements as a gradient must."""
    attrs = attrs_of(node, at.CustomGradientAttrs)
    results, arguments = inputs[: attrs.results], [inputs[i] for i in attrs.arguments]
    if SumOfRatios() in {*results, *arguments}:
        return Mixed(
            node, "has a custom gradient for a mean over the batch; apply it to the sum, and divide afterwards"
        )
    for draw in attrs.graph.nodes:
        if draw.op in ops_with(Trait.DRAWS) and any(mentions(e, batch) for e in draw.type.shape[1:]):
            return Mixed(node, "draws random numbers in its gradient whose first axis is not the batch")
    gradient_inputs = dict(
        zip(attrs.graph.inputs, (*map(_gradient_placement, results), *inputs[attrs.results :]), strict=True)
    )
    gradient_placements = placements_of([o.node for o in attrs.graph.outputs], batch, gradient_inputs)
    for output, argument in zip(attrs.graph.outputs, arguments, strict=True):
        placement = gradient_placements[output.node]
        if isinstance(placement, Mixed):
            return Mixed(node, f"has a custom gradient in which `{placement.blame.op}` {placement.reason}")
        if not are_compatible(placement, _gradient_placement(argument)):
            return Mixed(node, "has a custom gradient that does not add up over the parts of a batch")
    return TuplePlacement(tuple(results))


def _gradient_placement(placement: BatchPlacement) -> BatchPlacement:
    """The placement of a value's gradient: Replicated and Partial are dual, BatchSharded is its own dual."""
    return Partial() if placement == Replicated() else Replicated() if placement == Partial() else placement


_BY_FAMILY: dict[Family, PlacementRule] = {
    Family.POINTWISE: pointwise.elementwise_rule,
    Family.LEAF: pointwise.replicated_rule,
}

PLACEMENT_RULES: dict[str, PlacementRule] = {
    "input": pointwise.batch_shape_rule,
    "random": pointwise.batch_shape_rule,
    "iota": pointwise.iota_rule,
    "size": pointwise.size_rule,
    "add": pointwise.linear_rule,
    "sub": pointwise.linear_rule,
    "neg": pointwise.linear_rule,
    "stop_gradient": pointwise.linear_rule,
    "by_mode": lambda node, inputs, batch: inputs[0],
    "mul": pointwise.mul_rule,
    "div": pointwise.div_rule,
    "ratio": pointwise.div_rule,
    "where": pointwise.where_rule,
    "cast": pointwise.cast_rule,
    "sum": pointwise.sum_rule,
    "max": pointwise.nonlinear_along(lambda n: attrs_of(n, at.MaxAttrs).axes, keeps_shape=False),
    "argmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.ArgmaxAttrs).axis,), keeps_shape=False),
    "softmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "log_softmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "logsumexp": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=False),
    "relu": pointwise.elementwise_rule,
    "sigmoid": pointwise.elementwise_rule,
    "tanh": pointwise.elementwise_rule,
    "silu": pointwise.elementwise_rule,
    "softplus": pointwise.elementwise_rule,
    "gelu": pointwise.elementwise_rule,
    "bce_with_logits": pointwise.elementwise_rule,
    "cross_entropy": pointwise.cross_entropy_rule,
    "layer_norm": _decomposed_rule,
    "layer_norm_grad": _decomposed_rule,
    "rms_norm": _decomposed_rule,
    "rms_norm_grad": _decomposed_rule,
    "group_norm": _decomposed_rule,
    "group_norm_grad": _decomposed_rule,
    "batch_norm": _decomposed_rule,
    "batch_norm_grad": _decomposed_rule,
    "dropout": _decomposed_rule,
    "attention": _decomposed_rule,
    "attention_lse": _decomposed_rule,
    "attention_grad": _decomposed_rule,
    "scan": _scan_rule,
    **dict.fromkeys(("all_reduce", "broadcast", "reduce_scatter", "all_gather", "exchange"), _collective_rule),
    "custom_gradient": _custom_gradient_rule,
    "item": _item_rule,
    "reshape": movement.reshape_rule,
    "permute": movement.permute_rule,
    "expand": movement.expand_rule,
    "slice": movement.slice_rule,
    "pad": movement.pad_rule,
    "concat": movement.concat_rule,
    "gather": movement.gather_rule,
    "scatter_add": movement.scatter_rule,
    "write_rows": movement.update_slice_rule,
    "matmul": movement.matmul_rule,
    "conv2d": convolution.convolution_rule(weight=1),
    "conv2d_grad_input": convolution.convolution_rule(weight=1),
    "conv2d_grad_weight": convolution.weight_gradient_rule,
    "max_pool2d": convolution.per_image_rule,
    "max_pool2d_index": convolution.per_image_rule,
    "max_pool2d_grad": convolution.per_image_rule,
    "max_pool2d_pick": convolution.per_image_rule,
    "pooled_grad_weight": convolution.partial_weight_gradient_rule,
    "pooled_grad_input": convolution.convolution_rule(weight=2),
}
