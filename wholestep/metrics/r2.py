"""R², the part of the targets' variance that predictions explain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.means import check_numbers
from wholestep.metrics.reading import ArrayKind, check_weight, row_count

_TINY = 1e-300


@dataclass(eq=False)
class R2(Metric):
    """1 - Σ (t - p)² / Σ (t - mean t)², averaged over columns; NaN for fewer than two rows.

    The spread around the mean is kept as (weight, mean, sum of squares) and joined by the rule of Chan, Golub and
    LeVeque (1979): the difference of two large sums would lose its digits where targets are far from 0.  Where all
    targets are equal the result is 1 for perfect predictions and 0 for others, as scikit-learn says.

    Example: `ws.metrics.R2()`.
    """

    kind: ClassVar[str] = "r2"
    higher_is_better: ClassVar[bool | None] = True

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        t = target.astype("float64")  # (N, ...)
        error = prediction.astype("float64") - t
        if weight is None:
            total = row_count(t.shape[:1], "float64")
            mean = t.sum(0) / fn.maximum(total, _TINY)
            spread, wrong = ((t - mean) * (t - mean)).sum(0), (error * error).sum(0)
        else:
            check_weight(self.kind, ArrayKind.of(weight), t.shape[:1])
            flat = weight.astype("float64")
            total = flat.sum()
            w = flat.reshape((*flat.shape, *(1 for _ in t.shape[1:])))
            mean = (w * t).sum(0) / fn.maximum(total, _TINY)
            spread, wrong = (w * (t - mean) * (t - mean)).sum(0), (w * error * error).sum(0)
        return {"rows": row_count(t.shape[:1]), "weight": total, "mean": mean, "spread": spread, "error": wrong}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        t = target.astype(np.float64)
        if weight is not None:
            check_weight(self.kind, ArrayKind.of(weight), t.shape[:1])
        flat = np.ones(len(t)) if weight is None else weight.astype(np.float64)
        w = flat.reshape((-1, *(1 for _ in t.shape[1:])))
        mean = (w * t).sum(0) / max(flat.sum(), _TINY)
        spread, wrong = (w * (t - mean) ** 2).sum(0), (w * (prediction - t) ** 2).sum(0)
        parts = {"rows": len(t), "weight": flat.sum(), "mean": mean, "spread": spread, "error": wrong}
        return {part: np.asarray(value) for part, value in parts.items()}

    def joined(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The mean of both, and the spread around it: spread + spread' + (mean' - mean)²·w·w' / (w + w')."""
        total = old["weight"] + new["weight"]
        share = new["weight"] / (fn.maximum if isinstance(total, Tensor) else np.maximum)(total, _TINY)
        away = new["mean"] - old["mean"]
        return {
            "rows": old["rows"] + new["rows"],
            "weight": total,
            "mean": old["mean"] + away * share,
            "spread": old["spread"] + new["spread"] + away * away * (old["weight"] * share),
            "error": old["error"] + new["error"],
        }

    def result(self, states: States) -> float:
        if states["rows"] < 2:
            return float("nan")
        error, spread = np.atleast_1d(states["error"]), np.atleast_1d(states["spread"])
        constant = spread == 0
        explained = 1.0 - error / np.where(constant, 1.0, spread)
        return float(np.where(constant, (error == 0).astype(np.float64), explained).mean())
