"""Metrics of predicted probabilities: log loss, perplexity, Brier score and calibration errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product
from wholestep.errors import DTypeError, OptionError, UsageError
from wholestep.losses.classification import class_rows, yes_or_no_values
from wholestep.metrics.array_functions import (
    X,
    floor,
    log_softmax,
    maximum,
    row_count,
    sigmoid,
    softmax,
    sum_by_index,
    where,
)
from wholestep.metrics.base import Array, States
from wholestep.metrics.means import Mean
from wholestep.metrics.reading import ArrayKind, OfScores, PredictionForm, Seen, check_range
from wholestep.metrics.row_buffers import KeptRows
from wholestep.metrics.rows import Reading


@dataclass(eq=False)
class OfProbabilities(OfScores):
    """The base class of metrics of probabilities: softmax or sigmoid of raw scores, unless `from_logits=False`."""

    from_logits: bool = True
    ignore_index: int | None = None

    def ignored(self, form: PredictionForm) -> int | None:
        """The class that is ignored: by the metric's own option, or the loss's."""
        return Reading(self, ignore_index=self.ignore_index).ignored(form)

    def _score_rows(self, prediction: X, target: X) -> Seen[X]:
        seen, meaning = self.see(prediction, target), self.meaning
        if seen.form is PredictionForm.CLASSES:
            fail(DTypeError, f"{self.kind} needs scores or probabilities, floats; received {ArrayKind.of(prediction)}.")
        if seen.form is PredictionForm.ROWS and self.ignore_index is not None:
            fail(DTypeError, f"{self.kind}: ignore_index needs classes as targets; received {ArrayKind.of(target)}.")
        if meaning is not None and meaning.probabilities:
            if self.from_logits:
                fail(
                    OptionError,
                    f"{self.kind} takes raw scores by default, and the loss takes the prediction for "
                    f"probabilities. Write ws.metrics.{type(self).__name__}(from_logits=False).",
                )
            return seen
        if meaning is not None and not meaning.logits:
            fail(
                UsageError,
                f"{self.kind} needs probabilities, and the scores of this loss are no logits. Leave the metric out.",
            )
        if meaning is not None and not self.from_logits:
            fail(
                OptionError,
                f"{self.kind}: from_logits=False is for probabilities, and the loss takes the prediction for raw "
                "scores. Leave it out.",
            )
        return seen

    def probabilities(self, seen: Seen[Any]) -> Any:
        """Probabilities in float64, of classes on the last axis or of each binary label."""
        x = seen.prediction.astype("float64")
        if not self.from_logits:
            return x
        return sigmoid(x) if seen.form is PredictionForm.EACH else softmax(x)

    def amounts(self, seen: Seen[Any], values: Any, weight: Any) -> Any:
        """The weight of each counted item in float64, in the shape of `values`; 0 for an ignored class."""
        amounts: Any = where(values > -1.0, 1.0, 0.0) if weight is None else self.spread(weight, seen.rows)
        ignored = self.ignored(seen.form)
        amounts = amounts.astype("float64")
        return amounts if ignored is None else where(seen.target != ignored, amounts, 0.0)


@dataclass(eq=False)
class LogLoss(OfProbabilities, Mean):
    """The negative log-probability of the target, averaged over rows; for binary labels, over all labels.

    Predictions are raw scores, or probabilities with `from_logits=False` (clipped to stay an epsilon away from 0 and 1,
    as in scikit-learn): `(..., C)` with classes `(...)` or probabilities `(..., C)`, or one for each target 0 or 1.

    Example: `ws.metrics.LogLoss()`.
    """

    kind: ClassVar[str] = "log_loss"
    higher_is_better: ClassVar[bool | None] = False

    # -- inside the step -----------------------------------------------------------------------------------------

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        seen = self._score_rows(prediction, target)
        ignored = self.ignored(seen.form)
        counted = None if ignored is None else seen.target != ignored
        labels = seen.target if counted is None else fn.where(counted, seen.target, 0)
        rows = self._rows(seen.form, seen.prediction, labels).astype("float64")
        if weight is not None:
            each = self.spread(weight, seen.rows).astype("float64")
            each = each if counted is None else fn.where(counted, each, 0.0)
            return {"sum": (rows * each).sum(), "weight": each.sum()}
        if counted is None:
            return {"sum": rows.sum(), "weight": row_count(seen.rows, "float64")}
        return {"sum": fn.where(counted, rows, 0.0).sum(), "weight": counted.astype("float64").sum()}

    def _rows(self, form: PredictionForm, prediction: Tensor, target: Tensor) -> Tensor:
        """The loss of each row, in the prediction's dtype; for scores, the node that cross entropy has recorded."""
        if form is PredictionForm.SCORES and self.from_logits:
            return class_rows(prediction, target)
        if form is PredictionForm.SCORES:
            t = fn.one_hot(target, int(prediction.shape[-1]), prediction.dtype)
        else:
            t = target if target.dtype.is_float else target.astype(prediction.dtype)
        if form is PredictionForm.EACH:
            if self.from_logits:
                return yes_or_no_values(prediction, t)
            p = _inside(prediction)
            return -(t * fn.log(p) + (1.0 - t) * fn.log(1.0 - p))
        logs = fn.log_softmax(prediction) if self.from_logits else fn.log(_inside(prediction))
        return -(t * logs).sum(-1)

    # -- on arrays -----------------------------------------------------------------------------------------------

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        seen = self._score_rows(prediction, target)
        ignored = self.ignored(seen.form)
        weights = np.ones(seen.target.shape[: len(seen.rows)]) if weight is None else self.spread(weight, seen.rows)
        each = weights.astype(np.float64)
        counted = np.ones(each.shape, bool) if ignored is None else seen.target != ignored
        rows = self._row_values(seen.form, seen.prediction[counted], seen.target[counted])
        each = each[counted]
        return {"sum": np.asarray((rows * each).sum()), "weight": np.asarray(each.sum())}

    def _row_values(self, form: PredictionForm, prediction: Array, target: Array) -> Array:
        eps = np.finfo(prediction.dtype).eps
        x = prediction.astype(np.float64)
        if form is PredictionForm.EACH:
            if ArrayKind.of(target).whole:
                check_range(self.kind, "targets", target.reshape(-1).astype(np.int64), 2)
            if self.from_logits:
                return np.asarray(np.maximum(x, 0.0) - x * target + np.log1p(np.exp(-np.abs(x))))
            p = np.clip(x, eps, 1.0 - eps)
            return np.asarray(-(target * np.log(p) + (1.0 - target) * np.log(1.0 - p)))
        logs = log_softmax(x) if self.from_logits else np.log(np.clip(x, eps, 1.0 - eps))
        if form is PredictionForm.ROWS:
            return np.asarray(-(target * logs).sum(-1))
        check_range(self.kind, "labels", target.reshape(-1), prediction.shape[-1])
        return -np.take_along_axis(logs, target[..., None].astype(np.int64), -1)[..., 0]


