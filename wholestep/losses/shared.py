"""Helpers of all losses: targets, row weights, reductions, and options that are runtime scalars."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast

from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, ratio
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.type_promotion import Literal
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

Target: TypeAlias = Tensor | Literal
Number: TypeAlias = float | Tensor | Switchable
REDUCTIONS = ("mean", "sum", "none")
LossOf = TypeVar("LossOf", bound=Callable[..., Any])


def on_arrays(loss: LossOf) -> LossOf:
    """Decorator: called on arrays, the loss returns a float that `ws.compute_gradients` can differentiate."""

    @wraps(loss)
    def either(*args: Any, **named: Any) -> Any:
        if any(isinstance(a, Tensor) for a in (*args, *named.values())):
            return loss(*args, **named)
        from wholestep.losses.arrays import loss_of_arrays

        return loss_of_arrays(either, args, named)

    return cast("LossOf", either)


def match_target(loss: str, prediction: Tensor, target: Target) -> Tensor:
    """The target as a tensor of the prediction's shape; a scalar is broadcast."""
    if isinstance(target, int | float):
        return as_tensor(target)
    t = as_tensor(target)
    if t.shape != prediction.shape:
        fail(
            ShapeError,
            f"{loss}: prediction and target must have one shape; received {shape_text(prediction.shape)} and "
            f"{shape_text(t.shape)}. Broadcasting here would average over pairs; reshape one: y.reshape(-1, 1).",
        )
    if not t.dtype.is_float and t.dtype != prediction.dtype:
        fail(
            DTypeError,
            f"{loss}: the target has numbers of the prediction's dtype, {prediction.dtype}; received {t.dtype}. Cast "
            f"it: target.astype('{prediction.dtype}').",
        )
    return t


def reduce(loss: str, values: Tensor, reduction: str, sample_weight: Tensor | None = None) -> Tensor:
    """Reduce the values by `reduction`: unchanged, their sum or their mean, with a weight for each row (leading axes).

    The weighted mean is Σ w·v / Σ w over elements: a weight of 2 has the effect of the same row twice.
    """
    if reduction not in REDUCTIONS:
        fail(OptionError, f"reduction is 'mean', 'sum' or 'none'; received {reduction!r}.")
    if sample_weight is None:
        return values if reduction == "none" else values.mean() if reduction == "mean" else values.sum()
    weight = spread_weight(loss, values, sample_weight)
    weighted = values * weight
    if reduction == "none":
        return weighted
    if reduction == "sum":
        return weighted.sum()
    each: Extent = product(values.shape[sample_weight.ndim :])  # elements per row
    count = sample_weight.sum() if each == 1 else sample_weight.sum() * each
    return ratio(weighted.sum(), count)


def spread_weight(loss: str, values: Tensor, sample_weight: Tensor) -> Tensor:
    """The row weights with an axis of size 1 for each axis inside a row."""
    rows = values.shape[: sample_weight.ndim]
    if sample_weight.shape != rows or not sample_weight.ndim:
        expected = shape_text(values.shape[:1])
        fail(
            ShapeError,
            f"{loss}: sample_weight has one number for each row, shape {expected}; received "
            f"{shape_text(sample_weight.shape)}. Drop or reshape its axes: w.reshape(-1).",
        )
    if sample_weight.dtype != values.dtype:
        fail(
            DTypeError,
            f"{loss}: sample_weight needs the dtype of the loss, {values.dtype}; received {sample_weight.dtype}. Cast "
            f"it: w.astype('{values.dtype}').",
        )
    return sample_weight.reshape((*rows, *(1 for _ in values.shape[sample_weight.ndim :])))


def option(
    prediction: Tensor, loss: str, name: str, value: Number, low: float = 0.0, high: float = math.inf, text: str = ""
) -> Tensor:
    """An option strictly between two bounds as a runtime scalar `<loss>.<name>`; a tensor is returned unchanged.

    A second loss of the same kind in a graph has `<loss>2.<name>`.
    """
    if isinstance(value, Tensor):
        return value
    number = plain(value)
    if not isinstance(number, int | float) or isinstance(number, bool) or not low < number < high:
        expected = text or (f"above {low:g}" if high == math.inf else f"between {low:g} and {high:g}")
        fail(OptionError, f"{loss}: {name} must be {expected}; received {number!r}.")
    if prediction.graph is None:
        return as_tensor(float(number))
    taken, ordinal = prediction.graph.scalars, 1
    while (full := f"{loss}{ordinal if ordinal > 1 else ''}.{name}") in taken:
        ordinal += 1
    return prediction.graph.scalar(full, float(number))


def plain(value: Number) -> object:
    """The number wrapped by `ws.runtime(number)`."""
    return value.value if isinstance(value, Switchable) else value


def is_off(value: Number | None) -> bool:
    """Is the value a plain 0 or None, which the program omits?  `ws.runtime(0.0)` and tensors are part of it."""
    return value is None or (isinstance(value, int | float) and value == 0)
