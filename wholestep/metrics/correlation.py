"""R², explained variance, and the correlations of Pearson and Spearman."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from wholestep.metrics.array_functions import X, count, maximum
from wholestep.metrics.base import Array, Metric, States
from wholestep.metrics.means import check_numbers
from wholestep.metrics.reading import ArrayKind, check_weight, merge_weighted_axes
from wholestep.metrics.row_buffers import KeptRows, rows_to_store

_TINY = 1e-300  # replaces a weight of 0 as divisor, so that the mean of nothing is 0


def _row_weights(metric: str, weight: X, values: X) -> tuple[X, X]:
    """The row weights as float64, with an axis of size 1 for each further axis of the values; and their sum."""
    check_weight(metric, ArrayKind.of(weight), values.shape[:1])
    flat: Any = weight.astype("float64")
    return flat.reshape((*flat.shape, *(1 for _ in values.shape[1:]))), flat.sum()


def _join_weights(old: dict[str, Any], new: dict[str, Any]) -> tuple[Any, Any]:
    """The total weight of two sets of rows, and the new rows' fraction of it."""
    total = old["weight"] + new["weight"]
    return total, new["weight"] / maximum(total, _TINY)


def _explained_share(error: Array, spread: Array) -> Array:
    """1 - error/spread of each column; for constant targets 1 if there are no errors, else 0."""
    constant = spread == 0
    explained = 1.0 - error / np.where(constant, 1.0, spread)
    return np.asarray(np.where(constant, (error == 0).astype(np.float64), explained))


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

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        weight, prediction, target = merge_weighted_axes(weight, prediction, target)
        t: Any = target.astype("float64")  # (N, ...)
        error: Any = prediction.astype("float64") - t
        if weight is None:
            total = count(t, t.shape[:1], "float64")
            mean = t.sum(0) / maximum(total, _TINY)
            spread, residual = ((t - mean) * (t - mean)).sum(0), (error * error).sum(0)
        else:
            w, total = _row_weights(self.kind, weight, t)
            mean = (w * t).sum(0) / maximum(total, _TINY)
            spread, residual = (w * (t - mean) * (t - mean)).sum(0), (w * error * error).sum(0)
        return {"rows": count(t, t.shape[:1]), "weight": total, "mean": mean, "spread": spread, "error": residual}

    def joined(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The merged mean, and the sum of squares around it: spread + spread' + (mean' - mean)²·w·w' / (w + w')."""
        total, share = _join_weights(old, new)
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
        return float(_explained_share(error, spread).mean())


@dataclass(eq=False)
class Paired(Metric):
    """The base class of metrics of two numbers per row, a and b: stores sums of squares around the means and their
    cross product, column by column.

    Means and spreads are joined by the rule of Chan, Golub and LeVeque (1979), as those of `R2` are: differences of
    large sums would lose their digits.
    """

    @abstractmethod
    def pair(self, prediction: X, target: X) -> tuple[X, X]:
        """The numbers a and b of each row."""

    @abstractmethod
    def of_columns(self, a: Array, b: Array, joint: Array) -> Array:
        """The metric of each column, from Σ w·(a - ā)², Σ w·(b - b̄)² and Σ w·(a - ā)·(b - b̄)."""

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        weight, prediction, target = merge_weighted_axes(weight, prediction, target)
        a, b = self.pair(prediction.astype("float64"), target.astype("float64"))  # (N, ...)
        w: Any = 1.0
        if weight is None:
            total = count(a, a.shape[:1], "float64")
        else:
            w, total = _row_weights(self.kind, weight, a)
        means = [(w * x).sum(0) / maximum(total, _TINY) for x in (a, b)]
        away = [x - mean for x, mean in zip((a, b), means, strict=True)]
        return {
            "rows": count(a, a.shape[:1]),
            "weight": total,
            "mean_a": means[0],
            "mean_b": means[1],
            "spread_a": (w * away[0] * away[0]).sum(0),
            "spread_b": (w * away[1] * away[1]).sum(0),
            "joint": (w * away[0] * away[1]).sum(0),
        }

    def joined(self, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
        """The merged means, and the sums around them: S + S' + (mean' - mean)²·w·w' / (w + w')."""
        total, share = _join_weights(old, new)
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
        return _explained_share(b, a)


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
        scale = np.sqrt(a) * np.sqrt(b)
        return np.asarray(np.divide(joint, scale, out=np.full_like(joint, np.nan), where=scale > 0))


@dataclass(eq=False)
class Spearman(KeptRows):
    """Spearman's correlation: Pearson's correlation of the ranks (mean ranks for ties), averaged over columns.

    A row of weight w counts as w rows.  Rows are ranked within the whole epoch and therefore stored; `capacity` is
    their number, which `fit` sets.

    Example: `ws.metrics.Spearman()`.
    """

    kind: ClassVar[str] = "spearman"
    higher_is_better: ClassVar[bool | None] = True

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        if weight is not None:
            check_weight(self.kind, ArrayKind.of(weight), prediction.shape[:1])
        return rows_to_store(prediction, target, weight)

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
    """The rank of each number: the weight of all smaller numbers plus half the weight of equal ones."""
    out = np.empty_like(columns)
    for i, column in enumerate(columns.T):
        _, place = np.unique(column, return_inverse=True)
        equal = np.bincount(place, weight)
        out[:, i] = (np.cumsum(equal) - equal / 2)[place]
    return out
