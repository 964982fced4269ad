"""One rule for each op: what it makes of parts, and of terms of sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.mesh import DATA, MODEL
from wholestep.compiler.ir.state_partition import Cut
from wholestep.compiler.ir.type_rules.collectives import CARRIED
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.distribute.tensor_parallel.movement import concat, expand, pad, permute, reshape, slice_
from wholestep.compiler.passes.distribute.tensor_parallel.placements import (
    Kind,
    OnAllRanks,
    PartialTerm,
    Sharded,
    part_of,
)
from wholestep.compiler.passes.distribute.tensor_parallel.propagate import Held, Made, Rule, ShardingPropagation

# -- leaves ------------------------------------------------------------------------------------------------------


def state(s: ShardingPropagation, node: Node) -> Made:
    """A state that is marked is a part of it."""
    a = attrs_of(node, at.StateAttrs)
    if not a.split:
        return None
    cut = Cut.of(a.split)
    split = Sharded(cut.axis, cut.blocks, cut.widths)
    held = replace(a, type=TensorType(part_of(a.type.shape, split, s.ranks), a.type.dtype), whole=a.type.shape)
    return Node(node.op, (), held, node.name, node.line), split


# -- element by element ----------------------------------------------------------------------------------------------


def elementwise(s: ShardingPropagation, node: Node) -> Made:
    """Parts with parts.  What meets a state that is updated is held as that is: so one gradient is put together, and
    not each of the states that follow from it."""
    owned = [s.updated[i] for i in node.inputs if i in s.updated]
    if node.op in LINEAR and all(s.kinds[i] == PartialTerm() for i in node.inputs) and _stays(node):
        return s.local(node, [s.held[i] for i in node.inputs]), PartialTerm()
    splits = s.splits(node.inputs)
    chosen: Kind = OnAllRanks() if OnAllRanks() in owned or not splits else next(iter(owned), splits[0])
    if owned:
        s.updated[node] = chosen
    if not isinstance(chosen, Sharded):
        return s.local(node, [s.whole(i) for i in node.inputs]), OnAllRanks()
    return s.local(node, [s.part(i, chosen) for i in node.inputs]), chosen


LINEAR = frozenset({"add", "sub", "neg", "cast"})


def _stays(node: Node) -> bool:
    """Is a sum of casts the cast of the sum, up to what sums round?"""
    return node.op != "cast" or (node.type.dtype.is_float and node.type.dtype.name in CARRIED)


# -- along axes -----------------------------------------------------------------------------------------------------


def _without(split: Sharded, gone: Sequence[int]) -> Sharded:
    return split.at(split.axis - sum(d < split.axis for d in gone))


def sum_(s: ShardingPropagation, node: Node) -> Made:
    (x,), axes = node.inputs, attrs_of(node, at.SumAttrs).axes
    kind = s.kinds[x]
    if isinstance(kind, OnAllRanks):
        return None
    ends = isinstance(kind, PartialTerm) or kind.axis in axes
    return s.local(node, [s.held[x]]), PartialTerm() if ends else _without(kind, axes)  # type: ignore[arg-type]


def max_(s: ShardingPropagation, node: Node) -> Made:
    """Over a divided axis: the largest of what ranks have found."""
    (x,), axes = node.inputs, attrs_of(node, at.MaxAttrs).axes
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    own = s.local(node, [s.held[x]])
    if kind.axis not in axes:
        return own, _without(kind, axes)
    if own.type.dtype.name not in CARRIED:
        return None
    each = b.make("all_gather", (b.reshape(own, (1, *own.type.shape)),), at.GroupAttrs(s.ranks, MODEL))
    return b.max_axes(each, (0,)), OnAllRanks()


def argmax(s: ShardingPropagation, node: Node) -> Made:
    (x,), axis = node.inputs, attrs_of(node, at.ArgmaxAttrs).axis
    kind = s.kinds[x]
    if not isinstance(kind, Sharded) or kind.axis == axis:
        return None
    return s.local(node, [s.held[x]]), _without(kind, (axis,))


def along(s: ShardingPropagation, node: Node) -> Made:
    """softmax, log_softmax, logsumexp."""
    (x,), axis = node.inputs, attrs_of(node, at.SoftmaxAttrs).axis
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    if kind.axis == axis:
        return s.taken_apart(node)
    return s.local(node, [s.held[x]]), _without(kind, (axis,)) if node.op == "logsumexp" else kind


def cross_entropy(s: ShardingPropagation, node: Node) -> Made:
    x, labels = node.inputs
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    if kind.axis == x.type.rank - 1:
        return s.taken_apart(node)
    return s.local(node, [s.held[x], s.part(labels, kind)]), kind


def norm(s: ShardingPropagation, node: Node) -> Made:
    """Row by row; a row that is divided has sums over ranks."""
    x, *affine = node.inputs
    kind = s.kinds[x]
    if not isinstance(kind, Sharded):
        return None
    if kind.axis == x.type.rank - 1:
        return s.taken_apart(node)
    return s.local(node, [s.held[x], *map(s.whole, affine)]), kind


def norm_grad(s: ShardingPropagation, node: Node) -> Made:
    x, *weight, upstream = node.inputs
    splits = s.splits([x, upstream])
    if not splits:
        return None
    if splits[0].axis == x.type.rank - 1:
        return s.taken_apart(node)
    made = s.local(node, [s.part(x, splits[0]), *map(s.whole, weight), s.part(upstream, splits[0])])
    kinds: list[Kind] = [splits[0], *[PartialTerm()] * (len(node.results) - 1)]
    return items(made, kinds)


def items(made: Node, kinds: Sequence[Kind]) -> tuple[Held, ...]:
    """All results of a node that has several."""
    return tuple((b.make("item", (made,), at.ItemAttrs(i)), kind) for i, kind in enumerate(kinds))


def apart(s: ShardingPropagation, node: Node) -> Made:
    """A composite over parts: its primitives.  A dropout so draws what one process draws, and takes its part."""
    return s.taken_apart(node) if s.splits(node.inputs) else None


# -- attention -----------------------------------------------------------------------------------------------------


def attention(s: ShardingPropagation, node: Node) -> Made:
    """By what stands before queries and keys: heads, as a rule.  Any other part is of no use."""
    q, k = node.inputs[:2]
    found = s.splits(node.inputs[:3])
    if not found or found[0].axis >= q.type.rank - 2:
        return None
    split = found[0]
    shared = q.type.shape[:-2] != k.type.shape[:-2] and split.axis == q.type.rank - 3
    if (shared and split.outer != 1) or not all(s.fits(i, split) for i in node.inputs):
        return None  # a group of heads is with the keys that it shares
    made = s.local(node, [s.part(i, split) for i in node.inputs])
    if isinstance(node.result, TensorType):
        return made, split
    return items(made, [split] * len(node.results))


# -- products ------------------------------------------------------------------------------------------------------


def matmul(s: ShardingPropagation, node: Node) -> Made:
    """Along the axis that is summed a product is a share; along any other it is divided as its operand is.

    Where operands are divided in ways that do not go together, the smaller one is put together.
    """
    by_size = sorted((0, 1), key=lambda i: -elements(node.inputs[i]))
    found = next((i for i in by_size if isinstance(s.kinds[node.inputs[i]], Sharded)), None)
    if found is None:
        return None
    split, rank, other = s.kinds[node.inputs[found]], node.type.rank, 1 - found
    assert isinstance(split, Sharded)
    if split.axis < rank - 2:  # a product for each
        return s.local(node, [s.part(i, split) for i in node.inputs]), split
    given: list[Node] = list(node.inputs)
    given[found] = s.held[node.inputs[found]]
    if split.axis == _contracted_axis(node, found):
        given[other] = s.part(node.inputs[other], split.at(_contracted_axis(node, other)))
        return s.local(node, given), PartialTerm()
    given[other] = s.whole(node.inputs[other])
    return s.local(node, given), split.at(rank - 2 + found)


def _contracted_axis(node: Node, operand: int) -> int:
    """The axis of an operand along which a product is summed."""
    a = attrs_of(node, at.MatmulAttrs)
    last = not a.transpose_a if operand == 0 else a.transpose_b
    return node.type.rank - (1 if last else 2)


def elements(node: Node) -> int:
    """At sizes of 64 where one is not known."""
    count = 1
    for extent in node.type.shape:
        count *= extent if isinstance(extent, int) else 64
    return count


# -- by index ------------------------------------------------------------------------------------------------------


def gather(s: ShardingPropagation, node: Node) -> Made:
    (data, index), axis = node.inputs, attrs_of(node, at.GatherAttrs).axis
    of_data, of_index = s.kinds[data], s.kinds[index]
    if isinstance(of_data, Sharded) and of_data.axis != axis:
        moved = of_data.at(of_data.axis + (0 if of_data.axis < axis else index.type.rank - 1))
        return s.local(node, [s.held[data], s.whole(index)]), moved
    if isinstance(of_index, Sharded):
        return s.local(node, [s.whole(data), s.held[index]]), of_index.at(of_index.axis + axis)
    return None


def scatter_add(s: ShardingPropagation, node: Node) -> Made:
    (updates, index), axis = node.inputs, attrs_of(node, at.ScatterAddAttrs).axis
    kind, last = s.kinds[updates], axis + index.type.rank
    if not isinstance(kind, Sharded):
        return None
    if axis <= kind.axis < last:
        return s.local(node, [s.held[updates], s.part(index, kind.at(kind.axis - axis))]), PartialTerm()
    moved = kind.at(kind.axis if kind.axis < axis else kind.axis - index.type.rank + 1)
    return s.local(node, [s.held[updates], s.whole(index)]), moved


# -- what ranks of the data axis tell each other ----------------------------------------------------------------------


def collective_rule(s: ShardingPropagation, node: Node) -> Made:
    """Ranks with the same part of layers add up their parts."""
    (x,) = node.inputs
    kind = s.kinds[x]
    if not isinstance(kind, Sharded) or attrs_of(node, at.GroupAttrs).axis != DATA:
        return None
    return s.local(node, [s.held[x]]), kind


RULES: dict[str, Rule] = {
    "parameter": state,
    "state": state,
    "ratio": elementwise,
    "sum": sum_,
    "max": max_,
    "argmax": argmax,
    "softmax": along,
    "log_softmax": along,
    "logsumexp": along,
    "cross_entropy": cross_entropy,
    "layer_norm": norm,
    "rms_norm": norm,
    "layer_norm_grad": norm_grad,
    "rms_norm_grad": norm_grad,
    **dict.fromkeys(("batch_norm", "batch_norm_grad", "group_norm", "group_norm_grad", "dropout"), apart),
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
    """The rule of a node; None: it is computed of whole values."""
    return RULES.get(node.op) or (elementwise if node.is_elementwise else None)