@dataclass(eq=False)
class Perplexity(LogLoss):
    """The perplexity exp(log loss): the number of equally likely classes with the same uncertainty.

    Example: `ws.metrics.Perplexity(ignore_index=-100)`.
    """

    kind: ClassVar[str] = "perplexity"
    higher_is_better: ClassVar[bool | None] = False

    def result(self, states: States) -> float:
        with np.errstate(over="ignore"):  # the result is infinite if the model has diverged
            return float(np.exp(super().result(states)))


@dataclass(eq=False)
class Brier(OfProbabilities, Mean):
    """The Brier score (1950): Σ (p - y)² over classes, averaged over rows; for binary labels (p - y)², over all labels.

    Predictions are raw scores, or probabilities with `from_logits=False`; y is 1 for the true class, or a probability.

    Example: `ws.metrics.Brier()`.
    """

    kind: ClassVar[str] = "brier"
    higher_is_better: ClassVar[bool | None] = False

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        seen = self._score_rows(prediction, target)
        p: Any = self.probabilities(seen)
        t: Any = seen.target
        if seen.form is PredictionForm.SCORES:
            t = where(t.reshape((*t.shape, 1)) == np.arange(int(p.shape[-1]), dtype=np.int32), 1.0, 0.0)
        error: Any = p - t.astype("float64")
        rows = error * error if seen.form is PredictionForm.EACH else (error * error).sum(-1)
        amounts = self.amounts(seen, rows, weight)
        return {"sum": (rows * amounts).sum(), "weight": amounts.sum()}


