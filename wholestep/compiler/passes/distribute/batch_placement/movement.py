"""Placement rules of views, of gather and scatter, and of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import divide, product
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchPlacement,
    BatchSharded,
    Mixed,
    Partial,
    Replicated,
    common_sharding,
    is_multiple,
    mentions,
    placement_of_shape,
)
from wholestep.compiler.passes.distribute.batch_placement.pointwise import linear_rule, mul_rule

# -- movement ----------------------------------------------------------------------------------------------------


def reshape_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,), old, new = inputs, node.inputs[0].type.shape, node.type.shape
    if not isinstance(placement, BatchSharded):
        return placement
    outside = product(old[: placement.axis])
    before = outside * (1 if placement.before is None else placement.before)
    for axis, extent in enumerate(new):
        inside = divide(before, product(new[:axis]))  # the part of the axes outside of the batch that is in this axis
        if inside is not None and is_multiple(divide(extent, inside) or 1, batch):
            unchanged = placement.before is None and extent == old[placement.axis] and inside == 1
            return BatchSharded(axis, None if unchanged else inside)
    return Mixed(node, "tears the rows of the batch apart")


def permute_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,) = inputs
    return (
        placement.at(attrs_of(node, at.PermuteAttrs).order.index(placement.axis))
        if isinstance(placement, BatchSharded)
        else placement
    )


def expand_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,), a = inputs, attrs_of(node, at.ExpandAttrs)
    new = any(mentions(e, batch) for d, e in enumerate(a.shape) if d not in a.axes)
    if isinstance(placement, Replicated):
        fresh = placement_of_shape(node, a.shape, batch)
        return BatchSharded(fresh.axis, None) if isinstance(fresh, BatchSharded) else fresh
    if new and isinstance(placement, BatchSharded):
        return Mixed(node, "pairs the rows of the batch with each other")
    if new:
        return Mixed(node, "broadcasts a value of the whole batch to each row")
    return placement.at(a.axes[placement.axis]) if isinstance(placement, BatchSharded) else placement


def slice_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,), a, shape = inputs, attrs_of(node, at.SliceAttrs), node.inputs[0].type.shape
    if isinstance(placement, BatchSharded):
        d = placement.axis
        if (a.starts[d], a.stops[d], a.steps[d]) != (0, shape[d], 1):
            return Mixed(node, "picks rows by their position in the batch")
    return placement


def pad_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (placement,), a = inputs, attrs_of(node, at.PadAttrs)
    if isinstance(placement, BatchSharded) and (a.low[placement.axis] or a.high[placement.axis]):
        return Mixed(node, "adds rows to the batch")
    if placement == Partial() and a.value != 0:
        return Mixed(node, "adds a constant to a sum over the batch")
    return placement


def concat_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if any(isinstance(k, BatchSharded) and k.axis == attrs_of(node, at.ConcatAttrs).axis for k in inputs):
        return Mixed(node, "concatenates batches")
    return linear_rule(node, inputs, batch)


# -- indexing and contraction ------------------------------------------------------------------------------------


def gather_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (data, index), axis, rank = inputs, attrs_of(node, at.GatherAttrs).axis, node.inputs[1].type.rank
    if isinstance(index, BatchSharded) and isinstance(data, Replicated):
        return index.at(axis + index.axis)
    if isinstance(index, Replicated) and isinstance(data, BatchSharded) and data.axis != axis:
        return data.at(data.axis if data.axis < axis else data.axis + rank - 1)
    if isinstance(index, Replicated) and not isinstance(data, BatchSharded):
        return data
    return Mixed(node, "picks rows of the batch by index")


def scatter_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (updates, index), axis, rank = inputs, attrs_of(node, at.ScatterAddAttrs).axis, node.inputs[1].type.rank
    inside = isinstance(updates, BatchSharded) and axis <= updates.axis < axis + rank
    if mentions(attrs_of(node, at.ScatterAddAttrs).size, batch):
        return Mixed(node, "writes rows of the batch by index")
    if isinstance(updates, BatchSharded) and inside:
        if index == Replicated() or common_sharding([index, updates.at(updates.axis - axis)]) is not None:
            return Partial()
    elif isinstance(updates, BatchSharded) and isinstance(index, Replicated):
        return updates.at(updates.axis if updates.axis < axis else updates.axis - rank + 1)
    if isinstance(index, Replicated) and not isinstance(updates, BatchSharded):
        return updates
    return Mixed(node, "sums rows of the batch by index")


def update_slice_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    if all(isinstance(k, Replicated) for k in inputs):
        return Replicated()
    return Mixed(node, "appends rows of the batch to a buffer")


def matmul_rule(node: Node, inputs: Sequence[BatchPlacement], batch: str) -> BatchPlacement:
    (a, c), flags, rank = inputs, attrs_of(node, at.MatmulAttrs), node.type.rank
    # The GEMM dimension that the batch axis is in each operand: "m", "n" or "k", or the number of a leading axis.
    role_a = _role(a, rank, flags.transpose_a, ("m", "k"))
    role_c = _role(c, rank, flags.transpose_b, ("k", "n"))
    if isinstance(a, BatchSharded) and isinstance(c, BatchSharded) and role_a == role_c:
        same = common_sharding([a.at(0), c.at(0)])
        if same is not None:
            return Partial() if role_a == "k" else same.at(a.axis)
    if isinstance(c, Replicated) and isinstance(a, BatchSharded) and role_a == "m":
        return a.at(rank - 2)
    if isinstance(a, Replicated) and isinstance(c, BatchSharded) and role_c == "n":
        return c.at(rank - 1)
    if isinstance(a, BatchSharded) and isinstance(c, BatchSharded):
        return Mixed(node, "multiplies rows of the batch with other rows")
    return mul_rule(node, inputs, batch)


def _role(placement: BatchPlacement, rank: int, transposed: bool, names: tuple[str, str]) -> str | int | None:
    if not isinstance(placement, BatchSharded):
        return None
    if placement.axis < rank - 2:
        return placement.axis
    return (names[::-1] if transposed else names)[placement.axis - (rank - 2)]
