"""Determines how predictions and targets of a classifier are interpreted: by options, by the loss, by shape and dtype.

A metric's own `axis=` (classes) or `threshold=` (binary) decides first; then the interpretation of the same output by
the loss (`losses.forms.Meaning`); then shapes and dtypes, if they are unambiguous.  The same on arrays and on tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, cast

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Shape, letter_of, product, shape_text
from wholestep.errors import DTypeError, InputError, ShapeError
from wholestep.losses.forms import Meaning, class_axis, shapes_match, without
from wholestep.metrics.array_functions import X
from wholestep.metrics.base import Array, Metric


class PredictionForm(Enum):
    """The kind of a prediction and its target: binary or classes, the axis, scores or classes."""

    SCORES = "scores (..., C) and classes (...)"
    ROWS = "scores (..., C) and probabilities (..., C)"
    EACH = "one score for each target"
    CLASSES = "a class for each target"


@dataclass(frozen=True)
class ArrayKind:
    """The shape of an array or tensor, and whether it holds integers."""

    shape: Shape
    whole: bool

    @staticmethod
    def of(x: Array | Tensor) -> ArrayKind:
        if isinstance(x, Tensor):
            return ArrayKind(x.shape, not x.dtype.is_float)
        return ArrayKind(x.shape, letter_of(x.dtype) in "iub")

    def __str__(self) -> str:
        return f"{'integers' if self.whole else 'floats'} of shape {shape_text(self.shape)}"


@dataclass(frozen=True)
class Seen(Generic[X]):
    """An interpreted pair: the class axis last, targets in the shape of the rows or scores they belong to."""

    form: PredictionForm
    prediction: X
    target: X

    @property
    def rows(self) -> Shape:
        """The shape of the counted items: rows for classes, every score for binary targets."""
        shape: Shape = self.target.shape
        return shape[:-1] if self.form is PredictionForm.ROWS else shape

    @property
    def questions(self) -> int:
        """The number of binary labels per row: L for (N, L), 1 per score for other shapes, 0 for classes."""
        if self.form is not PredictionForm.EACH:
            return 0
        shape = self.prediction.shape
        return int(shape[1]) if len(shape) == 2 and isinstance(shape[1], int) else 1


@dataclass(eq=False)
class OfScores(Metric):
    """The base class of metrics of class scores, or of one score for each binary target.

    `axis` is the class axis, if neither the loss nor the shapes determine it; it also overrides a binary loss.
    """

    axis: int | None = field(default=None, kw_only=True)

    def see(self, prediction: X, target: X, threshold: float | None = None) -> Seen[X]:
        """The interpreted pair; an error names the shapes that were expected."""
        p, t, meaning = ArrayKind.of(prediction), ArrayKind.of(target), self.meaning
        if p.whole:
            return self._of_predicted(prediction, target)
        if self.axis is not None:
            return self._of_classes(prediction, target, class_axis(self.kind, p.shape, t.shape, self.axis))
        if threshold is not None or (meaning is not None and meaning.each):
            return self._of_each(prediction, target)
        if meaning is not None:
            return self._of_classes(prediction, target, meaning.axis)
        if not shapes_match(p.shape, t.shape):
            return self._of_classes(prediction, target, class_axis(self.kind, p.shape, t.shape))
        if t.whole or len(p.shape) < 2 or p.shape[-1] == 1 or p.shape != t.shape:
            return self._of_each(prediction, target)
        if isinstance(target, Tensor) or not np.allclose(target.sum(-1), 1.0, atol=1e-3):
            self._ask(p)
        return self._of_classes(prediction, target, len(p.shape) - 1)

    def _of_predicted(self, prediction: X, target: X) -> Seen[X]:
        p, t = ArrayKind.of(prediction), ArrayKind.of(target)
        if not shapes_match(p.shape, t.shape):
            self._refuse(p, t)
        if not t.whole:
            self._refuse_floats(t)
        return Seen(PredictionForm.CLASSES, prediction, _reshape(target, p.shape))

    def _of_each(self, prediction: X, target: X) -> Seen[X]:
        p, t = ArrayKind.of(prediction), ArrayKind.of(target)
        if not shapes_match(p.shape, t.shape):
            self._refuse(p, t)
        return Seen(PredictionForm.EACH, prediction, _reshape(target, p.shape))

    def _of_classes(self, prediction: X, target: X, axis: int) -> Seen[X]:
        p, t = ArrayKind.of(prediction), ArrayKind.of(target)
        if not p.shape or axis >= len(p.shape):
            self._refuse(p, t)
        rows: Shape = without(p.shape, axis)
        if p.shape[axis] == 1:
            fail(
                ShapeError,
                f"{self.kind}: received scores of shape {shape_text(p.shape)} for targets of shape "
                f"{shape_text(t.shape)}: a single column is not one score for each class. Drop its axis: scores[:, 0].",
            )
        if t.shape in (rows, (*rows, 1)):
            if not t.whole:
                self._refuse_floats(t)
            return Seen(PredictionForm.SCORES, last_axis(prediction, axis), _reshape(target, rows))
        if t.shape != p.shape:
            self._refuse(p, t)
        return Seen(PredictionForm.ROWS, last_axis(prediction, axis), last_axis(target, axis))

    def _refuse(self, prediction: ArrayKind, target: ArrayKind) -> None:
        expected = ", ".join(f.value for f in (PredictionForm.SCORES, PredictionForm.CLASSES, PredictionForm.EACH))
        by_loss = ""
        if self.meaning is not None:
            by_loss = f" The loss takes {_describe_meaning(self.meaning)}."
        fail(
            ShapeError,
            f"{self.kind}: received a prediction of {prediction} and a target of {target}. Expected {expected}; "
            f"reshape one of them.{by_loss}",
        )

    def _refuse_floats(self, target: ArrayKind) -> None:
        fail(
            DTypeError,
            f"{self.kind}: labels are classes, integers; received {target}. Cast them: labels.astype('int32').",
        )

    def _ask(self, prediction: ArrayKind) -> None:
        fail(
            ShapeError,
            f"{self.kind}: floats of shape {shape_text(prediction.shape)}, that of the scores, may be probabilities of "
            "classes or binary labels, and the loss does not determine which. Say which: axis=-1 for classes, "
            "threshold=0.0 for binary labels.",
        )

    def spread(self, weight: X, rows: Shape) -> X:
        """Broadcast row weights to the shape of the counted items."""
        shape: Shape = weight.shape
        if not shape or shape != rows[: len(shape)]:
            fail(
                ShapeError,
                f"{self.kind}: weights have one number for each row, shape {shape_text(rows[:1])}; received "
                f"{shape_text(shape)}.",
            )
        if shape == rows:
            return weight
        wide = _reshape(weight, (*shape, *(1 for _ in rows[len(shape) :])))
        return wide.expand(rows) if isinstance(wide, Tensor) else np.broadcast_to(wide, cast("tuple[int, ...]", rows))


def _describe_meaning(meaning: Meaning) -> str:
    return "one score for each binary target" if meaning.each else f"scores of classes on axis {meaning.axis}"


def _reshape(x: X, shape: Shape) -> X:
    return x if x.shape == shape else x.reshape(shape)


def last_axis(x: X, axis: int) -> X:
    """x with one axis moved to the end."""
    if axis == len(x.shape) - 1:
        return x
    order = (*(a for a in range(len(x.shape)) if a != axis), axis)
    return x.permute(*order) if isinstance(x, Tensor) else x.transpose(order)


def check_range(metric: str, what: str, values: Array, classes: int) -> None:
    """Raise InputError for class indices outside the range, with the first of them."""
    wrong = (values < 0) | (values >= classes)
    if wrong.any():
        position = int(np.argmax(wrong))
        fail(
            InputError,
            f"{metric}: {what} are from 0 to {classes - 1}; received {values[position]} at position {position}. "
            "Correct the values, or say which one to leave out: ignore_index=.",
        )


def check_weight(metric: str, weight: ArrayKind, rows: Shape) -> None:
    """Raise ShapeError unless there is one weight for each row."""
    if weight.shape != rows:
        fail(
            ShapeError,
            f"{metric}: weights have one number for each row, shape {shape_text(rows)}; received "
            f"{shape_text(weight.shape)}.",
        )


def merge_weighted_axes(weight: Any, *values: Any) -> tuple[Any, ...]:
    """Weights of several axes, such as of the elements of packed rows, as one axis of rows, and the values likewise."""
    axes = 0 if weight is None else len(weight.shape)
    if weight is None or axes < 2 or any(v.shape[:axes] != weight.shape for v in values):
        return (weight, *values)
    return (_reshape(weight, (product(weight.shape),)), *(_reshape(v, (-1, *v.shape[axes:])) for v in values))