@dataclass(eq=False)
class ECE(OfProbabilities):
    """The expected calibration error (arXiv:1706.04599): Σ nᵢ/n·|accuracyᵢ - confidenceᵢ| over bins of confidence.

    The confidence of a row is the probability of its predicted class; `bins` is the number of equal parts of (0, 1].
    Predictions are raw scores, or probabilities with `from_logits=False`.

    Example: `ws.metrics.ECE(bins=15)`.
    """

    kind: ClassVar[str] = "ece"
    higher_is_better: ClassVar[bool | None] = False
    bins: int = field(default=15, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_bins(self.kind, self.bins)

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        seen = self._score_rows(prediction, target)
        sure, right = self._confidence_and_hits(seen)
        amounts = self.amounts(seen, sure, weight)
        place = floor(sure * float(self.bins))
        on_edge = place == sure * float(self.bins)  # a value on the edge belongs to the lower bin
        index = maximum(where(on_edge, place - 1.0, place), 0.0).astype("int32")
        parts = {"count": amounts, "confidence": amounts * sure, "right": where(right, amounts, 0.0)}
        return {part: sum_by_index(value, index, self.bins) for part, value in parts.items()}

    def _confidence_and_hits(self, seen: Seen[Any]) -> tuple[Any, Any]:
        """The confidence of each row in float64, and whether the row is correct."""
        p, t = self.probabilities(seen), seen.target
        if seen.form is PredictionForm.EACH:
            yes = t.astype("float64") > 0.5
            return maximum(p, 1.0 - p), (p > 0.5) == yes
        true = t.argmax(-1) if seen.form is PredictionForm.ROWS else t
        return p.max(-1), p.argmax(-1).astype(true.dtype) == true

    def result(self, states: States) -> float:
        total = states["count"].sum()
        return float(np.abs(states["right"] - states["confidence"]).sum() / total) if total > 0 else float("nan")


@dataclass(eq=False)
class MCE(ECE):
    """The maximum calibration error (arXiv:1706.04599): the largest |accuracyᵢ - confidenceᵢ| of all bins with rows.

    Example: `ws.metrics.MCE(bins=15)`.
    """

    kind: ClassVar[str] = "mce"
    higher_is_better: ClassVar[bool | None] = False

    def result(self, states: States) -> float:
        count = states["count"]
        gaps = np.abs(states["right"] - states["confidence"]) / np.where(count > 0, count, 1.0)
        return float(gaps.max()) if count.sum() > 0 else float("nan")


@dataclass(eq=False)
class AdaptiveCalibrationError(OfProbabilities, KeptRows):
    """The adaptive calibration error (arXiv:1904.01685): the calibration error of every class, in bins with equal
    numbers of rows, averaged over classes.

    The bins depend on all probabilities of the epoch, which are stored; `capacity` is the number of rows, which `fit`
    sets.  With row weights, bins have equal weight.

    Example: `ws.metrics.AdaptiveCalibrationError(bins=15)`.
    """

    kind: ClassVar[str] = "ace"
    higher_is_better: ClassVar[bool | None] = False
    bins: int = field(default=15, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_bins(self.kind, self.bins)

    def rows_each(self, prediction: Tensor, target: Tensor) -> Extent:
        return product(self._score_rows(prediction, target).rows[1:])

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        seen = self._score_rows(prediction, target)
        rows: Any = (product(seen.rows),)
        p, t = self.probabilities(seen), seen.target
        weights = self.amounts(seen, p if seen.form is PredictionForm.EACH else p.max(-1), weight)
        if seen.form is PredictionForm.ROWS:
            t = t.argmax(-1)
        p = p.reshape((*rows, -1 if isinstance(p, np.ndarray) else product(p.shape[len(seen.rows) :])))
        return {"scores": p, "labels": t.reshape(rows).astype("int32"), "weights": weights.reshape(rows)}

    def result(self, states: States) -> float:
        parts = self._all_rows(states)
        if not parts or not parts["weights"].sum() > 0:
            return float("nan")
        used = parts["weights"] > 0
        p, labels, weights = (parts[part][used] for part in ("scores", "labels", "weights"))
        classes = [1] if p.shape[1] == 1 else range(p.shape[1])
        gaps = [self._error(p[:, i], labels == c, weights) for i, c in enumerate(classes)]
        return float(np.mean(gaps))

    def _error(self, p: Array, right: Array, weight: Array) -> float:
        order = np.argsort(p, kind="stable")
        p, right, weight = p[order], right[order], weight[order]
        middle = (np.cumsum(weight) - weight / 2) / weight.sum()  # the quantile of each row
        gaps = np.bincount((middle * self.bins).astype(np.int64).clip(0, self.bins - 1), weight * (right - p))
        return float(np.abs(gaps).sum() / weight.sum())


def _check_bins(kind: str, bins: object) -> None:
    if not isinstance(bins, int) or isinstance(bins, bool) or bins < 1:
        fail(OptionError, f"{kind}: bins must be an integer of at least 1; received {bins!r}.")


def _inside(p: Tensor) -> Tensor:
    eps = p.dtype.eps
    return fn.minimum(fn.maximum(p, eps), 1.0 - eps)
