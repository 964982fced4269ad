"""Metrics of ranked scores: ROC-AUC, average precision and their curves.  They store all scores of an epoch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product
from wholestep.errors import DTypeError, InputError, OptionError, UsageError
from wholestep.metrics.array_functions import X, softmax
from wholestep.metrics.base import Array, Result, States
from wholestep.metrics.reading import ArrayKind, OfScores, PredictionForm, Seen, check_range
from wholestep.metrics.row_buffers import KeptRows
from wholestep.metrics.rows import Reading

NEITHER = -1  # code of a target that is neither 0 nor 1


@dataclass(eq=False)
class Ranked(OfScores, KeptRows):
    """The base class of metrics of the ranking of all scores of an epoch.

    Scores are `(...)` for targets 0 and 1, or `(..., C)` for classes `(...)`.  With two classes the difference of their
    scores is ranked; with more, each class is ranked against all others, and the result is the mean over classes.  More
    than two columns are raw scores, and rows are compared by their probabilities (softmax), unless `from_logits=False`.
    Each of several labels (N, L) is ranked separately, and the result is their mean.

    `capacity` is the number of rows of an epoch, which `fit` sets: see `KeptRows`.
    """

    stored_item: ClassVar[str] = "score"

    from_logits: bool = True
    ignore_index: int | None = field(default=None, kw_only=True)

    @abstractmethod
    def score(self, curve: Curve) -> Result:
        """The metric of one class against the others."""

    def of_classes(self, scores: Sequence[Result]) -> Result:
        """The metric of several classes or labels."""
        return float(np.mean(np.asarray(scores)))

    # -- inside the step -----------------------------------------------------------------------------------------

    def rows_each(self, prediction: Tensor, target: Tensor) -> Extent:
        pair = self._rank_scores(prediction, target)
        return 1 if pair.questions > 1 else product(pair.rows[1:])

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        seen = self._rank_scores(prediction, target)
        p, t, asks = seen.prediction, seen.target, seen.questions > 1
        flat = tuple(p.shape[:1]) if asks else (product(seen.rows),)
        rows = tuple(p.shape) if asks else flat
        if seen.form is PredictionForm.EACH:
            scores = p.reshape(rows)
            labels = t.astype("int32") if self._plain(ArrayKind.of(t)) else self._binary_labels(t)
        else:
            scores = self._columns(p).reshape((*flat, *self._columns(p).shape[len(seen.rows) :]))
            labels = (t.argmax(-1) if seen.form is PredictionForm.ROWS else t).astype("int32")
        counted = None if self._ignore_class(seen) is None else labels != self._ignore_class(seen)
        if counted is not None:
            labels = fn.where(counted, labels, 0)
        out = {"scores": scores, "labels": labels.reshape(rows)}
        if weight is not None or counted is not None:
            each = self._each(seen, weight)
            each = each if counted is None else fn.where(counted, 1.0 if each is None else each, 0.0).astype("float64")
            assert each is not None
            out["weights"] = each.reshape(flat)
        return out

    def _each(self, seen: Seen[Tensor], weight: Tensor | None) -> Tensor | None:
        if weight is None:
            return None
        return self.spread(weight, seen.rows[:1] if seen.questions > 1 else seen.rows).astype("float64")

    def _columns(self, p: X) -> X:
        """The scores of classes: two columns become one score, more columns are one score per class."""
        if p.shape[-1] != 2:
            return p
        return p[..., 1] - p[..., 0] if self.from_logits else p[..., 1]

    # -- on arrays -----------------------------------------------------------------------------------------------

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        seen = self._rank_scores(prediction, target)
        p, t, asks = seen.prediction, seen.target, seen.questions > 1
        if seen.form is PredictionForm.EACH:
            scores = p if asks else p.reshape(-1)
            labels = t.astype(np.int64) if self._plain(ArrayKind.of(t)) else self._binary_labels_of_arrays(t)
            labels = labels if asks else labels.reshape(-1)
        else:
            columns = self._columns(p)
            scores = columns.reshape(-1, *columns.shape[len(seen.rows) :])
            labels = (t.argmax(-1) if seen.form is PredictionForm.ROWS else t).reshape(-1)
        ignored = self._ignore_class(seen)
        counted = np.ones(labels.shape, bool) if ignored is None else labels != ignored
        classes = 2 if seen.form is PredictionForm.EACH else p.shape[-1]
        if (labels == NEITHER).any() and not self._plain(ArrayKind.of(t)):
            fail(InputError, self._neither())
        check_range(self.kind, "labels", labels[counted].reshape(-1), classes)
        out = {"scores": scores, "labels": np.where(counted, labels, 0).astype(np.int32)}
        if weight is not None or ignored is not None:
            rows = seen.rows[:1] if asks else seen.rows
            each = np.ones(rows) if weight is None else self.spread(weight, rows)
            out["weights"] = np.where(counted if not asks else True, each.reshape(-1), 0.0).astype(np.float64)
        return out

    @property
    def _answers(self) -> tuple[int, int]:
        """The values of binary targets: negative, positive."""
        return (-1, 1) if self.meaning is not None and self.meaning.signs else (0, 1)

    def _plain(self, target: ArrayKind) -> bool:
        return target.whole and self._answers == (0, 1)

    def _binary_labels(self, t: Tensor) -> Tensor:
        """Binary targets as 0 and 1, or NEITHER, which `result` refuses: a probability is neither positive nor
        negative.
        """
        no, yes = self._answers
        return fn.where(t == yes, 1, fn.where(t == no, 0, NEITHER)).astype("int32")

    def _binary_labels_of_arrays(self, t: Array) -> Array:
        """`_binary_labels` of arrays."""
        no, yes = self._answers
        return np.where(t == yes, 1, np.where(t == no, 0, NEITHER))

    def _ignore_class(self, seen: Seen[Any]) -> int | None:
        return Reading(self, ignore_index=self.ignore_index).ignored(seen.form)

    def _rank_scores(self, prediction: X, target: X) -> Seen[X]:
        seen = self.see(prediction, target)
        if seen.form is PredictionForm.CLASSES:
            fail(
                DTypeError,
                f"{self.kind} needs scores (floats) and classes (integers); received {ArrayKind.of(prediction)} and "
                f"{ArrayKind.of(target)}.",
            )
        if seen.questions > 1 and self.ignore_index is not None:
            fail(OptionError, f"{self.kind}: ignore_index is for classes; weigh rows of several labels instead.")
        several = seen.form is not PredictionForm.EACH and int(seen.prediction.shape[-1]) > 2
        if several and self.from_logits and self.meaning is not None and not self.meaning.logits:
            fail(
                UsageError,
                f"{self.kind} compares probabilities of classes, and the scores of this loss are no logits. To rank "
                f"the scores as they are: ws.metrics.{type(self).__name__}(from_logits=False).",
            )
        return seen

    def _neither(self) -> str:
        no, yes = self._answers
        return (
            f"{self.kind} needs binary targets, {no} and {yes}, or class indices; received others. Convert them, "
            f"(y > 0.5).astype('int32'), or leave the metric out."
        )

    # -- both ----------------------------------------------------------------------------------------------------

    def result(self, states: States) -> Result:
        parts = self._all_rows(states)
        if not parts:
            return float("nan")
        scores, labels = parts["scores"].astype(np.float64), parts["labels"]
        weights = parts.get("weights", np.ones(len(labels)))
        if labels.min() < 0 or labels.max() >= (2 if scores.ndim == 1 or labels.ndim == 2 else scores.shape[1]):
            fail(InputError, self._neither())
        if np.isnan(scores).any():
            return float("nan")
        if scores.ndim == 1:
            return self.score(Curve.of(scores, labels == 1, weights))
        if labels.ndim == 1 and self.from_logits:
            scores = softmax(scores)
        is_class = [labels[:, c] == 1 if labels.ndim == 2 else labels == c for c in range(scores.shape[1])]
        return self.of_classes([self.score(Curve.of(scores[:, c], yes, weights)) for c, yes in enumerate(is_class)])


@dataclass(frozen=True)
class Curve:
    """The weight of positive and of negative rows at or above each distinct score, in decreasing order."""

    hits: Array
    misses: Array
    scores: Array

    @staticmethod
    def of(scores: Array, positive: Array, weight: Array) -> Curve:
        order = np.argsort(-scores, kind="stable")
        ordered = scores[order]
        last = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)  # the last of each run of equal scores
        w, yes = weight[order], positive[order]
        return Curve(np.cumsum(w * yes)[last], np.cumsum(w * ~yes)[last], ordered[last])


@dataclass(eq=False)
class RocAuc(Ranked):
    """The area under the ROC curve: the probability that a positive row has a higher score than a negative one.

    NaN where a class has no rows, or all of them (Hanley and McNeil, 1982).

    Example: `ws.metrics.RocAuc(capacity=1000)`.
    """

    kind: ClassVar[str] = "roc_auc"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, curve: Curve) -> float:
        if not (curve.hits[-1] > 0 and curve.misses[-1] > 0):
            return float("nan")
        x = np.append(0.0, curve.misses / curve.misses[-1])
        y = np.append(0.0, curve.hits / curve.hits[-1])
        return float((np.diff(x) * (y[1:] + y[:-1])).sum() / 2)


@dataclass(eq=False)
class AveragePrecision(Ranked):
    """The sum of (recallᵢ - recallᵢ₋₁)·precisionᵢ over the distinct scores in decreasing order; 0 for a class without
    rows.

    Example: `ws.metrics.AveragePrecision(capacity=1000)`.
    """

    kind: ClassVar[str] = "average_precision"
    higher_is_better: ClassVar[bool | None] = True

    def score(self, curve: Curve) -> float:
        if not curve.hits[-1] > 0:
            return 0.0
        seen = curve.hits + curve.misses
        precision = np.divide(curve.hits, seen, out=np.zeros_like(seen), where=seen > 0)
        return float((np.diff(np.append(0.0, curve.hits / curve.hits[-1])) * precision).sum())


# -- curves ----------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class RankedCurve(Ranked):
    """The base class of curves: an array (3, points); several curves are (C, 3, points), in which shorter ones repeat
    their end.
    """

    def of_classes(self, scores: Sequence[Result]) -> Result:
        curves = [np.asarray(s) for s in scores]
        longest = max(c.shape[-1] for c in curves)
        return np.stack([np.pad(c, ((0, 0), (0, longest - c.shape[-1])), "edge") for c in curves])


@dataclass(eq=False)
class RocCurve(RankedCurve):
    """The ROC curve as an array (3, points): the false positive rate, the true positive rate, and the score threshold,
    in decreasing order; the first point, (0, 0), has the threshold infinity.

    Points on the line between two others are omitted, as in scikit-learn.  Rates are NaN if a class has no rows, or
    all of them.  For several classes or labels the array is (C, 3, points).

    Example: `ws.metrics.RocCurve(capacity=1000)`.
    """

    kind: ClassVar[str] = "roc_curve"
    higher_is_better: ClassVar[bool | None] = None

    def score(self, curve: Curve) -> Array:
        hits, misses, scores = curve.hits, curve.misses, curve.scores
        if len(hits) > 2:
            bends = np.logical_or(np.diff(hits, 2), np.diff(misses, 2))
            corners = np.flatnonzero(np.r_[True, bends, True])
            hits, misses, scores = hits[corners], misses[corners], scores[corners]
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = [np.append(0.0, counts) / counts[-1] for counts in (misses, hits)]
        return np.stack([*rates, np.append(np.inf, scores)])


@dataclass(eq=False)
class PrecisionRecallCurve(RankedCurve):
    """Precision, recall and the score threshold as an array (3, points), by increasing threshold; the last point, (1,
    0), has the threshold infinity.  For several classes or labels the array is (C, 3, points).

    Example: `ws.metrics.PrecisionRecallCurve(capacity=1000)`.
    """

    kind: ClassVar[str] = "pr_curve"
    higher_is_better: ClassVar[bool | None] = None

    def score(self, curve: Curve) -> Array:
        seen = curve.hits + curve.misses
        precision = np.divide(curve.hits, seen, out=np.zeros_like(seen), where=seen > 0)
        recall = curve.hits / curve.hits[-1] if curve.hits[-1] > 0 else np.ones_like(seen)
        ends = ((precision, 1.0), (recall, 0.0), (curve.scores, np.inf))
        return np.stack([np.append(values[::-1], end) for values, end in ends])
