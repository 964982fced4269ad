"""The table of placement rules, one per op; the rules of composites, collectives, and ops that contain graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.mesh import DATA
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.distribute.placement import contractions, pointwise, views
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Partial,
    Placement,
    PlacementRule,
    Replicated,
    Sharded,
    SumOfRatios,
    TuplePlacement,
    are_compatible,
    common_sharding,
    placement_of_shape,
)
from wholestep.compiler.passes.lower.decompose import decomposition_over_leaves


def placements_of(
    roots: Iterable[Node], axis: MeshAxis, fixed: Mapping[Node, Placement] | None = None
) -> dict[Node, Placement]:
    """The placement of every node that the roots depend on; those in `fixed` are not computed."""
    placements: dict[Node, Placement] = dict(fixed or {})
    for node in toposort(roots):
        if node not in placements:
            placements[node] = placement_of(node, [placements[i] for i in node.inputs], axis)
    return placements


def placement_of(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The placement of a node over inputs of these placements."""
    for placement in inputs:
        if isinstance(placement, Mixed):
            return placement
    assert node.op in PLACEMENT_RULES, f"{node.op} must be lowered before the placement analysis"
    return PLACEMENT_RULES[node.op](node, inputs, axis)


# -- composites --------------------------------------------------------------------------------------------------


def _decomposition_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The placement of the decomposition; the composite is blamed for any of its primitives."""
    leaves, parts = decomposition_over_leaves(node)
    inner = placements_of(parts, axis, dict(zip(leaves, inputs, strict=True)))
    results = tuple(_blame_composite(node, inner[p]) for p in parts)
    return results[0] if isinstance(node.result, TensorType) else TuplePlacement(results)


def _blame_composite(node: Node, placement: Placement) -> Placement:
    if not isinstance(placement, Mixed):
        return placement
    return Mixed(node, f"{placement.reason} inside (`{placement.blame.op}`)")


def _norm_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of layer_norm and rms_norm: row-wise, unless the last axis, which is normalized, is sharded."""
    x, *affine = inputs
    if isinstance(x, Sharded) and x.axis < node.type.rank - 1 and all(k == Replicated() for k in affine):
        return x
    return _decomposition_rule(node, inputs, axis)


def _norm_gradient_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of a norm's gradients: the gradients of weight and bias are sums over the rows."""
    x, *weight, upstream = inputs
    sharding = common_sharding([x, upstream])
    if sharding is None or sharding.axis == node.inputs[0].type.rank - 1 or any(k != Replicated() for k in weight):
        return _decomposition_rule(node, inputs, axis)
    return TuplePlacement((sharding, *[Partial()] * (len(node.results) - 1)))


def _attention_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of attention: independent along the leading axes, usually batch and heads."""
    sharding = common_sharding(inputs)
    if sharding is None or sharding.axis >= node.inputs[0].type.rank - 2:
        return _decomposition_rule(node, inputs, axis)
    return sharding if isinstance(node.result, TensorType) else TuplePlacement((sharding,) * len(node.results))


def _item_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    (placement,) = inputs
    assert isinstance(placement, TuplePlacement), f"{node.inputs[0]!r} must be lowered before the placement analysis"
    return placement.results[attrs_of(node, at.ItemAttrs).index]


# -- collectives -------------------------------------------------------------------------------------------------


def _collective_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of collectives: replicated along their mesh axis; the placement along the other axis stays."""
    if getattr(node.attrs, "axis", DATA) != axis.name:
        placements = tuple(_other_axis_placement(node, placement) for placement in inputs)
    elif any(isinstance(placement, Sharded) for placement in inputs):
        return Mixed(node, "sums rows of the batch by their position")
    else:
        placements = (Replicated(),) * len(inputs)
    return placements[0] if isinstance(node.result, TensorType) else TuplePlacement(placements)


def _other_axis_placement(node: Node, placement: Placement) -> Placement:
    """The placement along a mesh axis that the collective does not use: unchanged, since it is linear; but it must not
    scatter or gather along the sharded axis."""
    kinds = {node.op, getattr(node.attrs, "kind", "")}
    if isinstance(placement, Sharded) and placement.axis == 0 and kinds & {"reduce_scatter", "all_gather"}:
        return Mixed(node, "concatenates rows of the batch by their position")
    return placement


