"""The placements in which each op takes its operands along the model axis.

The placement rule of the op (`placement/rules.py`) then gives the placement of its result.  None: the op is computed
from replicated operands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.type_rules.collectives import CARRIED
from wholestep.compiler.passes.distribute.placement.contractions import contracted_axis
from wholestep.compiler.passes.distribute.placement.placements import (
    Partial,
    Placement,
    Replicated,
    Sharded,
    comparable_size,
)
from wholestep.compiler.passes.distribute.tensor_parallel.reshard import LocalValues

OperandRule = Callable[[LocalValues, Node], Sequence[Placement] | None]

# Linear ops, whose operands may be unreduced partial sums.
LINEAR = frozenset({"add", "sub", "neg", "cast", "reshape", "permute", "slice", "sum"})


def operand_placements(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """The placements in which a node takes its operands; None: replicated."""
    placements = [values.placements[i] for i in node.inputs]
    if node.op in LINEAR and set(placements) == {Partial()} and _commutes_with_sum(node):
        return placements
    rule = OPERAND_RULES.get(node.op)
    return None if rule is None else rule(values, node)


def _commutes_with_sum(node: Node) -> bool:
    """Does a linear op commute with the sum over ranks, up to rounding?  A cast does between float dtypes."""
    return node.op != "cast" or (node.type.dtype.is_float and node.type.dtype.name in CARRIED)


def _elementwise(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """All operands in one sharding.  An operation with an updated state takes the state's placement: then one gradient
    is resharded, and not each of the states that are updated with it."""
    of_states = [values.update_placements[i] for i in node.inputs if i in values.update_placements]
    candidates: list[Placement] = [*of_states, *values.shardings(node.inputs), Replicated()]
    chosen = Replicated() if Replicated() in of_states else candidates[0]
    if of_states:
        values.update_placements[node] = chosen
    return [chosen] * len(node.inputs) if isinstance(chosen, Sharded) else None


def _first_sharded(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """The first operand keeps its sharding, all other operands are replicated."""
    first = values.placements[node.inputs[0]]
    return [first, *[Replicated()] * (len(node.inputs) - 1)] if isinstance(first, Sharded) else None


def _concat(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """If sharded along another axis than the concat's, all operands take the placement of the first sharded one."""
    shardings = values.shardings(node.inputs)
    if not shardings:
        return None
    if shardings[0].axis != attrs_of(node, at.ConcatAttrs).axis:
        return [shardings[0]] * len(node.inputs)
    return [values.placements[i] for i in node.inputs]


def _cross_entropy(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    scores = values.placements[node.inputs[0]]
    return [scores, scores] if isinstance(scores, Sharded) else None


def _norm_gradient(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    x, *weight, upstream = node.inputs
    shardings = values.shardings([x, upstream])
    return [shardings[0], *[Replicated()] * len(weight), shardings[0]] if shardings else None


def _attention(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """Attention may be sharded along a leading axis, usually the heads, but not along sequence or head size."""
    q, k = node.inputs[:2]
    shardings = values.shardings(node.inputs[:3])
    if not shardings or shardings[0].axis >= q.type.rank - 2:
        return None
    sharding = shardings[0]
    grouped = q.type.shape[:-2] != k.type.shape[:-2] and sharding.axis == q.type.rank - 3
    if (grouped and sharding.outer != 1) or not all(values.divides_evenly(i, sharding) for i in node.inputs):
        return None  # grouped-query attention: a group of heads must be on the rank of the keys that it shares
    return [sharding] * len(node.inputs)


def _matmul(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    """If the operands' shardings are incompatible, the larger operand stays sharded and the smaller one is gathered."""
    by_size = sorted((0, 1), key=lambda i: -comparable_size(node.inputs[i]))
    placements = [values.placements[i] for i in node.inputs]
    larger = next((i for i in by_size if isinstance(placements[i], Sharded)), None)
    if larger is None:
        return None
    sharding, other = placements[larger], 1 - larger
    assert isinstance(sharding, Sharded)
    if sharding.axis < node.type.rank - 2:  # a batch axis: independent products
        return [sharding, sharding]
    contracted = sharding.axis == contracted_axis(node, larger)
    placements[other] = sharding.at(contracted_axis(node, other)) if contracted else Replicated()
    return placements


def _gather(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    data, index = (values.placements[i] for i in node.inputs)
    if isinstance(data, Sharded) and data.axis != attrs_of(node, at.GatherAttrs).axis:
        return [data, Replicated()]
    return [Replicated(), index] if isinstance(index, Sharded) else None


def _scatter_add(values: LocalValues, node: Node) -> Sequence[Placement] | None:
    (updates, index), axis = node.inputs, attrs_of(node, at.ScatterAddAttrs).axis
    placement = values.placements[updates]
    if not isinstance(placement, Sharded):
        return None
    indexed = axis <= placement.axis < axis + index.type.rank
    return [placement, placement.at(placement.axis - axis) if indexed else Replicated()]


OPERAND_RULES: dict[str, OperandRule] = {
    **dict.fromkeys((*ops_with(Trait.ELEMENTWISE), "ratio"), _elementwise),
    **dict.fromkeys(("sum", "max", "argmax", "softmax", "log_softmax", "logsumexp"), _first_sharded),
    **dict.fromkeys(("reshape", "permute", "expand", "slice", "pad", "all_reduce", "broadcast"), _first_sharded),
    **dict.fromkeys(("layer_norm", "rms_norm"), _first_sharded),
    **dict.fromkeys(("layer_norm_grad", "rms_norm_grad"), _norm_gradient),
    **dict.fromkeys(("attention", "attention_lse", "attention_grad"), _attention),
    "cross_entropy": _cross_entropy,
    "concat": _concat,
    "matmul": _matmul,
    "gather": _gather,
    "scatter_add": _scatter_add,
}
