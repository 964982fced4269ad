"""What moves elements, picks them by index, or multiplies matrices of them."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import divide, product
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchSharded,
    Kind,
    Mixed,
    Partial,
    Replicated,
    by_shape,
    is_multiple,
    mentions,
    same_rows,
)
from wholestep.compiler.passes.distribute.batch_placement.pointwise import linear, mul_rule

# -- movement ----------------------------------------------------------------------------------------------------


def reshape_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), old, new = inputs, node.inputs[0].type.shape, node.type.shape
    if not isinstance(kind, BatchSharded):
        return kind
    outside = product(old[: kind.axis])
    before = outside * (1 if kind.before is None else kind.before)
    for axis, extent in enumerate(new):
        inside = divide(before, product(new[:axis]))  # of all that is before the batch, what this axis holds
        if inside is not None and is_multiple(divide(extent, inside) or 1, batch):
            whole = kind.before is None and extent == old[kind.axis] and inside == 1
            return BatchSharded(axis, None if whole else inside)
    return Mixed(node, "tears the rows of the batch apart")


def permute_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,) = inputs
    return kind.at(attrs_of(node, at.PermuteAttrs).order.index(kind.axis)) if isinstance(kind, BatchSharded) else kind


def expand_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a = inputs, attrs_of(node, at.ExpandAttrs)
    new = any(mentions(e, batch) for d, e in enumerate(a.shape) if d not in a.axes)
    if isinstance(kind, Replicated):
        fresh = by_shape(node, a.shape, batch)
        return BatchSharded(fresh.axis, None) if isinstance(fresh, BatchSharded) else fresh
    if new and isinstance(kind, BatchSharded):
        return Mixed(node, "pairs the rows of the batch with each other")
    if new:
        return Mixed(node, "gives each row a value of the whole batch")
    return kind.at(a.axes[kind.axis]) if isinstance(kind, BatchSharded) else kind


def slice_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a, shape = inputs, attrs_of(node, at.SliceAttrs), node.inputs[0].type.shape
    if isinstance(kind, BatchSharded):
        d = kind.axis
        if (a.starts[d], a.stops[d], a.steps[d]) != (0, shape[d], 1):
            return Mixed(node, "picks rows by their place in the batch")
    return kind


def pad_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), a = inputs, attrs_of(node, at.PadAttrs)
    if isinstance(kind, BatchSharded) and (a.low[kind.axis] or a.high[kind.axis]):
        return Mixed(node, "adds rows to the batch")
    if kind == Partial() and a.value != 0:
        return Mixed(node, "adds a constant to a sum over the batch")
    return kind


def concat_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if any(isinstance(k, BatchSharded) and k.axis == attrs_of(node, at.ConcatAttrs).axis for k in inputs):
        return Mixed(node, "joins batches")
    return linear(node, inputs, batch)


# -- indexing and contraction ------------------------------------------------------------------------------------


def gather_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (data, index), axis, rank = inputs, attrs_of(node, at.GatherAttrs).axis, node.inputs[1].type.rank
    if isinstance(index, BatchSharded) and isinstance(data, Replicated):
        return index.at(axis + index.axis)
    if isinstance(index, Replicated) and isinstance(data, BatchSharded) and data.axis != axis:
        return data.at(data.axis if data.axis < axis else data.axis + rank - 1)
    if isinstance(index, Replicated) and not isinstance(data, BatchSharded):
        return data
    return Mixed(node, "picks rows of the batch by index")


def scatter_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (updates, index), axis, rank = inputs, attrs_of(node, at.ScatterAddAttrs).axis, node.inputs[1].type.rank
    inside = isinstance(updates, BatchSharded) and axis <= updates.axis < axis + rank
    if mentions(attrs_of(node, at.ScatterAddAttrs).size, batch):
        return Mixed(node, "writes rows of the batch by index")
    if isinstance(updates, BatchSharded) and inside:
        if index == Replicated() or same_rows([index, updates.at(updates.axis - axis)]) is not None:
            return Partial()
    elif isinstance(updates, BatchSharded) and isinstance(index, Replicated):
        return updates.at(updates.axis if updates.axis < axis else updates.axis - rank + 1)
    if isinstance(index, Replicated) and not isinstance(updates, BatchSharded):
        return updates
    return Mixed(node, "adds up rows of the batch by index")


def update_slice_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    return Mixed(node, "writes rows of the batch one behind the other")


def matmul_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (a, c), flags, rank = inputs, attrs_of(node, at.MatmulAttrs), node.type.rank
    # The role of the batch axis in each operand: "m" or "n", "k", or a leading axis by its number.
    role_a = _role(a, rank, flags.transpose_a, ("m", "k"))
    role_c = _role(c, rank, flags.transpose_b, ("k", "n"))
    if isinstance(a, BatchSharded) and isinstance(c, BatchSharded) and role_a == role_c:
        same = same_rows([a.at(0), c.at(0)])
        if same is not None:
            return Partial() if role_a == "k" else same.at(a.axis)
    if isinstance(c, Replicated) and isinstance(a, BatchSharded) and role_a == "m":
        return a.at(rank - 2)
    if isinstance(a, Replicated) and isinstance(c, BatchSharded) and role_c == "n":
        return c.at(rank - 1)
    if isinstance(a, BatchSharded) and isinstance(c, BatchSharded):
        return Mixed(node, "multiplies rows of the batch with other rows")
    return mul_rule(node, inputs, batch)


def _role(kind: Kind, rank: int, transposed: bool, names: tuple[str, str]) -> str | int | None:
    if not isinstance(kind, BatchSharded):
        return None
    if kind.axis < rank - 2:
        return kind.axis
    return (names[::-1] if transposed else names)[kind.axis - (rank - 2)]
