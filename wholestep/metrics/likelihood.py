"""How probable the truth was: log loss and perplexity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import DTypeError
from wholestep.losses import binary_cross_entropy_with_logits_loss, cross_entropy
from wholestep.metrics.base import Array, States
from wholestep.metrics.means import Mean
from wholestep.metrics.reading import Form, Kind, check_range, check_weight, form_of, row_count


@dataclass(eq=False)
class LogLoss(Mean):
    """-log of the probability of the truth, averaged over rows.

    Predictions are raw scores, or probabilities with `from_logits=False` (kept an epsilon away from 0 and 1, as
    scikit-learn does): `(..., C)` with classes `(...)` or probabilities `(..., C)`, or one for each target 0 or 1.

    Example: `ws.metrics.LogLoss()`.
    """

    kind: ClassVar[str] = "log_loss"
    from_logits: bool = True
    ignore_index: int | None = None

    # -- inside the step -----------------------------------------------------------------------------------------

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        form = self._form(Kind.of(prediction), Kind.of(target))
        rows_shape = prediction.shape if form is Form.BINARY else prediction.shape[:-1]
        counted = None if self.ignore_index is None else target != self.ignore_index
        labels = target if counted is None else fn.where(counted, target, 0)
        rows = self._rows(form, prediction, labels).astype("float64")
        if weight is not None:
            check_weight(self.kind, Kind.of(weight), rows_shape)
            each = weight.astype("float64") if counted is None else fn.where(counted, weight.astype("float64"), 0.0)
            return {"sum": (rows * each).sum(), "weight": each.sum()}
        if counted is None:
            return {"sum": rows.sum(), "weight": row_count(rows_shape, "float64")}
        return {"sum": fn.where(counted, rows, 0.0).sum(), "weight": counted.astype("float64").sum()}

    def _rows(self, form: Form, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each row, in the prediction's dtype: of scores, the very node that cross entropy has made."""
        if form is Form.BINARY:
            t = target.astype(prediction.dtype)
            if self.from_logits:
                return binary_cross_entropy_with_logits_loss(prediction, t, reduction="none")
            p = _inside(prediction)
            return -(t * fn.log(p) + (1.0 - t) * fn.log(1.0 - p))
        if self.from_logits:
            return cross_entropy(prediction, target, reduction="none")
        if form is Form.SCORES:
            target = fn.one_hot(target, int(prediction.shape[-1]), prediction.dtype)
        return -(target * fn.log(_inside(prediction))).sum(-1)

    # -- on arrays -----------------------------------------------------------------------------------------------

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        form = self._form(Kind.of(prediction), Kind.of(target))
        rows_shape = target.shape if form in (Form.SCORES, Form.BINARY) else target.shape[:-1]
        if weight is not None:
            check_weight(self.kind, Kind.of(weight), rows_shape)
        counted = np.ones(rows_shape, bool) if self.ignore_index is None else target != self.ignore_index
        rows = self._row_values(form, prediction[counted], target[counted])
        each = np.ones(rows.shape) if weight is None else weight[counted].astype(np.float64)
        return {"sum": np.asarray((rows * each).sum()), "weight": np.asarray(each.sum())}

    def _row_values(self, form: Form, prediction: Array, target: Array) -> Array:
        eps = np.finfo(prediction.dtype).eps
        x = prediction.astype(np.float64)
        if form is Form.BINARY:
            if Kind.of(target).whole:
                check_range(self.kind, "targets", target.reshape(-1), 2)
            if self.from_logits:
                return np.asarray(np.maximum(x, 0.0) - x * target + np.log1p(np.exp(-np.abs(x))))
            p = np.clip(x, eps, 1.0 - eps)
            return np.asarray(-(target * np.log(p) + (1.0 - target) * np.log(1.0 - p)))
        logs = log_softmax(x) if self.from_logits else np.log(np.clip(x, eps, 1.0 - eps))
        if form is Form.ROWS:
            return np.asarray(-(target * logs).sum(-1))
        check_range(self.kind, "labels", target.reshape(-1), prediction.shape[-1])
        return -np.take_along_axis(logs, target[..., None].astype(np.int64), -1)[..., 0]

    def _form(self, prediction: Kind, target: Kind) -> Form:
        form = form_of(self.kind, prediction, target)
        if form is Form.CLASSES:
            fail(DTypeError, f"{self.kind} needs scores or probabilities, floats; received {prediction}.")
        if form is Form.ROWS and self.ignore_index is not None:
            fail(DTypeError, f"{self.kind}: ignore_index needs classes as targets; received {target}.")
        return form


@dataclass(eq=False)
class Perplexity(LogLoss):
    """exp(log loss): how many equally likely classes would be as uncertain.

    Example: `ws.metrics.Perplexity(ignore_index=-100)`.
    """

    kind: ClassVar[str] = "perplexity"

    def result(self, states: States) -> float:
        with np.errstate(over="ignore"):  # of a model that is lost: infinite
            return float(np.exp(super().result(states)))


def log_softmax(x: Array) -> Array:
    """x - max - log Σ exp(x - max) along the last axis."""
    shifted = x - x.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def _inside(p: Tensor) -> Tensor:
    eps = float(np.finfo(p.dtype.numpy).eps)
    return fn.minimum(fn.maximum(p, eps), 1.0 - eps)
