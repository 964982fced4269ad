"""Sharding rules, one per op: the local computation over sharded or partial operands, and its placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.mesh import DATA, MODEL
from wholestep.compiler.ir.state_partition import AxisSplit
from wholestep.compiler.ir.type_rules.collectives import CARRIED
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.distribute.tensor_parallel.movement import concat, expand, pad, permute, reshape, slice_
from wholestep.compiler.passes.distribute.tensor_parallel.placements import (
    ModelPlacement,
    OnAllRanks,
    PartialTerm,
    Sharded,
    shard_shape,
)
from wholestep.compiler.passes.distribute.tensor_parallel.propagate import (
    PlacedValue,
    Rule,
    RuleResult,
    ShardingPropagation,
)

# -- leaves ------------------------------------------------------------------------------------------------------


def state(s: ShardingPropagation, node: Node) -> RuleResult:
    """A marked state is declared in its shard's shape."""
    a = attrs_of(node, at.StateAttrs)
    if not a.split:
        return None
    cut = AxisSplit.of(a.split)
    split = Sharded(cut.axis, cut.blocks, cut.widths)
    attrs = replace(a, type=TensorType(shard_shape(a.type.shape, split, s.ranks), a.type.dtype), whole=a.type.shape)
    return Node(node.op, (), attrs, node.name, node.line), split


# -- elementwise -----------------------------------------------------------------------------------------------------


def elementwise(s: ShardingPropagation, node: Node) -> RuleResult:
    """All operands in one sharding.  An operation with an updated state takes the state's placement: then one gradient
    is resharded, and not each of the states that are updated with it."""
    state_placements = [s.update_placements[i] for i in node.inputs if i in s.update_placements]
    if node.op in LINEAR and all(s.placements[i] == PartialTerm() for i in node.inputs) and _commutes_with_sum(node):
        return s.local_op(node, [s.local_values[i] for i in node.inputs]), PartialTerm()
    shardings = s.shardings(node.inputs)
    chosen: ModelPlacement = (
        OnAllRanks()
        if OnAllRanks() in state_placements or not shardings
        else next(iter(state_placements), shardings[0])
    )
    if state_placements:
        s.update_placements[node] = chosen
    if not isinstance(chosen, Sharded):
        return s.local_op(node, [s.replicated(i) for i in node.inputs]), OnAllRanks()
    return s.local_op(node, [s.shard(i, chosen) for i in node.inputs]), chosen


LINEAR = frozenset({"add", "sub", "neg", "cast"})


def _commutes_with_sum(node: Node) -> bool:
    """Does the op commute with the sum over ranks, up to rounding?  A cast does between float dtypes."""
    return node.op != "cast" or (node.type.dtype.is_float and node.type.dtype.name in CARRIED)


# -- along axes -----------------------------------------------------------------------------------------------------


def _after_reduction(split: Sharded, reduced: Sequence[int]) -> Sharded:
    return split.at(split.axis - sum(d < split.axis for d in reduced))


