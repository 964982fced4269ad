"""Metrics that are a weighted mean: the loss, log loss, perplexity, squared and absolute errors."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product, shape_text
from wholestep.errors import InputError, ShapeError
from wholestep.metrics.array_functions import X, count, maximum, row_count
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.reading import ArrayKind, check_weight, merge_weighted_axes

_EPS = float(np.finfo(np.float64).eps)


@dataclass(eq=False)
class Mean(Metric):
    """The base class of weighted means: Σ weight·value / Σ weight, both sums in float64."""

    def result(self, states: States) -> float:
        weight = float(states["weight"])
        return float(states["sum"]) / weight if weight > 0 else float("nan")


def weighted_rows(metric: str, values: X, weight: X | None) -> dict[str, X]:
    """The parts of a weighted mean of one value per row, (N,)."""
    if weight is None:
        return {"sum": values.sum(), "weight": count(values, values.shape, "float64")}
    check_weight(metric, ArrayKind.of(weight), values.shape)
    w: Any = weight.astype("float64")
    return {"sum": (w * values).sum(), "weight": w.sum()}


@dataclass(eq=False)
class LossTracker(Mean):
    """The mean of the loss over all rows, not over batches.

    Inside a step it adds up the loss's own numerators and denominators; the value of any other loss is weighted by the
    number of rows.  On arrays: `tracker.update(loss, rows)`, with the number of rows or anything that has that length.

    Example: `ws.metrics.LossTracker()`.
    """

    kind: ClassVar[str] = "loss"
    higher_is_better: ClassVar[bool | None] = False
    takes_loss: ClassVar[bool] = True

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        if prediction.shape != ():
            fail(ShapeError, f"the loss tracker takes the loss, one number; received {prediction!r}. Take its mean.")
        if prediction.node.op == "ratio":
            above, below = (Tensor(n, prediction.graph) for n in prediction.node.inputs)
            return {"sum": above.astype("float64"), "weight": below.astype("float64")}
        rows = row_count(target.shape[:1], "float64")
        return {"sum": prediction.astype("float64") * rows, "weight": rows}

    def update(self, prediction: object, target: object = 1, weight: object = None) -> None:
        """Count a batch: its mean loss, and the number of its rows or an object of that length."""
        super().update(float(prediction), target, weight)  # type: ignore[arg-type]

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        rows = float(target) if target.ndim == 0 else float(len(target)) if weight is None else float(weight.sum())
        if rows < 0:
            fail(InputError, f"the loss tracker takes the number of rows of a batch, at least 0; received {rows:g}.")
        return {"sum": np.asarray(prediction * rows), "weight": np.asarray(rows)}


# -- numbers -----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class OfErrors(Mean):
    """The base class of means of a function of prediction - target over elements, with row weights."""

    @abstractmethod
    def size(self, error: X, target: X) -> X:
        """The magnitude of an error, in float64."""

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        weight, prediction, target = merge_weighted_axes(weight, prediction, target)
        # Arrays are subtracted in float64; a step subtracts in its own dtype, as the loss does.
        wide: Any = prediction if isinstance(prediction, Tensor) else prediction.astype("float64")
        error = wide - target.astype(wide.dtype)
        sizes: Any = self.size(error.astype("float64"), target.astype("float64"))
        if weight is None:
            return {"sum": sizes.sum(), "weight": count(prediction, prediction.shape, "float64")}
        check_weight(self.kind, ArrayKind.of(weight), prediction.shape[:1])
        w: Any = weight.astype("float64")
        rows = sizes.sum(tuple(range(1, sizes.ndim))) if sizes.ndim > 1 else sizes
        return {"sum": (w * rows).sum(), "weight": w.sum() * product(prediction.shape[1:])}


@dataclass(eq=False)
class MSE(OfErrors):
    """The mean squared error over elements.

    Example: `ws.metrics.MSE()`.
    """

    kind: ClassVar[str] = "mse"
    higher_is_better: ClassVar[bool | None] = False

    def size(self, error: X, target: X) -> X:
        square: X = error * error
        return square


@dataclass(eq=False)
class RMSE(MSE):
    """The root of the mean squared error over elements.

    Example: `ws.metrics.RMSE()`.
    """

    kind: ClassVar[str] = "rmse"
    higher_is_better: ClassVar[bool | None] = False

    def result(self, states: States) -> float:
        return float(np.sqrt(super().result(states)))


@dataclass(eq=False)
class MAE(OfErrors):
    """The mean absolute error over elements.

    Example: `ws.metrics.MAE()`.
    """

    kind: ClassVar[str] = "mae"
    higher_is_better: ClassVar[bool | None] = False

    def size(self, error: X, target: X) -> X:
        return abs(error)


@dataclass(eq=False)
class MAPE(OfErrors):
    """The mean absolute error relative to the target, |p - t| / |t|, over elements: 0.1 is ten per cent.

    As in scikit-learn, a target of 0 counts as 2.2e-16, which makes the result huge.

    Example: `ws.metrics.MAPE()`.
    """

    kind: ClassVar[str] = "mape"
    higher_is_better: ClassVar[bool | None] = False

    def size(self, error: X, target: X) -> X:
        share: X = abs(error) / maximum(abs(target), _EPS)
        return share


def check_numbers(metric: str, prediction: ArrayKind, target: ArrayKind) -> None:
    """Check that predictions and targets are numbers of the same shape."""
    if prediction.shape != target.shape or not prediction.shape:
        fail(
            ShapeError,
            f"{metric}: prediction and target must have one shape, with a row for each example; received "
            f"{shape_text(prediction.shape)} and {shape_text(target.shape)}. Reshape one: y.reshape(-1, 1).",
        )
