"""The calibration of predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.metrics.array_functions import X, floor, maximum, sigmoid, softmax, sum_by_index, where
from wholestep.metrics.base import States
from wholestep.metrics.likelihood import OfProbabilities
from wholestep.metrics.reading import PredictionForm, Seen


@dataclass(eq=False)
class ECE(OfProbabilities):
    """The expected calibration error (arXiv:1706.04599): Σ nᵢ/n·|accuracyᵢ - confidenceᵢ| over bins of confidence.

    The confidence of a row is the probability of its predicted class; bins are
    `bins` equal parts of (0, 1].  Predictions are raw scores, or probabilities with `from_logits=False`.

    Example: `ws.metrics.ECE(bins=15)`.
    """

    kind: ClassVar[str] = "ece"
    higher_is_better: ClassVar[bool | None] = False
    bins: int = field(default=15, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.bins, int) or isinstance(self.bins, bool) or self.bins < 1:
            fail(OptionError, f"ece: bins is an integer of at least 1; received {self.bins!r}.")

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        seen = self._score_rows(prediction, target)
        sure, right = self._confidence_and_hits(seen)
        amounts: Any = where(sure > -1.0, 1.0, 0.0) if weight is None else self.spread(weight, seen.rows)
        amounts = amounts.astype("float64")
        ignored = self.ignored(seen.form)
        if ignored is not None:
            amounts = where(seen.target != ignored, amounts, 0.0)
        place = floor(sure * float(self.bins))
        on_edge = place == sure * float(self.bins)  # a value on the edge belongs to the lower bin
        index = maximum(where(on_edge, place - 1.0, place), 0.0).astype("int32")
        parts = {"count": amounts, "confidence": amounts * sure, "right": where(right, amounts, 0.0)}
        return {part: sum_by_index(value, index, self.bins) for part, value in parts.items()}

    def _confidence_and_hits(self, seen: Seen[Any]) -> tuple[Any, Any]:
        """The confidence of each row in float64, and whether the row is correct."""
        x, t = seen.prediction.astype("float64"), seen.target
        if seen.form is PredictionForm.EACH:
            p = sigmoid(x) if self.from_logits else x
            yes = t.astype("float64") > 0.5
            return maximum(p, 1.0 - p), (p > 0.5) == yes
        p = softmax(x) if self.from_logits else x
        true = t.argmax(-1) if seen.form is PredictionForm.ROWS else t
        return p.max(-1), p.argmax(-1).astype(true.dtype) == true

    def result(self, states: States) -> float:
        total = states["count"].sum()
        return float(np.abs(states["right"] - states["confidence"]).sum() / total) if total > 0 else float("nan")
