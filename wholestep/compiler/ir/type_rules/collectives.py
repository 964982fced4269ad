"""Collective communication between the ranks of a distributed step: type rules and reference values.

Every rank runs the same graph over its own rows (SPMD), so all ranks reach the same collectives in the same order.
A collective involves the ranks along one axis of the mesh; "all ranks" below means these.
Sums are reproducible because the order of additions is fixed: a binary tree in which the sum over ranks lo .. hi-1 is
the sum of the first half (the larger half, if their number is odd) plus the sum of the second half.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.require import need
from wholestep.compiler.ir.types import DType, TensorType, TupleType, Type, divide
from wholestep.errors import DTypeError, GraphError

Array = np.ndarray[Any, Any]
# Symbols of a data-parallel step: the number of rows before this rank's rows, and the number of rows of all ranks.
OWN, ROWS = "rank.first", "micro_batch.rows"
# With micro-batches, ROWS counts the rows of the entire step.  FIRST and BATCH describe one micro-batch, over all
# ranks: the rows before it, and its own rows.
FIRST, BATCH = "micro_batch.first", "micro_batch.batch"
SHARES = "accumulate/share/"  # name prefix of states that hold one rank's partial sum
RANK = "rank.number"  # symbol: the coordinate of this rank along the data axis, from 0
MODEL_RANK = "rank.model"  # symbol: the coordinate of this rank along the model axis
CARRIED = ("float32", "float64", "int32", "int64")  # the dtypes that process groups transfer and add


def all_reduce(a: at.GroupAttrs, x: TensorType) -> Type:
    """The sum over all ranks, on every rank."""
    _need_group("all_reduce", a, x.dtype)
    return x


def broadcast(a: at.GroupAttrs, x: TensorType) -> Type:
    """The value of the first rank, on every rank."""
    _need_group("broadcast", a, x.dtype)
    return x


def reduce_scatter(a: at.GroupAttrs, x: TensorType) -> Type:
    """The sum over all ranks, of which each rank gets one slice along the first axis."""
    _need_group("reduce_scatter", a, x.dtype)
    part = divide(x.shape[0], a.ranks) if x.rank and a.ranks else None
    need(part is not None, f"reduce_scatter: {x} needs a first axis that is divisible by the {a.ranks} ranks.")
    assert part is not None
    return TensorType((part, *x.shape[1:]), x.dtype)


def all_gather(a: at.GroupAttrs, x: TensorType) -> Type:
    """The values of all ranks, concatenated along the first axis."""
    _need_group("all_gather", a, x.dtype)
    need(
        x.rank > 0 and a.ranks > 0,
        f"all_gather: {x} needs a first axis, and at least one rank; received {a.ranks} ranks.",
    )
    return TensorType((x.shape[0] * a.ranks, *x.shape[1:]), x.dtype)


def exchange(a: at.ExchangeAttrs, *xs: TensorType) -> Type:
    """Several collectives of one kind and dtype, merged into one bucket: the form that kernels execute."""
    need(a.kind in RULES, f"exchange: {a.kind!r} is not a collective; use one of {', '.join(RULES)}.", GraphError)
    need(len({x.dtype for x in xs}) == 1, "exchange: all tensors of one bucket must have the same dtype.", DTypeError)
    results = tuple(RULES[a.kind](at.GroupAttrs(a.ranks, a.axis), x) for x in xs)
    return TupleType(tuple(t for t in results if isinstance(t, TensorType)))


def _need_group(op: str, a: at.GroupAttrs, dtype: DType) -> None:
    need(a.axis in at.AXES, f"{op}: the axes of the mesh are {' and '.join(at.AXES)}; received {a.axis!r}.", GraphError)
    names = ", ".join(CARRIED)
    need(dtype.name in CARRIED, f"{op}: collectives support {names}; received {dtype}. Cast it first.", DTypeError)


RULES: Mapping[str, Callable[..., Type]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
}


# -- values ------------------------------------------------------------------------------------------------------


def tree_sum(parts: Sequence[Array]) -> Array:
    """The sum over ranks by the binary tree that every backend uses."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return np.asarray(tree_sum(parts[:half]) + tree_sum(parts[half:]))


def collective_result(coordinate: int, kind: str, parts: Sequence[Array]) -> Array:
    """The result of a collective on the rank at this coordinate; `parts` are the operands in order of the ranks."""
    if kind == "broadcast":
        return parts[0]
    if kind == "all_gather":
        return np.concatenate(parts)
    total = tree_sum(parts)
    return total if kind == "all_reduce" else np.split(total, len(parts))[coordinate]