def sum_(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
    placement = s.placements[x]
    if isinstance(placement, OnAllRanks):
        return None
    ends = isinstance(placement, PartialTerm) or placement.axis in axes
    return s.local_op(node, [s.local_values[x]]), PartialTerm() if ends else _after_reduction(placement, axes)  # type: ignore[arg-type]


def max_(s: ShardingPropagation, node: Node) -> RuleResult:
    """Along the sharded axis: the maximum of the all-gathered local maxima."""
    (x,), axes = node.inputs, attrs_of(node, at.MaxAttrs).axes
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    local_max = s.local_op(node, [s.local_values[x]])
    if placement.axis not in axes:
        return local_max, _after_reduction(placement, axes)
    if local_max.type.dtype.name not in CARRIED:
        return None
    all_maxima = b.make(
        "all_gather", (b.reshape(local_max, (1, *local_max.type.shape)),), at.GroupAttrs(s.ranks, MODEL)
    )
    return b.max_axes(all_maxima, (0,)), OnAllRanks()


def argmax(s: ShardingPropagation, node: Node) -> RuleResult:
    (x,), axis = node.inputs, attrs_of(node, at.ArgmaxAttrs).axis
    placement = s.placements[x]
    if not isinstance(placement, Sharded) or placement.axis == axis:
        return None
    return s.local_op(node, [s.local_values[x]]), _after_reduction(placement, (axis,))


def softmax(s: ShardingPropagation, node: Node) -> RuleResult:
    """softmax, log_softmax, logsumexp."""
    (x,), axis = node.inputs, attrs_of(node, at.SoftmaxAttrs).axis
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    if placement.axis == axis:
        return s.decompose(node)
    return s.local_op(node, [s.local_values[x]]), _after_reduction(
        placement, (axis,)
    ) if node.op == "logsumexp" else placement


def cross_entropy(s: ShardingPropagation, node: Node) -> RuleResult:
    x, labels = node.inputs
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    if placement.axis == x.type.rank - 1:
        return s.decompose(node)
    return s.local_op(node, [s.local_values[x], s.shard(labels, placement)]), placement


def norm(s: ShardingPropagation, node: Node) -> RuleResult:
    """Row-wise; if the normalized axis itself is sharded, the norm is decomposed into sums over ranks."""
    x, *affine = node.inputs
    placement = s.placements[x]
    if not isinstance(placement, Sharded):
        return None
    if placement.axis == x.type.rank - 1:
        return s.decompose(node)
    return s.local_op(node, [s.local_values[x], *map(s.replicated, affine)]), placement


def norm_grad(s: ShardingPropagation, node: Node) -> RuleResult:
    x, *weight, upstream = node.inputs
    shardings = s.shardings([x, upstream])
    if not shardings:
        return None
    if shardings[0].axis == x.type.rank - 1:
        return s.decompose(node)
    result = s.local_op(node, [s.shard(x, shardings[0]), *map(s.replicated, weight), s.shard(upstream, shardings[0])])
    placements: list[ModelPlacement] = [shardings[0], *[PartialTerm()] * (len(node.results) - 1)]
    return items(result, placements)


def items(node: Node, placements: Sequence[ModelPlacement]) -> tuple[PlacedValue, ...]:
    """All results of a node with several results, with their placements."""
    return tuple((b.make("item", (node,), at.ItemAttrs(i)), placement) for i, placement in enumerate(placements))


def decomposed(s: ShardingPropagation, node: Node) -> RuleResult:
    """Decompose a composite over sharded operands.  A dropout thus draws the full mask and slices its shard."""
    return s.decompose(node) if s.shardings(node.inputs) else None


# -- attention -----------------------------------------------------------------------------------------------------


def attention(s: ShardingPropagation, node: Node) -> RuleResult:
    """Sharded along a leading axis, usually the heads; along sequence or head size it needs replicated operands."""
    q, k = node.inputs[:2]
    shardings = s.shardings(node.inputs[:3])
    if not shardings or shardings[0].axis >= q.type.rank - 2:
        return None
    split = shardings[0]
    shared = q.type.shape[:-2] != k.type.shape[:-2] and split.axis == q.type.rank - 3
    if (shared and split.outer != 1) or not all(s.divides_evenly(i, split) for i in node.inputs):
        return None  # grouped-query attention: a group of heads must be on the rank of the keys that it shares
    result = s.local_op(node, [s.shard(i, split) for i in node.inputs])
    if isinstance(node.result, TensorType):
        return result, split
    return items(result, [split] * len(node.results))


# -- products ------------------------------------------------------------------------------------------------------


def matmul(s: ShardingPropagation, node: Node) -> RuleResult:
    """Sharded along the contracted axis, the product is a partial sum; along any other, it is sharded as its operand.

    If the shardings of the operands are incompatible, that of the larger operand is used and the smaller is gathered.
    """
    by_size = sorted((0, 1), key=lambda i: -elements(node.inputs[i]))
    sharded_operand = next((i for i in by_size if isinstance(s.placements[node.inputs[i]], Sharded)), None)
    if sharded_operand is None:
        return None
    split, rank, other = s.placements[node.inputs[sharded_operand]], node.type.rank, 1 - sharded_operand
    assert isinstance(split, Sharded)
    if split.axis < rank - 2:  # a batch axis: independent products
        return s.local_op(node, [s.shard(i, split) for i in node.inputs]), split
    operands: list[Node] = list(node.inputs)
    operands[sharded_operand] = s.local_values[node.inputs[sharded_operand]]
    if split.axis == _contracted_axis(node, sharded_operand):
        operands[other] = s.shard(node.inputs[other], split.at(_contracted_axis(node, other)))
        return s.local_op(node, operands), PartialTerm()
    operands[other] = s.replicated(node.inputs[other])
    return s.local_op(node, operands), split.at(rank - 2 + sharded_operand)


def _contracted_axis(node: Node, operand: int) -> int:
    """The contracted axis of an operand."""
    a = attrs_of(node, at.MatmulAttrs)
    last = not a.transpose_a if operand == 0 else a.transpose_b
    return node.type.rank - (1 if last else 2)


def elements(node: Node) -> int:
    """The number of elements, for comparison: a symbolic extent counts as 64."""
    count = 1
    for extent in node.type.shape:
        count *= extent if isinstance(extent, int) else 64
    return count


# -- by index ------------------------------------------------------------------------------------------------------


def gather(s: ShardingPropagation, node: Node) -> RuleResult:
    (data, index), axis = node.inputs, attrs_of(node, at.GatherAttrs).axis
    data_placement, index_placement = s.placements[data], s.placements[index]
    if isinstance(data_placement, Sharded) and data_placement.axis != axis:
        result_placement = data_placement.at(
            data_placement.axis + (0 if data_placement.axis < axis else index.type.rank - 1)
        )
        return s.local_op(node, [s.local_values[data], s.replicated(index)]), result_placement
    if isinstance(index_placement, Sharded):
        return s.local_op(node, [s.replicated(data), s.local_values[index]]), index_placement.at(
            index_placement.axis + axis
        )
    return None


def scatter_add(s: ShardingPropagation, node: Node) -> RuleResult:
    (updates, index), axis = node.inputs, attrs_of(node, at.ScatterAddAttrs).axis
    placement, last = s.placements[updates], axis + index.type.rank
    if not isinstance(placement, Sharded):
        return None
    if axis <= placement.axis < last:
        return s.local_op(
            node, [s.local_values[updates], s.shard(index, placement.at(placement.axis - axis))]
        ), PartialTerm()
    result_placement = placement.at(placement.axis if placement.axis < axis else placement.axis - index.type.rank + 1)
    return s.local_op(node, [s.local_values[updates], s.replicated(index)]), result_placement


# -- collectives along the data axis -----------------------------------------------------------------------------------


def collective_rule(s: ShardingPropagation, node: Node) -> RuleResult:
    """A collective along the data axis is applied to shards: its ranks hold the same shard of the layers."""
    (x,) = node.inputs
    placement = s.placements[x]
    if not isinstance(placement, Sharded) or attrs_of(node, at.GroupAttrs).axis != DATA:
        return None
    return s.local_op(node, [s.local_values[x]]), placement


RULES: dict[str, Rule] = {
    "parameter": state,
    "state": state,
    "ratio": elementwise,
    "sum": sum_,
    "max": max_,
    "argmax": argmax,
    "softmax": softmax,
    "log_softmax": softmax,
    "logsumexp": softmax,
    "cross_entropy": cross_entropy,
    "layer_norm": norm,
    "rms_norm": norm,
    "layer_norm_grad": norm_grad,
    "rms_norm_grad": norm_grad,
    **dict.fromkeys(("batch_norm", "batch_norm_grad", "group_norm", "group_norm_grad", "dropout"), decomposed),
    **dict.fromkeys(("attention", "attention_lse", "attention_grad"), attention),
    "matmul": matmul,
    "reshape": reshape,
    "permute": permute,
    "expand": expand,
    "slice": slice_,
    "pad": pad,
    "concat": concat,
    "gather": gather,
    "scatter_add": scatter_add,
    "all_reduce": collective_rule,
    "broadcast": collective_rule,
}


def rule_of(node: Node) -> Rule | None:
    """The rule of a node; None: it is computed from replicated inputs."""
    return RULES.get(node.op) or (elementwise if node.is_elementwise else None)
