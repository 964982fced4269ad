"""The rows of a classifier: predicted class, actual class, weight."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, Generic

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, user_line
from wholestep.compiler.ir.types import Extent, Shape, product
from wholestep.errors import OptionError, TrainingWarning
from wholestep.metrics.array_functions import X, count, sum_by_index, where
from wholestep.metrics.base import Array
from wholestep.metrics.reading import ArrayKind, OfScores, PredictionForm, Seen, check_range


@dataclass(frozen=True)
class Reading:
    """How a metric determines predicted and actual classes from scores and targets."""

    metric: OfScores
    threshold: float | None = None
    ignore_index: int | None = None
    classes: int | None = None
    together: bool = False  # all binary labels of a row in one axis: (N, labels)

    def ignored(self, form: PredictionForm) -> int | None:
        """The class that is ignored: by the metric's own option, or the loss's."""
        meaning = self.metric.meaning
        if self.ignore_index is None and meaning is not None and form is PredictionForm.SCORES:
            return meaning.ignore_index
        return self.ignore_index

    def limit(self) -> float:
        """The score above which the prediction is positive."""
        meaning = self.metric.meaning
        by_loss = meaning is not None and meaning.each
        if self.threshold is not None:
            if by_loss and meaning is not None and meaning.logits and self.threshold == 0.5:
                _warn_of_half(self.metric.kind)
            return self.threshold
        if not by_loss:
            fail(
                OptionError,
                f"{self.metric.kind}: one score for each target needs a threshold, and none was given. Give "
                "threshold=0.0 for logits, threshold=0.5 for probabilities; one-hot targets become classes by "
                "target.argmax(-1).",
            )
        return 0.5 if meaning is not None and meaning.probabilities else 0.0

    @property
    def _no(self) -> float:
        """The largest target value that counts as negative."""
        meaning = self.metric.meaning
        return 0.0 if meaning is not None and meaning.signs else 0.5

    def _shape(self, seen: Seen[Any], rows: Shape) -> tuple[Extent, ...]:
        """The flattened shape: (rows,) for classes, (rows, labels) for binary targets."""
        if seen.form is not PredictionForm.EACH:
            return (product(rows),)
        if self.together:
            return (rows[0], product(rows[1:]))
        return tuple(rows) if seen.questions > 1 else (product(rows), 1)

    def rows(self, prediction: X, target: X, weight: X | None) -> ClassRows[X]:
        """The rows of a batch."""
        seen = self.metric.see(prediction, target, self.threshold)
        predicted, actual = self._classes(seen)
        shape: Any = self._shape(seen, seen.rows)
        if weight is not None:
            weight = self.metric.spread(weight, seen.rows).astype("float64").reshape(shape)
        ignored = self.ignored(seen.form)
        counted: Any = None if ignored is None else actual != ignored
        width = self._width(seen, predicted, actual, counted)
        if counted is not None:
            actual = where(counted, actual, 0)  # a valid index; the row has weight 0
            counted = counted.reshape(shape)
        return ClassRows(predicted.reshape(shape), actual.reshape(shape), counted, weight, width, seen.questions)

    def _classes(self, seen: Seen[Any]) -> tuple[Any, Any]:
        """The predicted and the actual class of each counted item, as integers."""
        p, t, is_array = seen.prediction, seen.target, isinstance(seen.prediction, np.ndarray)
        if seen.form is PredictionForm.EACH:
            whole, dtype = ArrayKind.of(t).whole, "int64" if is_array else "int32"
            yes = t if whole and self._no == 0.5 else t > (0 if whole else self._no)
            return (p > self.limit()).astype(dtype), yes.astype(dtype)
        predicted = p if seen.form is PredictionForm.CLASSES else p.argmax(-1)
        actual = t.argmax(-1) if seen.form is PredictionForm.ROWS else t
        if is_array:
            return predicted.astype("int64"), actual.astype("int64")
        return predicted if seen.form is PredictionForm.ROWS else predicted.astype(t.dtype), actual

    def _width(self, seen: Seen[Any], predicted: Any, actual: Any, counted: Any) -> int | None:
        """The number of classes: of the scores, or `classes=` of the metric, or for arrays the largest class plus 1.

        Raises InputError for classes of arrays outside the range.
        """
        if seen.form in (PredictionForm.SCORES, PredictionForm.ROWS):
            width: int | None = int(seen.prediction.shape[-1])
        else:
            width = 2 if seen.form is PredictionForm.EACH else self.classes
        if isinstance(actual, Tensor):
            return width
        labels, guesses = (v.reshape(-1) if counted is None else v[counted] for v in (actual, predicted))
        width = width or max(_top(labels), _top(guesses)) + 1
        check_range(self.metric.kind, "labels", labels, width)
        check_range(self.metric.kind, "predicted classes", guesses, width)
        return width


def _top(values: Array) -> int:
    return int(values.max()) if values.size else -1


def _warn_of_half(metric: str) -> None:
    line = user_line()
    warnings.warn_explicit(
        f"{metric}: threshold=0.5 is compared with the raw scores that the loss takes, where it stands for a "
        "probability of 0.62. For a probability of 0.5 leave it out, or give threshold=0.0.",
        TrainingWarning,
        line.file,
        line.line,
    )


@dataclass(frozen=True)
class ClassRows(Generic[X]):
    """Predicted and true classes, (N,), or binary labels, (N, labels); which rows count (None: all); their weights."""

    predicted: X
    actual: X
    counted: X | None
    weight: X | None
    classes: int | None  # number of classes; None inside a step if predictions are classes, which do not determine it
    questions: int

    def amounts(self, hits: X | None = None) -> X:
        """The weight of each row, 0 where it does not count or `hits` is false; int64, or float64 with row weights."""
        masks: list[Any] = [mask for mask in (hits, self.counted) if mask is not None]
        mask = reduce(and_, masks) if masks else self.actual == self.actual
        weighted: X = mask.astype("int64") if self.weight is None else where(mask, self.weight, 0.0)
        return weighted

    def tally(self, hits: X) -> X:
        """The total weight of the rows where `hits` is true."""
        weight: X = self.amounts(hits).sum()
        return weight

    def total(self) -> X:
        """The total weight of all rows."""
        if self.counted is None:
            return count(self.actual, self.actual.shape) if self.weight is None else self.weight.sum()
        weight: X = self.amounts().sum()
        return weight

    def by(self, index: X, size: int, hits: X | None = None) -> X:
        """The total weight of the rows at each index."""
        return sum_by_index(self.amounts(hits), index, size)
