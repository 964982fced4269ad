"""Accuracy and top-k accuracy: how many rows are right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.reading import Form, Kind, Reading, form_of


@dataclass(eq=False)
class RightRows(Metric):
    """What counts the rows that are right."""

    def result(self, states: States) -> float:
        total = states["total"]
        return float(states["correct"] / total) if total > 0 else float("nan")

    @property
    def correct(self) -> int | float:
        """How many rows were right; a float where rows have weights."""
        value: int | float = self._states["correct"].item() if self._states else 0
        return value

    @property
    def total(self) -> int | float:
        """How many rows there were; a float where rows have weights."""
        value: int | float = self._states["total"].item() if self._states else 0
        return value


@dataclass(eq=False)
class Accuracy(RightRows):
    """The part of rows whose class is right.

    Predictions are scores `(..., C)`, classes `(...)`, or one score per row with a `threshold` above which the class is
    1; targets are classes, or probabilities of the scores' shape.  Among equal scores the first class counts.

    Example: `ws.metrics.Accuracy()`.
    """

    kind: ClassVar[str] = "accuracy"
    threshold: float | None = None
    ignore_index: int | None = None

    def _reading(self) -> Reading:
        return Reading(self.kind, self.threshold, self.ignore_index)

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        rows = self._reading().tensors(prediction, target, weight)
        return {"correct": rows.tally(rows.predicted == rows.actual), "total": rows.total()}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        rows = self._reading().arrays(prediction, target, weight)
        return {"correct": rows.tally(rows.predicted == rows.actual), "total": rows.total()}


@dataclass(eq=False)
class TopKAccuracy(RightRows):
    """The part of rows whose class is among the `k` best scores.

    Scores are `(..., C)`, targets classes.  Among equal scores the class that comes first is better, so that `k=1` is
    `Accuracy`; a row whose own score is NaN is wrong.

    Example: `ws.metrics.TopKAccuracy(k=5)`.
    """

    kind: ClassVar[str] = "top_k_accuracy"
    k: int = 5
    ignore_index: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.k, int) or self.k < 1:
            fail(OptionError, f"top_k_accuracy: k is a whole number of at least 1; received {self.k!r}.")

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        self._need_scores(Kind.of(prediction), Kind.of(target))
        rows = Reading(self.kind, ignore_index=self.ignore_index).tensors(prediction, target, weight)
        classes = prediction.shape[-1]
        scores = prediction.reshape((product(prediction.shape[:-1]), classes))  # (N, C)
        own = rows.actual.reshape((-1, 1))  # (N, 1)
        column = fn.iota(scores.shape, axis=1, dtype=own.dtype)
        best = fn.where(column == own, scores, 0.0).sum(1, keepdims=True)  # the score of the true class
        worse = (scores < best) | ((scores == best) & (column >= own))
        rank = (~worse).astype("int32").sum(1)
        return {"correct": rows.tally(rank < self.k), "total": rows.total()}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        self._need_scores(Kind.of(prediction), Kind.of(target))
        rows = Reading(self.kind, ignore_index=self.ignore_index).arrays(prediction, target, weight)
        scores = prediction.reshape(-1, prediction.shape[-1])
        if self.ignore_index is not None:
            scores = scores[target.reshape(-1) != self.ignore_index]
        own = rows.actual[:, None]
        best = np.take_along_axis(scores, own, 1)
        worse = (scores < best) | ((scores == best) & (np.arange(scores.shape[1]) >= own))
        return {"correct": rows.tally((~worse).sum(1) < self.k), "total": rows.total()}

    def _need_scores(self, prediction: Kind, target: Kind) -> None:
        if form_of(self.kind, prediction, target) is not Form.SCORES:
            fail(
                ShapeError,
                f"top_k_accuracy ranks scores of shape (..., C) for classes of shape (...); received {prediction} and "
                f"{target}.",
            )
        if self.k > int(prediction.shape[-1]):
            text = shape_text(prediction.shape)
            fail(OptionError, f"top_k_accuracy: k={self.k}, and scores of shape {text} have fewer classes.")
