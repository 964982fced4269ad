"""The rows of a classifier: predicted class, actual class, weight."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, user_line
from wholestep.compiler.ir.types import Extent, Shape, letter_of, product
from wholestep.errors import OptionError, TrainingWarning
from wholestep.metrics.base import Array
from wholestep.metrics.reading import OfScores, PredictionForm, Seen, check_range, row_count


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
        """The largest target value of the negative class."""
        meaning = self.metric.meaning
        return 0.0 if meaning is not None and meaning.signs else 0.5

    def _shape(self, seen: Seen[Any], rows: Shape) -> tuple[Extent, ...]:
        """The flattened shape: (rows,) for classes, (rows, labels) for binary targets."""
        if seen.form is not PredictionForm.EACH:
            return (product(rows),)
        if self.together:
            return (rows[0], product(rows[1:]))
        return tuple(rows) if seen.questions > 1 else (product(rows), 1)

    # -- on arrays -----------------------------------------------------------------------------------------------

    def arrays(self, prediction: Array, target: Array, weight: Array | None) -> ClassArrays:
        seen = self.metric.see(prediction, target, self.threshold)
        predicted, actual = self._class_arrays(seen)
        shape: Any = self._shape(seen, seen.rows)
        if weight is not None:
            weight = self.metric.spread(weight, seen.rows).astype(np.float64).reshape(shape)
        ignored = self.ignored(seen.form)
        counted = np.ones(actual.shape, bool) if ignored is None else actual != ignored
        width = self._width(seen, max(_top(predicted[counted]), _top(actual[counted])))
        for what, values in (("labels", actual), ("predicted classes", predicted)):
            check_range(self.metric.kind, what, values[counted].astype(np.int64), width)
        actual = np.where(counted, actual, 0).astype(np.int64).reshape(shape)
        return ClassArrays(
            predicted.astype(np.int64).reshape(shape), actual, counted.reshape(shape), weight, width, seen.questions
        )

    def _class_arrays(self, seen: Seen[Array]) -> tuple[Array, Array]:
        p, t = seen.prediction, seen.target
        if seen.form is PredictionForm.SCORES:
            return p.argmax(-1), t
        if seen.form is PredictionForm.ROWS:
            return p.argmax(-1), t.argmax(-1)
        if seen.form is PredictionForm.CLASSES:
            return p, t
        plain = letter_of(t.dtype) in "iub" and self._no == 0.5
        return p > self.limit(), t if plain else t > self._no

    def _width(self, seen: Seen[Any], top: int) -> int:
        """The number of classes: that of the scores, `classes=` of the metric, or the largest class seen plus 1."""
        if seen.form in (PredictionForm.SCORES, PredictionForm.ROWS):
            return int(seen.prediction.shape[-1])
        return 2 if seen.form is PredictionForm.EACH else self.classes or top + 1

    # -- on tensors ----------------------------------------------------------------------------------------------

    def tensors(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> ClassTensors:
        seen = self.metric.see(prediction, target, self.threshold)
        predicted, actual = self._class_tensors(seen)
        shape = self._shape(seen, seen.rows)
        if weight is not None:
            weight = self.metric.spread(weight, seen.rows).astype("float64").reshape(shape)
        ignored = self.ignored(seen.form)
        counted = None if ignored is None else (actual != ignored)
        if counted is not None:
            actual = fn.where(counted, actual, 0)  # a valid index; the row has weight 0
            counted = counted.reshape(shape)
        width = self.classes if seen.form is PredictionForm.CLASSES else self._width(seen, 0)
        return ClassTensors(predicted.reshape(shape), actual.reshape(shape), counted, weight, width, seen.questions)

    def _class_tensors(self, seen: Seen[Tensor]) -> tuple[Tensor, Tensor]:
        p, t = seen.prediction, seen.target
        if seen.form is PredictionForm.SCORES:
            return p.argmax(-1).astype(t.dtype), t
        if seen.form is PredictionForm.ROWS:
            return p.argmax(-1), t.argmax(-1)
        if seen.form is PredictionForm.CLASSES:
            return p.astype(t.dtype), t
        plain = not t.dtype.is_float and self._no == 0.5
        yes = t if plain else t > 0 if not t.dtype.is_float else t > self._no
        return (p > self.limit()).astype("int32"), yes.astype("int32")


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
class ClassArrays:
    """Predicted and true classes, (N,), or binary labels, (N, labels); which rows count, and their weights."""

    predicted: Array
    actual: Array
    counted: Array
    weight: Array | None
    classes: int
    questions: int

    def amounts(self, hits: Array | None = None) -> Array:
        """The weight of each row, 0 where it does not count or `hits` is false; int64, or float64 with row weights."""
        mask = self.counted if hits is None else hits & self.counted
        return mask.astype(np.int64) if self.weight is None else np.where(mask, self.weight, 0.0)

    def tally(self, hits: Array | None = None) -> Array:
        """The total weight of the rows where `hits` is true."""
        return np.asarray(self.amounts(hits).sum())

    def total(self) -> Array:
        return self.tally()

    def by(self, index: Array, size: int, hits: Array | None = None) -> Array:
        """The total weight of the rows at each index."""
        amounts = self.amounts(hits)
        counts: Array = np.bincount(index.reshape(-1), amounts.reshape(-1), size)
        return counts if self.weight is not None else counts.round().astype(np.int64)


@dataclass(frozen=True)
class ClassTensors:
    """The rows of a batch inside the step; `counted` is None if all rows count."""

    predicted: Tensor
    actual: Tensor
    counted: Tensor | None
    weight: Tensor | None
    classes: int | None
    questions: int

    def amounts(self, hits: Tensor | None = None) -> Tensor:
        """The weight of each row, 0 where it does not count or `hits` is false; int64, or float64 with row weights."""
        chosen = [t for t in (hits, self.counted) if t is not None]
        mask: Tensor = (
            chosen[0] if len(chosen) == 1 else chosen[0] & chosen[1] if chosen else self.actual == self.actual
        )
        return mask.astype("int64") if self.weight is None else fn.where(mask, self.weight, 0.0)

    def tally(self, hits: Tensor) -> Tensor:
        """The total weight of the rows where `hits` is true."""
        return self.amounts(hits).sum()

    def total(self) -> Tensor:
        """The total weight of all rows."""
        if self.counted is None:
            return row_count(self.actual.shape) if self.weight is None else self.weight.sum()
        return self.amounts().sum()

    def by(self, index: Tensor, size: int, hits: Tensor | None = None) -> Tensor:
        """The total weight of the rows at each index."""
        amounts = self.amounts(hits)
        flat = (product(amounts.shape),)
        return fn.scatter_add(amounts.reshape(flat), index.reshape(flat), size)
