"""The analysis: the table of how the batch flows through each op, and those that hold graphs themselves."""

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
    BatchSharded,
    Flow,
    Kind,
    Mixed,
    Partial,
    Replicated,
    Several,
    SumOfRatios,
    agree,
    by_shape,
    mentions,
)
from wholestep.compiler.passes.lower.decompose import decomposition_over_leaves


def kinds_of(roots: Iterable[Node], batch: str, known: Mapping[Node, Kind] | None = None) -> dict[Node, Kind]:
    """The kind of every node behind the roots; `known` ones are taken as given."""
    kinds: dict[Node, Kind] = dict(known or {})
    for node in toposort(roots):
        if node not in kinds:
            kinds[node] = kind_of(node, [kinds[i] for i in node.inputs], batch)
    return kinds


def kind_of(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """The kind of a node over inputs of these kinds."""
    for kind in inputs:
        if isinstance(kind, Mixed):
            return kind
    family = OPS[node.op].family
    flow = FLOWS.get(node.op) or _BY_FAMILY.get(family)
    assert flow is not None, f"{node.op} must be gone before the batch is analysed"
    return flow(node, inputs, batch)


# -- layers ------------------------------------------------------------------------------------------------------


def _like_its_decomposition(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """What its primitives do, over leaves of the same types; it is to blame for all of them."""
    leaves, parts = decomposition_over_leaves(node)
    known = kinds_of(parts, batch, dict(zip(leaves, inputs, strict=True)))
    kinds = tuple(_blame(node, known[p]) for p in parts)
    return kinds[0] if isinstance(node.result, TensorType) else Several(kinds)


def _blame(node: Node, kind: Kind) -> Kind:
    return Mixed(node, f"{kind.reason} inside (`{kind.blame.op}`)") if isinstance(kind, Mixed) else kind


def _item(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (several,) = inputs
    assert isinstance(several, Several), f"{node.inputs[0]!r} must be gone before the batch is analysed"
    return several.kinds[attrs_of(node, at.ItemAttrs).index]


# -- collectives -------------------------------------------------------------------------------------------------


def _collective_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """What all ranks have been told is the same for all of them.  Those along the model axis have the same rows."""
    if getattr(node.attrs, "axis", DATA) == MODEL:
        told = tuple(_model_collective_rule(node, kind) for kind in inputs)
        return told[0] if isinstance(node.result, TensorType) else Several(told)
    if any(isinstance(kind, BatchSharded) for kind in inputs):
        return Mixed(node, "adds up rows of the batch by their place")
    return Replicated() if isinstance(node.result, TensorType) else Several(tuple(Replicated() for _ in inputs))


def _model_collective_rule(node: Node, kind: Kind) -> Kind:
    """It is linear in what ranks with the same rows give; parts stand along its first axis, where rows must not."""
    kinds = {node.op, getattr(node.attrs, "kind", "")}
    if isinstance(kind, BatchSharded) and kind.axis == 0 and kinds & {"reduce_scatter", "all_gather"}:
        return Mixed(node, "puts rows of the batch together by their place")
    return kind


# -- loops ----------------------------------------------------------------------------------------------------


def _scan(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A loop over rows is row-wise if each of its steps is, and leaves its carries the rows that they were."""
    attrs = attrs_of(node, at.ScanAttrs)
    first, last = attrs.carries, attrs.carries + attrs.sequences
    cuts = [_of_a_step(node, kind) for kind in inputs[first:last]]
    carried = list(inputs[:first])
    for _ in range(first + 1):  # a carry that begins free may become rows: until nothing changes
        known = dict(zip(attrs.graph.inputs, (*carried, *cuts, *inputs[last:]), strict=True))
        for kind in known.values():
            if isinstance(kind, Mixed | Partial | SumOfRatios):
                return kind if isinstance(kind, Mixed) else Mixed(node, "loops over a sum over the batch")
        kinds = kinds_of([o.node for o in attrs.graph.outputs], batch, known)
        after = [kinds[o.node] for o in attrs.graph.outputs]
        for kind in after:
            if isinstance(kind, Mixed):
                return kind
        if after[:first] == carried:
            break
        fresh = [by_shape(node.inputs[i], node.inputs[i].type.shape, batch) for i in range(first)]
        carried = [
            new if old == Replicated() or agree(old, new) else old for old, new in zip(carried, fresh, strict=True)
        ]
    if not all(map(agree, after[:first], carried)) or any(isinstance(k, Partial | SumOfRatios) for k in after):
        return Mixed(node, "carries something from step to step that is not the same rows of the batch")
    return Several(tuple(k.at(k.axis + 1) if isinstance(k, BatchSharded) else k for k in after))


def _of_a_step(node: Node, kind: Kind) -> Kind:
    if isinstance(kind, BatchSharded):
        return kind.at(kind.axis - 1) if kind.axis else Mixed(node, "takes the rows of the batch as its steps")
    return kind


# -- gradients of a user's own -----------------------------------------------------------------------------------------


def _custom_gradient(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """Its results are what they were, if its gradient does to a part of a batch what it does to the whole."""
    attrs = attrs_of(node, at.CustomGradientAttrs)
    results, arguments = inputs[: attrs.results], [inputs[i] for i in attrs.arguments]
    if SumOfRatios() in {*results, *arguments}:
        return Mixed(node, "has a gradient of its own for a mean over the batch; give it the sum, and divide behind it")
    for draw in attrs.graph.nodes:
        if draw.op in ops_with(Trait.DRAWS) and any(mentions(e, batch) for e in draw.type.shape[1:]):
            return Mixed(node, "draws random numbers in its gradient whose first axis is not the batch")
    known = dict(zip(attrs.graph.inputs, (*map(_gradient_placement, results), *inputs[attrs.results :]), strict=True))
    kinds = kinds_of([o.node for o in attrs.graph.outputs], batch, known)
    for output, argument in zip(attrs.graph.outputs, arguments, strict=True):
        kind = kinds[output.node]
        if isinstance(kind, Mixed):
            return Mixed(node, f"has a gradient of its own in which `{kind.blame.op}` {kind.reason}")
        if not agree(kind, _gradient_placement(argument)):
            return Mixed(node, "has a gradient of its own that does not add up over the parts of a batch")
    return Several(tuple(results))


def _gradient_placement(kind: Kind) -> Kind:
    """The kind of a gradient: rows have rows, what all rows share has a sum over them, and a sum has one for all."""
    return Partial() if kind == Replicated() else Replicated() if kind == Partial() else kind


_BY_FAMILY: dict[Family, Flow] = {Family.POINTWISE: pointwise.pointwise, Family.LEAF: pointwise.free}

FLOWS: dict[str, Flow] = {
    "input": pointwise.rows_of_shape,
    "random": pointwise.rows_of_shape,
    "iota": pointwise.iota_rule,
    "size": pointwise.size_of,
    "add": pointwise.linear,
    "sub": pointwise.linear,
    "neg": pointwise.linear,
    "stop_gradient": pointwise.linear,
    "by_mode": lambda node, inputs, batch: inputs[0],
    "mul": pointwise.mul_rule,
    "div": pointwise.div_rule,
    "ratio": pointwise.div_rule,
    "where": pointwise.where_rule,
    "cast": pointwise.cast_rule,
    "sum": pointwise.sum_rule,
    "max": pointwise.over(lambda n: attrs_of(n, at.MaxAttrs).axes, keeps_shape=False),
    "argmax": pointwise.over(lambda n: (attrs_of(n, at.ArgmaxAttrs).axis,), keeps_shape=False),
    "softmax": pointwise.over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "log_softmax": pointwise.over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=True),
    "logsumexp": pointwise.over(lambda n: (attrs_of(n, at.SoftmaxAttrs).axis,), keeps_shape=False),
    "relu": pointwise.pointwise,
    "sigmoid": pointwise.pointwise,
    "tanh": pointwise.pointwise,
    "silu": pointwise.pointwise,
    "softplus": pointwise.pointwise,
    "gelu": pointwise.pointwise,
    "bce_with_logits": pointwise.pointwise,
    "cross_entropy": pointwise.over_classes,
    "layer_norm": _like_its_decomposition,
    "layer_norm_grad": _like_its_decomposition,
    "rms_norm": _like_its_decomposition,
    "rms_norm_grad": _like_its_decomposition,
    "group_norm": _like_its_decomposition,
    "group_norm_grad": _like_its_decomposition,
    "batch_norm": _like_its_decomposition,
    "batch_norm_grad": _like_its_decomposition,
    "dropout": _like_its_decomposition,
    "attention": _like_its_decomposition,
    "attention_lse": _like_its_decomposition,
    "attention_grad": _like_its_decomposition,
    "scan": _scan,
    **dict.fromkeys(("all_reduce", "broadcast", "reduce_scatter", "all_gather", "exchange"), _collective_rule),
    "custom_gradient": _custom_gradient,
    "item": _item,
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
    "max_pool2d": convolution.by_image,
    "max_pool2d_index": convolution.by_image,
    "max_pool2d_grad": convolution.by_image,
    "max_pool2d_pick": convolution.by_image,
    "pooled_grad_weight": convolution.partial_weight_gradient_rule,
    "pooled_grad_input": convolution.convolution_rule(weight=2),
}
