"""How predictions and targets of a classifier are told apart, by shape and dtype, on arrays and on tensors alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, locate
from wholestep.compiler.ir.types import Shape, product, shape_text
from wholestep.errors import DTypeError, InputError, OptionError, ShapeError
from wholestep.metrics.base import Array


class Form(Enum):
    """What a prediction and its target are."""

    SCORES = "scores (..., C) and classes (...)"
    ROWS = "scores (..., C) and probabilities (..., C)"
    BINARY = "one score for each target"
    CLASSES = "a class for each target"


@dataclass(frozen=True)
class Kind:
    """The shape of an array or tensor, and whether it holds whole numbers."""

    shape: Shape
    whole: bool

    @staticmethod
    def of(x: Array | Tensor) -> Kind:
        if isinstance(x, Tensor):
            return Kind(x.shape, not x.dtype.is_float)
        return Kind(x.shape, x.dtype.kind in "iub")

    def __str__(self) -> str:
        return f"{'whole numbers' if self.whole else 'floats'} of shape {shape_text(self.shape)}"


def form_of(metric: str, prediction: Kind, target: Kind) -> Form:
    """Which form a pair has; an error says which ones there are."""
    if not prediction.whole and prediction.shape[:-1] == target.shape and prediction.shape:
        return _scores(metric, prediction, target)
    if prediction.shape == target.shape:
        if prediction.whole:
            return Form.CLASSES if target.whole else _refuse_floats(metric, target)
        return Form.BINARY if target.whole or len(target.shape) < 2 else Form.ROWS
    expected = ", ".join(f.value for f in (Form.SCORES, Form.CLASSES, Form.BINARY))
    raise locate(
        ShapeError(
            f"{metric}: received a prediction of {prediction} and a target of {target}. Expected {expected}; reshape "
            "one of them."
        )
    )


def _scores(metric: str, prediction: Kind, target: Kind) -> Form:
    if prediction.shape[-1] == 1:
        fail(
            ShapeError,
            f"{metric}: received scores of shape {shape_text(prediction.shape)} for targets of shape "
            f"{shape_text(target.shape)}: a single column is not one score for each class. Drop its axis: "
            "scores[:, 0].",
        )
    return Form.SCORES if target.whole else _refuse_floats(metric, target)


def _refuse_floats(metric: str, target: Kind) -> Form:
    fail(
        DTypeError,
        f"{metric}: labels are classes, whole numbers; received {target}. Cast them: labels.astype('int32').",
    )


def check_weight(metric: str, weight: Kind, rows: Shape) -> None:
    if weight.shape != rows:
        fail(
            ShapeError,
            f"{metric}: weights have one number for each row, shape {shape_text(rows)}; received "
            f"{shape_text(weight.shape)}.",
        )


def check_threshold(metric: str, threshold: float | None) -> float:
    """The threshold of yes-or-no scores, which must have been given."""
    if threshold is None:
        fail(
            OptionError,
            f"{metric}: one score for each target says yes or no by a threshold, and none was given. Say it: "
            "threshold=0.0 for logits, threshold=0.5 for probabilities; one-hot targets become classes by "
            "target.argmax(-1).",
        )
    return threshold


# -- on arrays ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassArrays:
    """Flat rows that count: classes predicted and true, how much each counts, how many classes there are."""

    predicted: Array
    actual: Array
    weight: Array | None
    classes: int

    def tally(self, hits: Array) -> Array:
        """How much the rows count where `hits`: an int64, or a float64 where there are weights."""
        return np.asarray(hits.sum(dtype=np.int64) if self.weight is None else self.weight[hits].sum())

    def total(self) -> Array:
        return self.tally(np.ones(self.actual.shape, bool))


@dataclass(frozen=True)
class Reading:
    """How a metric reads classes: the options that decide it."""

    metric: str
    threshold: float | None = None
    ignore_index: int | None = None
    classes: int | None = None

    def arrays(self, prediction: Array, target: Array, weight: Array | None) -> ClassArrays:
        form = form_of(self.metric, Kind.of(prediction), Kind.of(target))
        predicted, actual = self._classes(form, prediction, target)
        if weight is not None:
            check_weight(self.metric, Kind.of(weight), actual.shape)
            weight = weight.astype(np.float64)
        counted = np.ones(actual.shape, bool) if self.ignore_index is None else actual != self.ignore_index
        predicted, actual = predicted[counted].astype(np.int64), actual[counted].astype(np.int64)
        width = self._width(form, prediction.shape, max(_top(predicted), _top(actual)))
        for what, values in (("labels", actual), ("predicted classes", predicted)):
            check_range(self.metric, what, values, width)
        return ClassArrays(predicted, actual, None if weight is None else weight[counted], width)

    def _classes(self, form: Form, prediction: Array, target: Array) -> tuple[Array, Array]:
        if form is Form.SCORES:
            return prediction.argmax(-1), target
        if form is Form.ROWS:
            return prediction.argmax(-1), target.argmax(-1)
        if form is Form.CLASSES:
            return prediction, target
        threshold = check_threshold(self.metric, self.threshold)
        return (prediction > threshold).astype(np.int64), target if Kind.of(target).whole else target > 0.5

    def _width(self, form: Form, shape: Shape, top: int) -> int:
        """The number of classes: told by the scores, by the metric, or by the largest class seen."""
        if form in (Form.SCORES, Form.ROWS):
            return int(shape[-1])
        if form is Form.BINARY:
            return 2
        return self.classes or top + 1

    # -- on tensors ----------------------------------------------------------------------------------------------

    def tensors(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> ClassTensors:
        form = form_of(self.metric, Kind.of(prediction), Kind.of(target))
        predicted, actual, width = self._class_tensors(form, prediction, target)
        if weight is not None:
            check_weight(self.metric, Kind.of(weight), actual.shape)
            weight = weight.astype("float64")
        rows = (product(actual.shape),)
        counted = None if self.ignore_index is None else (actual != self.ignore_index)
        if counted is not None:
            actual = fn.where(counted, actual, 0)  # an index that exists; the row counts nothing
            counted = counted.reshape(rows)
        return ClassTensors(
            predicted.reshape(rows),
            actual.reshape(rows),
            counted,
            None if weight is None else weight.reshape(rows),
            width,
        )

    def _class_tensors(self, form: Form, prediction: Tensor, target: Tensor) -> tuple[Tensor, Tensor, int | None]:
        if form is Form.SCORES:
            return prediction.argmax(-1).astype(target.dtype), target, int(prediction.shape[-1])
        if form is Form.ROWS:
            return prediction.argmax(-1), target.argmax(-1), int(prediction.shape[-1])
        if form is Form.CLASSES:
            return prediction.astype(target.dtype), target, self.classes
        yes = (prediction > check_threshold(self.metric, self.threshold)).astype("int32")
        return yes, (target.astype("int32") if Kind.of(target).whole else (target > 0.5).astype("int32")), 2


def _top(values: Array) -> int:
    return int(values.max()) if values.size else -1


def check_range(metric: str, what: str, values: Array, classes: int) -> None:
    """Classes outside the range are an error that shows the first of them."""
    wrong = (values < 0) | (values >= classes)
    if wrong.any():
        position = int(np.argmax(wrong))
        fail(
            InputError,
            f"{metric}: {what} are from 0 to {classes - 1}; received {values[position]} at position {position}. "
            "Correct the values, or say which one to leave out: ignore_index=.",
        )


@dataclass(frozen=True)
class ClassTensors:
    """Flat rows of a batch: classes predicted and true, which rows count (None: all), and how much."""

    predicted: Tensor
    actual: Tensor
    counted: Tensor | None
    weight: Tensor | None
    classes: int | None

    def amounts(self, hits: Tensor | None = None) -> Tensor:
        """How much each row counts, 0 where it does not or where `hits` is false; int64, or float64 with weights."""
        chosen = [t for t in (hits, self.counted) if t is not None]
        mask: Tensor = (
            chosen[0] if len(chosen) == 1 else chosen[0] & chosen[1] if chosen else self.actual == self.actual
        )
        return mask.astype("int64") if self.weight is None else fn.where(mask, self.weight, 0.0)

    def tally(self, hits: Tensor) -> Tensor:
        """How much the rows count where `hits`."""
        return self.amounts(hits).sum()

    def total(self) -> Tensor:
        """How much all rows count."""
        if self.counted is None:
            return row_count(self.actual.shape) if self.weight is None else self.weight.sum()
        return self.amounts().sum()


def row_count(shape: Shape, dtype: Any = "int64") -> Tensor:
    """The number of elements of a shape at run time, known before any kernel runs."""
    return fn.size(product(shape)).astype(dtype)
