"""The confusion matrix, and scores from counts per class: precision, recall, F1, F-beta, IoU and Dice."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError
from wholestep.metrics.array_functions import X
from wholestep.metrics.base import Array, Result, States
from wholestep.metrics.reading import OfScores
from wholestep.metrics.rows import ClassRows, Reading

AVERAGES = ("macro", "micro", "weighted", "binary", "auto", None)


@dataclass(eq=False)
class OfClasses(OfScores):
    """The base class of metrics that need a predicted class for each row.

    Predictions are scores `(..., C)`, classes `(...)`, or one score for each binary target, with a `threshold` above
    which the prediction is positive (0.0 for a loss such as "bce").  `classes` is the number of classes if
    predictions are classes; on arrays it may be left out.
    """

    classes: int | None = field(default=None, kw_only=True)
    threshold: float | None = field(default=None, kw_only=True)
    ignore_index: int | None = field(default=None, kw_only=True)

    def _rows(self, prediction: X, target: X, weight: X | None) -> tuple[ClassRows[X], int]:
        rows = self._read_prediction().rows(prediction, target, weight)
        if rows.classes is None:
            fail(
                OptionError,
                f"{self.kind}: give the number of classes, classes=10: predicted classes do not determine it.",
            )
        return rows, rows.classes

    def _read_prediction(self) -> Reading:
        return Reading(self, self.threshold, self.ignore_index, self.classes)


def _count_binary(rows: ClassRows[X]) -> dict[str, X]:
    """For each binary label: true positives, predicted positives, actual positives, and rows; tensors or arrays."""
    predicted: Any = rows.predicted == 1
    actual: Any = rows.actual == 1
    parts = {"right": predicted & actual, "predicted": predicted, "actual": actual}
    return {**{part: rows.amounts(hits).sum(0) for part, hits in parts.items()}, "total": rows.amounts().sum(0)}


@dataclass(eq=False)
class ConfusionMatrix(OfClasses):
    """The confusion matrix: how many rows of each true class (rows) were predicted as each class (columns).

    Each of several labels (N, L) has its own 2 x 2 matrix, negative before positive: shape (L, 2, 2).

    Example: `ws.metrics.ConfusionMatrix(classes=3)`.
    """

    kind: ClassVar[str] = "confusion_matrix"
    higher_is_better: ClassVar[bool | None] = None
    classes: int | None = None

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        rows, classes = self._rows(prediction, target, weight)
        if rows.questions > 1:
            return _count_binary(rows)
        flat = (product(rows.actual.shape),)
        amounts = rows.amounts().reshape((-1, 1))
        # Scatter into the matrix's rows instead of its cells, so that the labels themselves are the indices and their
        # range is checked.
        across = fn.one_hot(rows.predicted.reshape(flat), classes, amounts.dtype) * amounts  # (N, C)
        return {"matrix": fn.scatter_add(across, rows.actual.reshape(flat), classes)}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        rows, classes = self._rows(prediction, target, weight)
        if rows.questions > 1:
            return _count_binary(rows)
        return {"matrix": rows.by(rows.actual * classes + rows.predicted, classes**2).reshape(classes, classes)}

    def result(self, states: States) -> Result:
        if "total" in states:
            right, predicted, actual, total = (states[part] for part in ("right", "predicted", "actual", "total"))
            cells = np.stack([total - predicted - actual + right, predicted - right, actual - right, right], -1)
            return cells.reshape(-1, 2, 2) if total.any() else float("nan")
        matrix = states["matrix"]
        return matrix if matrix.any() else float("nan")


@dataclass(eq=False)
class Counted(OfClasses):
    """A score computed from the numbers of correct, predicted and actual rows of each class."""

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        rows, classes = self._rows(prediction, target, weight)
        if self._asks(rows):
            return _count_binary(rows)
        return {
            "right": rows.by(rows.actual, classes, rows.predicted == rows.actual),
            "predicted": rows.by(rows.predicted, classes),
            "actual": rows.by(rows.actual, classes),
        }

    @abstractmethod
    def _asks(self, rows: ClassRows[Any]) -> bool:
        """Are only positive predictions counted, as for a binary score, rather than both classes?"""


@dataclass(eq=False)
class ByClass(Counted):
    """The base class of precision, recall, F1 and similar metrics: a score for each class, and their average."""

    average: str | None = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average not in AVERAGES:
            names = ", ".join(map(repr, AVERAGES))
            fail(OptionError, f"{self.kind}: average must be one of {names}; received {self.average!r}.")

    def _asks(self, rows: ClassRows[Any]) -> bool:
        if self.average == "binary" and (rows.questions > 1 or (rows.classes or 0) > 2):
            fail(
                OptionError,
                f"{self.kind}: average='binary' is for one binary label; there are "
                f"{rows.questions or rows.classes}. Choose 'macro', 'micro', 'weighted', or None for each of them.",
            )
        return rows.questions > 1 or (rows.questions == 1 and self.average in ("auto", "binary"))

    def result(self, states: States) -> Result:
        right, predicted, actual = (states[p].astype(np.float64) for p in ("right", "predicted", "actual"))
        asks = "total" in states
        if not (states["total"] if asks else actual).any():
            return float("nan")
        if self.average == "micro":
            return float(self.score(right.sum(), predicted.sum(), actual.sum()))
        scores = self.score(right, predicted, actual)
        if self.average is None:
            return scores
        if self.average == "binary":
            return float(scores[-1]) if asks or scores.size > 1 else 0.0
        # As in scikit-learn: a class that occurs neither as target nor as prediction is left out of the average, a
        # label is not.
        share = np.ones_like(actual) if asks else (predicted + actual > 0).astype(np.float64)
        share = actual if self.average == "weighted" else share
        return float((scores * share).sum() / share.sum()) if share.any() else 0.0

    @abstractmethod
    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        """The score of each class; 0 where the denominator is 0."""


@dataclass(eq=False)
class Precision(ByClass):
    """The fraction of rows predicted as a class that belong to it.

    `average`: "macro" (each class or label alike), "weighted" (by its true rows), "micro" (all rows alike), "binary"
    (class 1), or None for the array of classes or labels.  "auto" is "binary" for a single binary score, else "macro".

    Example: `ws.metrics.Precision(average="macro")`.
    """

    kind: ClassVar[str] = "precision"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(right, predicted)


@dataclass(eq=False)
class Recall(ByClass):
    """The fraction of rows of a class that were predicted as it; `average` as for `Precision`.

    Example: `ws.metrics.Recall(average="micro")`.
    """

    kind: ClassVar[str] = "recall"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(right, actual)


@dataclass(eq=False)
class F1(ByClass):
    """The harmonic mean of precision and recall, 2·right / (predicted + true); `average` as for `Precision`.

    Example: `ws.metrics.F1(average="weighted")`.
    """

    kind: ClassVar[str] = "f1"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(2.0 * right, predicted + actual)


@dataclass(eq=False)
class FBeta(ByClass):
    """The weighted harmonic mean of precision and recall, with beta times the weight for recall; `average` as for
    `Precision`:

        (1 + beta²)·right / (beta²·true + predicted)

    Example: `ws.metrics.FBeta(beta=2.0)`.
    """

    kind: ClassVar[str] = "fbeta"
    higher_is_better: ClassVar[bool | None] = True
    beta: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.beta, int | float) or isinstance(self.beta, bool) or not 0 <= self.beta < np.inf:
            fail(OptionError, f"fbeta: beta must be a number of at least 0; received {self.beta!r}.")

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        square = self.beta**2
        return _quotient((1.0 + square) * right, square * actual + predicted)


@dataclass(eq=False)
class IoU(ByClass):
    """Intersection over union (Jaccard): correct / (predicted + true - correct); `average` as for `Precision`.

    Of images, scores (N, C, H, W) and classes (N, H, W), every pixel counts, and "macro" is the mean IoU of classes.

    Example: `ws.metrics.IoU(average="macro")`.
    """

    kind: ClassVar[str] = "iou"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, right: Array, predicted: Array, actual: Array) -> Array:
        return _quotient(right, predicted + actual - right)


@dataclass(eq=False)
class Dice(F1):
    """Dice's coefficient, 2·correct / (predicted + true): F1 under its name in image segmentation.

    Example: `ws.metrics.Dice()`.
    """

    kind: ClassVar[str] = "dice"
    higher_is_better: ClassVar[bool | None] = True


def _quotient(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a, dtype=np.float64), where=np.asarray(b) > 0)