# -- loops ----------------------------------------------------------------------------------------------------


def _scan_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of scan: row-wise if its body is, and if the placements of its carries are a fixpoint of the body."""
    attrs = attrs_of(node, at.ScanAttrs)
    first, last = attrs.carries, attrs.carries + attrs.sequences
    step_inputs = [_step_placement(node, placement) for placement in inputs[first:last]]
    carried = list(inputs[:first])
    for _ in range(first + 1):  # a Replicated carry may become Sharded: iterate to the fixpoint
        body_inputs = dict(zip(attrs.graph.inputs, (*carried, *step_inputs, *inputs[last:]), strict=True))
        for placement in body_inputs.values():
            if isinstance(placement, Mixed | Partial | SumOfRatios):
                return placement if isinstance(placement, Mixed) else Mixed(node, "scans over a sum over the batch")
        body_placements = placements_of([o.node for o in attrs.graph.outputs], axis, body_inputs)
        after = [body_placements[o.node] for o in attrs.graph.outputs]
        for placement in after:
            if isinstance(placement, Mixed):
                return placement
        if after[:first] == carried:
            break
        shape_placements = [placement_of_shape(node.inputs[i], node.inputs[i].type.shape, axis) for i in range(first)]
        carried = [
            new if old == Replicated() or are_compatible(old, new) else old
            for old, new in zip(carried, shape_placements, strict=True)
        ]
    if not all(map(are_compatible, after[:first], carried)) or any(isinstance(k, Partial | SumOfRatios) for k in after):
        return Mixed(node, "has a carry that does not keep the rows of the batch from step to step")
    return TuplePlacement(tuple(k.at(k.axis + 1) if isinstance(k, Sharded) else k for k in after))


def _step_placement(node: Node, placement: Placement) -> Placement:
    if isinstance(placement, Sharded):
        return placement.at(placement.axis - 1) if placement.axis else Mixed(node, "scans along the batch axis")
    return placement


# -- custom gradients --------------------------------------------------------------------------------------------------


def _custom_gradient_rule(node: Node, inputs: Sequence[Placement], axis: MeshAxis) -> Placement:
    """The rule of custom_gradient: placements pass through, if its gradient graph maps them as a gradient must."""
    attrs = attrs_of(node, at.CustomGradientAttrs)
    results, arguments = inputs[: attrs.results], [inputs[i] for i in attrs.arguments]
    if SumOfRatios() in {*results, *arguments}:
        return Mixed(
            node, "has a custom gradient for a mean over the batch; apply it to the sum, and divide afterwards"
        )
    for draw in attrs.graph.nodes:
        if draw.op in ops_with(Trait.DRAWS) and any(axis.mentions(e) for e in draw.type.shape[1:]):
            return Mixed(node, "draws random numbers in its gradient whose first axis is not the batch")
    gradient_inputs = dict(
        zip(attrs.graph.inputs, (*map(_gradient_placement, results), *inputs[attrs.results :]), strict=True)
    )
    gradient_placements = placements_of([o.node for o in attrs.graph.outputs], axis, gradient_inputs)
    for output, argument in zip(attrs.graph.outputs, arguments, strict=True):
        placement = gradient_placements[output.node]
        if isinstance(placement, Mixed):
            return Mixed(node, f"has a custom gradient in which `{placement.blame.op}` {placement.reason}")
        if not are_compatible(placement, _gradient_placement(argument)):
            return Mixed(node, "has a custom gradient that does not add up over the parts of a batch")
    return TuplePlacement(tuple(results))


def _gradient_placement(placement: Placement) -> Placement:
    """The placement of a value's gradient: Replicated and Partial are dual, Sharded is its own dual."""
    return Partial() if placement == Replicated() else Replicated() if placement == Partial() else placement


