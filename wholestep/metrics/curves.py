"""The ROC curve and the curve of precision and recall, whose areas `RocAuc` and `AveragePrecision` are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.metrics.base import Array, Result
from wholestep.metrics.ranking import Curve, Ranked


@dataclass(eq=False)
class Drawn(Ranked):
    """A curve is an array (3, points); several are one of (C, 3, points), in which shorter ones repeat their end."""

    def of_classes(self, scores: Sequence[Result]) -> Result:
        curves = [np.asarray(s) for s in scores]
        longest = max(c.shape[-1] for c in curves)
        return np.stack([np.pad(c, ((0, 0), (0, longest - c.shape[-1])), "edge") for c in curves])


@dataclass(eq=False)
class RocCurve(Drawn):
    """The ROC curve as an array (3, points): the false positive rate, the true positive rate, and the score at or above
    which the answer is yes, from the highest down; the first point, (0, 0), has a score of infinity.

    Points between two others on a line are left out, as scikit-learn does.  Rates are NaN where a class has no rows, or
    all of them.  Of several classes or labels (C, 3, points).

    Example: `ws.metrics.RocCurve(capacity=1000)`.
    """

    kind: ClassVar[str] = "roc_curve"
    higher_is_better: ClassVar[bool | None] = None

    def score(self, curve: Curve) -> Array:
        hits, misses, scores = curve.hits, curve.misses, curve.scores
        if len(hits) > 2:
            bends = np.logical_or(np.diff(hits, 2), np.diff(misses, 2))
            kept = np.flatnonzero(np.r_[True, bends, True])
            hits, misses, scores = hits[kept], misses[kept], scores[kept]
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = [np.append(0.0, counts) / counts[-1] for counts in (misses, hits)]
        return np.stack([*rates, np.append(np.inf, scores)])


@dataclass(eq=False)
class PrecisionRecallCurve(Drawn):
    """Precision, recall and the score at or above which the answer is yes, as an array (3, points), from the lowest
    score up; the last point, (1, 0), has a score of infinity.  Of several classes or labels (C, 3, points).

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
