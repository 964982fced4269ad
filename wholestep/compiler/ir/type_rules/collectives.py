"""Collectives: what ranks that make one step together tell each other.  Their type rules, and their values.

Every rank runs the same graph over rows of its own, so all of them come to the same collectives in the same order.
Each is among the ranks of one axis of the grid in which they stand; "all ranks" below are those.
A sum is added in one order: over ranks lo .. hi-1 that of the first half, the larger one, plus that of the rest.
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
# The symbols of a step that ranks divide: the rows of a batch before a rank's own, and those of all ranks together.
OWN, ROWS = "rank.first", "micro_batch.rows"
# With micro-batches the latter are those of the whole step.  Of one: the rows before it, and its own, of all ranks.
FIRST, BATCH = "micro_batch.first", "micro_batch.batch"
SHARES = "accumulate/share/"  # of states that hold a rank's own share of a sum
RANK = "rank.number"  # and where this rank stands along the data axis, from 0
MODEL_RANK = "rank.model"  # and along the model axis
CARRIED = ("float32", "float64", "int32", "int64")  # the elements that groups add and carry


def all_reduce(a: at.GroupAttrs, x: TensorType) -> Type:
    """The sum over all ranks, on every rank."""
    _need_group("all_reduce", a, x.dtype)
    return x


def broadcast(a: at.GroupAttrs, x: TensorType) -> Type:
    """What the first rank has, on every rank."""
    _need_group("broadcast", a, x.dtype)
    return x


def reduce_scatter(a: at.GroupAttrs, x: TensorType) -> Type:
    """Of the sum over all ranks, each rank's part along the first axis."""
    _need_group("reduce_scatter", a, x.dtype)
    part = divide(x.shape[0], a.ranks) if x.rank and a.ranks else None
    need(part is not None, f"reduce_scatter: {x} has no first axis that divides into {a.ranks} parts.")
    assert part is not None
    return TensorType((part, *x.shape[1:]), x.dtype)


def all_gather(a: at.GroupAttrs, x: TensorType) -> Type:
    """What all ranks have, one behind the other along the first axis."""
    _need_group("all_gather", a, x.dtype)
    need(x.rank > 0 and a.ranks > 0, f"all_gather: {x} needs a first axis, and a number of ranks; received {a.ranks}.")
    return TensorType((x.shape[0] * a.ranks, *x.shape[1:]), x.dtype)


def exchange(a: at.ExchangeAttrs, *xs: TensorType) -> Type:
    """Several collectives of one kind and dtype as one; what kernels run."""
    need(a.kind in RULES, f"exchange: {a.kind!r} is no collective; there are {', '.join(RULES)}.", GraphError)
    need(len({x.dtype for x in xs}) == 1, "exchange: tensors that are exchanged together have one dtype.", DTypeError)
    made = tuple(RULES[a.kind](at.GroupAttrs(a.ranks, a.axis), x) for x in xs)
    return TupleType(tuple(t for t in made if isinstance(t, TensorType)))


def _need_group(op: str, a: at.GroupAttrs, dtype: DType) -> None:
    need(a.axis in at.AXES, f"{op}: ranks stand along {' and '.join(at.AXES)}; received {a.axis!r}.", GraphError)
    names = ", ".join(CARRIED)
    need(dtype.name in CARRIED, f"{op}: ranks exchange {names}; received {dtype}. Cast it before.", DTypeError)


RULES: Mapping[str, Callable[..., Type]] = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "broadcast": broadcast,
}


# -- values ------------------------------------------------------------------------------------------------------


def tree_sum(parts: Sequence[Array]) -> Array:
    """The sum over ranks in the order of every engine."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return np.asarray(tree_sum(parts[:half]) + tree_sum(parts[half:]))


def value_on(place: int, kind: str, parts: Sequence[Array]) -> Array:
    """What the rank at a place along an axis has after a collective over what each there gave."""
    if kind == "broadcast":
        return parts[0]
    if kind == "all_gather":
        return np.concatenate(parts)
    total = tree_sum(parts)
    return total if kind == "all_reduce" else np.split(total, len(parts))[place]