def is_linear(node: Node) -> bool:
    """Is a `custom_gradient` linear in the upstream gradients, so that a factor may be applied to its results instead?

    Partial values flow through linear functions only, so this is the analysis along an axis with nothing sharded.
    """
    attrs, axis = attrs_of(node, at.CustomGradientAttrs), MeshAxis(DATA)
    upstream = attrs.graph.inputs[: attrs.results]
    placements: dict[Node, Placement] = {x: Partial() if x in upstream else Replicated() for x in attrs.graph.inputs}
    for n in attrs.graph.nodes:
        if n not in placements:
            inputs = [placements[i] for i in n.inputs]
            if n.op in ("add", "sub", "concat") and Partial() in inputs:  # zero is a multiple of any upstream gradient
                inputs = [Partial() if _is_zero(i) else k for i, k in zip(n.inputs, inputs, strict=True)]
            placements[n] = placement_of(n, inputs, axis)
    return all(placements[o.node] == Partial() or _is_zero(o.node) for o in attrs.graph.outputs)


def _is_zero(node: Node) -> bool:
    return constant_value(node) == 0


PLACEMENT_RULES: dict[str, PlacementRule] = {
    **dict.fromkeys((op.name for op in OPS.values() if op.family is Family.LEAF), pointwise.replicated_rule),
    "input": pointwise.shape_rule,
    "random": pointwise.shape_rule,
    "iota": pointwise.iota_rule,
    "size": pointwise.size_rule,
    **dict.fromkeys(ops_with(Trait.ELEMENTWISE), pointwise.elementwise_rule),
    **dict.fromkeys(("add", "sub", "neg", "stop_gradient"), pointwise.linear_rule),
    "mul": pointwise.multilinear_rule,
    **dict.fromkeys(ops_with(Trait.QUOTIENT), pointwise.div_rule),
    "where": pointwise.where_rule,
    "cast": pointwise.cast_rule,
    "by_mode": lambda node, inputs, axis: inputs[0],
    "sum": pointwise.sum_rule,
    "max": pointwise.nonlinear_along(lambda n: attrs_of(n, at.MaxAttrs).axes, keeps_shape=False),
    "argmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.ArgmaxAttrs).axis,), keeps_shape=False),
    "softmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "log_softmax": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "logsumexp": pointwise.nonlinear_along(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=False),
    "cross_entropy": pointwise.cross_entropy_rule,
    **dict.fromkeys(("layer_norm", "rms_norm"), _norm_rule),
    **dict.fromkeys(("layer_norm_grad", "rms_norm_grad"), _norm_gradient_rule),
    **dict.fromkeys(("group_norm", "group_norm_grad", "batch_norm", "batch_norm_grad", "dropout"), _decomposition_rule),
    **dict.fromkeys(("attention", "attention_lse", "attention_grad"), _attention_rule),
    "scan": _scan_rule,
    **dict.fromkeys((op.name for op in OPS.values() if op.family is Family.COLLECTIVE), _collective_rule),
    "custom_gradient": _custom_gradient_rule,
    "item": _item_rule,
    "reshape": views.reshape_rule,
    "permute": views.permute_rule,
    "expand": views.expand_rule,
    "slice": views.slice_rule,
    "pad": views.pad_rule,
    "concat": views.concat_rule,
    "gather": contractions.gather_rule,
    "scatter_add": contractions.scatter_rule,
    "write_rows": contractions.update_slice_rule,
    "matmul": contractions.matmul_rule,
    "conv2d": contractions.multilinear(contractions.convolution_rule(weight=1)),
    "conv2d_grad_input": contractions.multilinear(contractions.convolution_rule(weight=1)),
    "conv2d_grad_weight": contractions.multilinear(contractions.weight_gradient_rule),
    "max_pool2d": contractions.per_image_rule,
    "max_pool2d_index": contractions.per_image_rule,
    "max_pool2d_grad": contractions.multilinear(contractions.per_image_rule),
    "max_pool2d_pick": contractions.per_image_rule,
    "pooled_grad_weight": contractions.partial_weight_gradient_rule,
    "pooled_grad_input": contractions.convolution_rule(weight=2),
}
