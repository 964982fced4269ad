"""How predictions go with targets: explained variance, and the correlations of Pearson and Spearman."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.means import check_numbers
from wholestep.metrics.reading import ArrayKind, X, check_weight, row_count
from wholestep.metrics.row_buffers import KeptRows

_TINY = 1e-300


@dataclass(eq=False)
class Paired(Metric):
    """Two numbers of each row, a and b: how each is spread around its mean, and both together, column by column.

    Means and spreads are joined by the rule of Chan, Golub and LeVeque (1979), as those of `R2` are: differences of
    large sums would lose their digits.
    """

    @abstractmethod
    def pair(self, prediction: X, target: X) -> tuple[X, X]:
        """a and b"""

    @abstractmethod
    def of_columns(self, a: Array, b: Array, joint: Array) -> Array:
        """The metric of each column, from Σ w·(a - ā)², Σ w·(b - b̄)² and Σ w·(a - ā)·(b - b̄)."""

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        a, b = self.pair(prediction.astype("float64"), target.astype("float64"))  # (N, ...)
        total = row_count(a.shape[:1], "float64")
        w: Tensor | float = 1.0
        if weight is not None:
            check_weight(self.kind, ArrayKind.of(weight), a.shape[:1])
            flat = weight.astype("float64")
            w, total = flat.reshape((*flat.shape, *(1 for _ in a.shape[1:]))), flat.sum()
        means = [(w * x).sum(0) / fn.maximum(total, _TINY) for x in (a, b)]
        away = [x - mean for x, mean in zip((a, b), means, strict=True)]
        return {
            "rows": row_count(a.shape[:1]),
            "weight": total,
            "mean_a": means[0],
            "mean_b": means[1],
            "spread_a": (w * away[0] * away[0]).sum(0),
            "spread_b": (w * away[1] * away[1]).sum(0),
            "joint": (w * away[0] * away[1]).sum(0),
        }

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        if weight is not None:
            check_weight(self.kind, ArrayKind.of(weight), target.shape[:1])
        a, b = self.pair(prediction.astype(np.float64), target.astype(np.float64))
        flat = np.ones(len(a)) if weight is None else weight.astype(np.float64)
        w = flat.reshape((-1, *(1 for _ in a.shape[1:])))
        mean_a, mean_b = ((w * x).sum(0) / max(flat.sum(), _TINY) for x in (a, b))
        parts = {
            "rows": len(a), "weight": flat.sum(), "mean_a": mean_a, "mean_b": mean_b,
            "spread_a": (w * (a - mean_a) ** 2).sum(0), "spread_b": (w * (b - mean_b) ** 2).sum(0),
            "joint": (w * (a - mean_a) * (b - mean_b)).sum(0),
        }  # fmt: skip
        return {part: np.asarray(value) for part, value in parts.items()}

    def joined(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The means of both, and the spreads around them: S + S' + (mean' - mean)²·w·w' / (w + w')."""
        total = old["weight"] + new["weight"]
        share = new["weight"] / (fn.maximum if isinstance(total, Tensor) else np.maximum)(total, _TINY)
        a, b = (new[mean] - old[mean] for mean in ("mean_a", "mean_b"))
        between = old["weight"] * share
        return {
            "rows": old["rows"] + new["rows"],
            "weight": total,
            "mean_a": old["mean_a"] + a * share,
            "mean_b": old["mean_b"] + b * share,
            "spread_a": old["spread_a"] + new["spread_a"] + a * a * between,
            "spread_b": old["spread_b"] + new["spread_b"] + b * b * between,
            "joint": old["joint"] + new["joint"] + a * b * between,
        }

    def result(self, states: States) -> float:
        if states["rows"] < 2:
            return float("nan")
        columns = [np.atleast_1d(states[part]) for part in ("spread_a", "spread_b", "joint")]
        return float(np.mean(self.of_columns(*columns)))


@dataclass(eq=False)
class ExplainedVariance(Paired):
    """1 - Var(t - p) / Var(t), averaged over columns; NaN for fewer than two rows.

    R² that forgives a constant error.  Where all targets are equal it is 1 for errors that are equal, too, and 0 for
    others, as scikit-learn says.

    Example: `ws.metrics.ExplainedVariance()`.
    """

    kind: ClassVar[str] = "explained_variance"
    higher_is_better: ClassVar[bool | None] = True

    def pair(self, prediction: X, target: X) -> tuple[X, X]:
        return target, target - prediction

    def of_columns(self, a: Array, b: Array, joint: Array) -> Array:
        constant = a == 0
        explained = 1.0 - b / np.where(constant, 1.0, a)
        return np.asarray(np.where(constant, (b == 0).astype(np.float64), explained))


@dataclass(eq=False)
class Pearson(Paired):
    """Pearson's correlation of predictions and targets, averaged over columns; NaN where one of them is constant.

    Example: `ws.metrics.Pearson()`.
    """

    kind: ClassVar[str] = "pearson"
    higher_is_better: ClassVar[bool | None] = True

    def pair(self, prediction: X, target: X) -> tuple[X, X]:
        return target, prediction

    def of_columns(self, a: Array, b: Array, joint: Array) -> Array:
        below = np.sqrt(a) * np.sqrt(b)
        return np.asarray(np.divide(joint, below, out=np.full_like(joint, np.nan), where=below > 0))


@dataclass(eq=False)
class Spearman(KeptRows):
    """Spearman's correlation: Pearson's of the ranks, equal numbers sharing their mean rank; averaged over columns.

    A row of weight w counts as w rows.  Ranks are of the whole epoch, whose rows are kept: `capacity` is their number,
    which `fit` knows.

    Example: `ws.metrics.Spearman()`.
    """

    kind: ClassVar[str] = "spearman"
    higher_is_better: ClassVar[bool | None] = True

    def contributions(self, prediction: Tensor, target: Tensor, weight: Tensor | None) -> dict[str, Tensor]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        if weight is None:
            return {"predictions": prediction, "targets": target}
        check_weight(self.kind, ArrayKind.of(weight), prediction.shape[:1])
        return {"predictions": prediction, "targets": target, "weights": weight.astype("float64")}

    def measure(self, prediction: Array, target: Array, weight: Array | None) -> dict[str, Array]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        if weight is None:
            return {"predictions": prediction, "targets": target}
        check_weight(self.kind, ArrayKind.of(weight), prediction.shape[:1])
        return {"predictions": prediction, "targets": target, "weights": weight.astype(np.float64)}

    def result(self, states: States) -> float:
        parts = self._all_rows(states)
        if not parts or len(parts["targets"]) < 2:
            return float("nan")
        rows = len(parts["targets"])
        p, t = (parts[part].reshape(rows, -1).astype(np.float64) for part in ("predictions", "targets"))
        if np.isnan(p).any() or np.isnan(t).any():
            return float("nan")
        weight = parts.get("weights", np.ones(rows))
        ranked = Pearson()
        ranked.update(_ranks(p, weight), _ranks(t, weight), weight)
        return float(ranked.compute())


def _ranks(columns: Array, weight: Array) -> Array:
    """The weight of what is below each number, and half of that of its equals."""
    out = np.empty_like(columns)
    for i, column in enumerate(columns.T):
        _, place = np.unique(column, return_inverse=True)
        equal = np.bincount(place, weight)
        out[:, i] = (np.cumsum(equal) - equal / 2)[place]
    return out
