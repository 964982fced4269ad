"""Accuracy and top-k accuracy: the fraction of correct rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.metrics.array_functions import X, where
from wholestep.metrics.base import Array, States
from wholestep.metrics.reading import ArrayKind, OfScores, PredictionForm, Seen
from wholestep.metrics.rows import ClassRows, Reading


@dataclass(eq=False)
class RightRows(OfScores):
    """A metric that counts correct rows."""

    def result(self, states: States) -> float:
        total = states["total"]
        return float(states["correct"] / total) if total > 0 else float("nan")

    @property
    def correct(self) -> int | float:
        """The number of correct rows; a float if rows have weights."""
        value: int | float = self._states["correct"].item() if self._states else 0
        return value

    @property
    def total(self) -> int | float:
        """The number of rows; a float if rows have weights."""
        value: int | float = self._states["total"].item() if self._states else 0
        return value


@dataclass(eq=False)
class Accuracy(RightRows):
    """The fraction of rows whose class is correct.

    Predictions are scores `(..., C)`, classes `(...)`, or one score for each binary target; targets are classes,
    or probabilities of the scores' shape.  Among equal scores the first class counts.  Each of several labels (N, L)
    counts separately; with `exact` a row counts once, and is correct if all its labels are.

    `threshold` is the score above which the prediction is positive, in the unit of the scores.  It is 0.0 for
    a loss that takes logits, such as "bce".

    Example: `ws.metrics.Accuracy()`.
    """

    kind: ClassVar[str] = "accuracy"
    higher_is_better: ClassVar[bool | None] = True
    threshold: float | None = None
    ignore_index: int | None = None
    exact: bool = field(default=False, kw_only=True)

    def _read_prediction(self) -> Reading:
        return Reading(self, self.threshold, self.ignore_index, together=self.exact)

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        rows = self._read_prediction().rows(prediction, target, weight)
        right: Any = rows.predicted == rows.actual
        if not self.exact:
            return {"correct": rows.tally(right), "total": rows.total()}
        self._need_binary_labels(rows)
        amounts: Any = rows.weight[:, 0] if rows.weight is not None else (rows.actual[:, 0] > -1).astype("int64")
        wrong = (~right).astype("int64").sum(1)
        return {"correct": where(wrong == 0, amounts, 0).astype(amounts.dtype).sum(), "total": amounts.sum()}

    def _need_binary_labels(self, rows: ClassRows[Any]) -> None:
        if not rows.questions or self.ignore_index is not None:
            fail(
                OptionError,
                "accuracy: exact=True is for rows of several binary labels; leave it out for classes, and if an "
                "index is ignored.",
            )


@dataclass(eq=False)
class TopKAccuracy(RightRows):
    """The fraction of rows whose class is among the `k` highest scores.

    Scores are `(..., C)`; targets are classes, or probabilities, whose largest one is the class.  Among equal scores
    the lower class is better, so that `k=1` is `Accuracy`; a row is wrong if the score of its class is NaN.

    Example: `ws.metrics.TopKAccuracy(k=5)`.
    """

    kind: ClassVar[str] = "top_k_accuracy"
    higher_is_better: ClassVar[bool | None] = True
    k: int = 5
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.k, int) or self.k < 1:
            fail(OptionError, f"top_k_accuracy: k must be an integer of at least 1; received {self.k!r}.")

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        seen = self.see(prediction, target)
        self._need_scores(seen)
        rows = self._read_prediction().rows(prediction, target, weight)
        classes = seen.prediction.shape[-1]
        scores = seen.prediction.reshape((product(seen.rows), classes))  # (N, C)
        labels = rows.actual.reshape((-1, 1))  # (N, 1)
        column = fn.iota(scores.shape, axis=1, dtype=labels.dtype)
        best = fn.where(column == labels, scores, 0.0).sum(1, keepdims=True)  # the score of the true class
        worse = (scores < best) | ((scores == best) & (column >= labels))
        rank = (~worse).astype("int32").sum(1)
        return {"correct": rows.tally(rank < self.k), "total": rows.total()}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        seen = self.see(prediction, target)
        self._need_scores(seen)
        rows = self._read_prediction().rows(prediction, target, weight)
        scores = seen.prediction.reshape(-1, seen.prediction.shape[-1])
        labels = rows.actual[:, None]
        best = np.take_along_axis(scores, labels, 1)
        worse = (scores < best) | ((scores == best) & (np.arange(scores.shape[1]) >= labels))
        return {"correct": np.asarray(rows.tally((~worse).sum(1) < self.k)), "total": np.asarray(rows.total())}

    def _read_prediction(self) -> Reading:
        return Reading(self, ignore_index=self.ignore_index)

    def _need_scores(self, seen: Seen[Array] | Seen[Tensor]) -> None:
        if seen.form not in (PredictionForm.SCORES, PredictionForm.ROWS):
            fail(
                ShapeError,
                f"top_k_accuracy ranks scores of shape (..., C) for classes of shape (...); received "
                f"{ArrayKind.of(seen.prediction)} and {ArrayKind.of(seen.target)}. For "
                "binary labels use 'accuracy'.",
            )
        if self.k > int(seen.prediction.shape[-1]):
            text = shape_text(seen.prediction.shape)
            fail(OptionError, f"top_k_accuracy: k={self.k}, and scores of shape {text} have fewer classes.")
