"""The calibration of predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError
from wholestep.metrics.base import Array, States
from wholestep.metrics.likelihood import OfProbabilities, log_softmax
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

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        seen = self._score_rows(prediction, target)
        sure, right = self._confidence_and_hits(seen)
        flat = (product(seen.rows),)
        amounts = fn.where(sure > -1.0, 1.0, 0.0) if weight is None else self.spread(weight, seen.rows)
        amounts = amounts.astype("float64")
        ignored = self.ignored(seen.form)
        if ignored is not None:
            amounts = fn.where(seen.target != ignored, amounts, 0.0)
        place = fn.floor(sure * float(self.bins))
        on_edge = place == sure * float(self.bins)  # a value on the edge belongs to the lower bin
        index = fn.maximum(fn.where(on_edge, place - 1.0, place), 0.0).astype("int32").reshape(flat)
        parts = {"count": amounts, "confidence": amounts * sure, "right": fn.where(right, amounts, 0.0)}
        return {part: fn.scatter_add(value.reshape(flat), index, self.bins) for part, value in parts.items()}

    def _confidence_and_hits(self, seen: Seen[Tensor]) -> tuple[Tensor, Tensor]:
        """The confidence of each row in float64, and whether the row is correct."""
        x, t = seen.prediction.astype("float64"), seen.target
        if seen.form is PredictionForm.EACH:
            p = fn.sigmoid(x) if self.from_logits else x
            yes = t.astype("float64") > 0.5
            return fn.maximum(p, 1.0 - p), (p > 0.5) == yes
        p = fn.softmax(x) if self.from_logits else x
        true = t.argmax(-1) if seen.form is PredictionForm.ROWS else t
        return p.max(-1), p.argmax(-1).astype(true.dtype) == true

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        seen = self._score_rows(prediction, target)
        x, t = seen.prediction.astype(np.float64), seen.target
        if seen.form is PredictionForm.EACH:
            p = 1.0 / (1.0 + np.exp(-x)) if self.from_logits else x
            sure, right = np.maximum(p, 1.0 - p), (p > 0.5) == (t > 0.5)
        else:
            p = np.exp(log_softmax(x)) if self.from_logits else x
            true = t.argmax(-1) if seen.form is PredictionForm.ROWS else t
            sure, right = p.max(-1), p.argmax(-1) == true
        amounts = np.ones(sure.shape) if weight is None else self.spread(weight, seen.rows).astype(np.float64)
        ignored = self.ignored(seen.form)
        if ignored is not None:
            amounts = np.where(t != ignored, amounts, 0.0)
        index = np.clip(np.ceil(sure * self.bins) - 1, 0, self.bins - 1).astype(np.int64).reshape(-1)
        parts = {"count": amounts, "confidence": amounts * sure, "right": np.where(right, amounts, 0.0)}
        return {part: np.bincount(index, value.reshape(-1), self.bins) for part, value in parts.items()}

    def result(self, states: States) -> float:
        total = states["count"].sum()
        return float(np.abs(states["right"] - states["confidence"]).sum() / total) if total > 0 else float("nan")
