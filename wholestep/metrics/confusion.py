"""The confusion matrix, and what is counted class by class: precision, recall, F1."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.metrics.base import Array, Metric, Result, States
from wholestep.metrics.reading import ClassArrays, ClassTensors, Reading

AVERAGES = ("macro", "micro", "weighted", "binary", None)


@dataclass(eq=False)
class OfClasses(Metric):
    """What reads a class for each row.

    Predictions are scores `(..., C)`, classes `(...)`, or one score per row with a `threshold` above which the class is
    1.  `classes` says how many classes there are where predictions are classes; on arrays it may be left open.
    """

    classes: int | None = field(default=None, kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)
    ignore_index: int | None = field(default=None, kw_only=True)

    def _tensors(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> tuple[ClassTensors, int]:
        rows = self._reading().tensors(prediction, target, weight)
        if rows.classes is None:
            fail(
                OptionError, f"{self.kind}: say how many classes there are, classes=10: predicted classes do not tell."
            )
        return rows, rows.classes

    def _reading(self) -> Reading:
        return Reading(self.kind, self.threshold, self.ignore_index, self.classes)


@dataclass(eq=False)
class ConfusionMatrix(OfClasses):
    """How many rows of each true class (down) were given each class (across).

    Example: `ws.metrics.ConfusionMatrix(classes=3)`.
    """

    kind: ClassVar[str] = "confusion_matrix"
    classes: int | None = None

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        rows, classes = self._tensors(prediction, target, weight)
        amounts = rows.amounts().reshape((-1, 1))
        # By rows of the matrix and not by cells, so that the labels themselves are the index and are checked as such.
        across = fn.one_hot(rows.predicted, classes, amounts.dtype) * amounts  # (N, C)
        return {"matrix": fn.scatter_add(across, rows.actual, classes)}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        rows = self._reading().arrays(prediction, target, weight)
        cells = _counts(rows.actual * rows.classes + rows.predicted, rows, rows.classes**2)
        return {"matrix": cells.reshape(rows.classes, rows.classes)}

    def result(self, states: States) -> Result:
        matrix = states["matrix"]
        return matrix if matrix.any() else float("nan")


@dataclass(eq=False)
class _ByClass(OfClasses):
    """Precision, recall and F1: from the rows that are right, predicted and true, counted for each class."""

    average: str | None = "macro"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average not in AVERAGES:
            names = ", ".join(map(repr, AVERAGES))
            fail(OptionError, f"{self.kind}: average is one of {names}; received {self.average!r}.")

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        rows, classes = self._tensors(prediction, target, weight)
        right = rows.amounts(rows.predicted == rows.actual)
        return {
            "right": fn.scatter_add(right, rows.actual, classes),
            "predicted": fn.scatter_add(rows.amounts(), rows.predicted, classes),
            "actual": fn.scatter_add(rows.amounts(), rows.actual, classes),
        }

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        rows = self._reading().arrays(prediction, target, weight)
        right = rows.predicted == rows.actual
        hits = ClassArrays(
            rows.predicted[right], rows.actual[right], None if rows.weight is None else rows.weight[right], rows.classes
        )
        return {
            "right": _counts(hits.actual, hits, rows.classes),
            "predicted": _counts(rows.predicted, rows, rows.classes),
            "actual": _counts(rows.actual, rows, rows.classes),
        }

    def result(self, states: States) -> Result:
        right, predicted, actual = (states[p].astype(np.float64) for p in ("right", "predicted", "actual"))
        if not actual.any():
            return float("nan")
        if self.average == "micro":
            return float(self.score(right.sum(), predicted.sum(), actual.sum()))
        scores = self.score(right, predicted, actual)
        if self.average is None:
            return scores
        if self.average == "binary":
            return float(scores[1]) if scores.size > 1 else 0.0
        # As scikit-learn: a class that is neither true nor predicted anywhere is not averaged.
        share = actual if self.average == "weighted" else (predicted + actual > 0).astype(np.float64)
        return float((scores * share).sum() / share.sum())

    @abstractmethod
    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        """The score of each class; 0 where there is nothing to divide by."""


@dataclass(eq=False)
class Precision(_ByClass):
    """Of the rows given a class, the part that has it.

    `average`: "macro" (each class alike), "weighted" (by its true rows), "micro" (all rows alike), "binary" (class 1),
    or None for the array of classes.

    Example: `ws.metrics.Precision(average="macro")`.
    """

    kind: ClassVar[str] = "precision"

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(right, predicted)


@dataclass(eq=False)
class Recall(_ByClass):
    """Of the rows that have a class, the part that was given it; `average` as for `Precision`.

    Example: `ws.metrics.Recall(average="micro")`.
    """

    kind: ClassVar[str] = "recall"

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(right, actual)


@dataclass(eq=False)
class F1(_ByClass):
    """The harmonic mean of precision and recall, 2·right / (predicted + true); `average` as for `Precision`.

    Example: `ws.metrics.F1(average="weighted")`.
    """

    kind: ClassVar[str] = "f1"

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(2.0 * right, predicted + actual)


def _quotient(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(above, dtype=np.float64), where=np.asarray(below) > 0)


def _counts(index: Array, rows: ClassArrays, size: int) -> Array:
    """How much the rows count at each index: whole numbers where they have no weights."""
    counted: Array = np.bincount(index, rows.weight, size)
    return counted if rows.weight is not None else counted.astype(np.int64)
