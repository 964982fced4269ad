"""Leaves, functions of elements, and sums and maxima along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of, constant_value
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchSharded,
    Flow,
    Kind,
    Mixed,
    Partial,
    Replicated,
    SumOfRatios,
    by_shape,
    is_multiple,
    mentions,
    same_rows,
)

# -- leaves ------------------------------------------------------------------------------------------------------


def rows_of_shape(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    return by_shape(node, node.type.shape, batch)


def free(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    return Replicated()


def iota_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if mentions(node.type.shape[attrs_of(node, at.IotaAttrs).axis], batch):
        return Mixed(node, "numbers the rows of the batch, and a part of a batch has other numbers")
    return rows_of_shape(node, inputs, batch)


def size_of(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    extent = attrs_of(node, at.SizeAttrs).extent
    if not mentions(extent, batch):
        return Replicated()
    if is_multiple(extent, batch):
        return Partial()
    return Mixed(node, f"is the size {extent}, which is not a multiple of {batch!r}")


# -- pointwise ---------------------------------------------------------------------------------------------------


def pointwise(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    distinct = set(inputs)
    if distinct <= {Replicated()}:
        return Replicated()
    if (rows := same_rows(inputs)) is not None:
        return rows
    if SumOfRatios() in distinct:
        return Mixed(node, "is not linear in a mean over the batch")
    if Partial() in distinct:
        return Mixed(node, "is not linear in a sum over the batch")
    return Mixed(node, "combines rows of the batch with other rows")


def linear(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """add, sub, neg, stop_gradient: sums of additive things are additive."""
    distinct = set(inputs)
    if distinct == {Partial()}:
        return Partial()
    if distinct & {Partial(), SumOfRatios()} and distinct <= {Replicated(), Partial(), SumOfRatios()}:
        return SumOfRatios()
    return pointwise(node, inputs, batch)


def mul_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """mul: by something free it is linear."""
    kind, other = inputs if inputs[1] == Replicated() else inputs[::-1]
    return kind if other == Replicated() and kind in (Partial(), SumOfRatios()) else pointwise(node, inputs, batch)


def div_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if list(inputs) == [Partial(), Partial()]:
        return SumOfRatios()
    return mul_rule(node, inputs, batch) if inputs[1] == Replicated() else pointwise(node, inputs, batch)


def where_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    """A choice that does not depend on the batch, between sums over it and zeros."""
    zero = [
        kind == Replicated() and constant_value(x) == 0 for kind, x in zip(inputs[1:], node.inputs[1:], strict=True)
    ]
    sums = {kind for kind, is_zero in zip(inputs[1:], zero, strict=True) if not is_zero}
    return Partial() if inputs[0] == Replicated() and sums == {Partial()} else pointwise(node, inputs, batch)


def cast_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    exact = node.type.dtype.is_float or not node.inputs[0].type.dtype.is_float
    return inputs[0] if exact else pointwise(node, inputs, batch)


# -- reduce and softmax ------------------------------------------------------------------------------------------


def _without(axis: int, gone: Sequence[int]) -> int:
    return axis - sum(d < axis for d in gone)


def sum_rule(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    (kind,), axes = inputs, attrs_of(node, at.SumAttrs).axes
    if not isinstance(kind, BatchSharded):
        return kind
    return Partial() if kind.axis in axes else kind.at(_without(kind.axis, axes))


def over(axes_of: Callable[[Node], Sequence[int]], keeps_shape: bool) -> Flow:
    """A function along some axes that is not linear: max, argmax, softmax."""

    def flow(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
        kind, axes = inputs[0], axes_of(node)
        if not isinstance(kind, BatchSharded):
            return pointwise(node, inputs[:1], batch)
        if kind.axis in axes:
            return Mixed(node, "runs along the batch")
        return kind if keeps_shape else kind.at(_without(kind.axis, axes))

    return flow


def over_classes(node: Node, inputs: Sequence[Kind], batch: str) -> Kind:
    if isinstance(inputs[0], BatchSharded) and inputs[0].axis == node.inputs[0].type.rank - 1:
        return Mixed(node, "has its classes along the batch")
    return pointwise(node, inputs, batch)
