"""Agreement with the targets beyond chance: balanced accuracy, Matthews' correlation, Cohen's kappa."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.metrics.array_functions import X
from wholestep.metrics.base import States
from wholestep.metrics.confusion import ConfusionMatrix, Counted
from wholestep.metrics.rows import ClassRows

WEIGHTS = (None, "linear", "quadratic")


def _refuse_labels(kind: str, questions: int) -> NoReturn:
    fail(
        OptionError,
        f"{kind} is of one classifier; there are {questions} binary labels for each row. Measure each by itself, "
        "or use 'f1', which averages over labels.",
    )


@dataclass(eq=False)
class OfCounts(Counted):
    """The base class of metrics computed from class counts, in which the negative class counts too."""

    def _asks(self, rows: ClassRows[Any]) -> bool:
        if rows.questions > 1:
            _refuse_labels(self.kind, rows.questions)
        return False


@dataclass(eq=False)
class BalancedAccuracy(OfCounts):
    """The mean recall over classes: an accuracy in which every class has equal weight.

    With `adjusted`, 0 is chance and 1 is perfect.

    Example: `ws.metrics.BalancedAccuracy()`.
    """

    kind: ClassVar[str] = "balanced_accuracy"
    higher_is_better: ClassVar[bool | None] = True
    adjusted: bool = False

    def result(self, states: States) -> float:
        true = states["actual"] > 0
        if not true.any():
            return float("nan")
        score = float((states["right"][true] / states["actual"][true]).mean())
        chance = 1.0 / true.sum()
        if not self.adjusted:
            return score
        return float((score - chance) / (1.0 - chance)) if chance < 1.0 else float("nan")


@dataclass(eq=False)
class MCC(OfCounts):
    """Matthews' correlation coefficient (Gorodkin, 2004, for several classes): 1 perfect, 0 chance, -1 the opposite.

    It is 0 if all targets, or all predictions, are the same class.

    Example: `ws.metrics.MCC()`.
    """

    kind: ClassVar[str] = "mcc"
    higher_is_better: ClassVar[bool | None] = True

    def result(self, states: States) -> float:
        right, predicted, actual = (states[part].astype(np.float64) for part in ("right", "predicted", "actual"))
        total = actual.sum()
        if not total:
            return float("nan")
        spread = (total**2 - (predicted * predicted).sum()) * (total**2 - (actual * actual).sum())
        return float((right.sum() * total - (predicted * actual).sum()) / np.sqrt(spread)) if spread > 0 else 0.0


@dataclass(eq=False)
class CohenKappa(ConfusionMatrix):
    """Cohen's kappa: 1 - disagreement / disagreement by chance.

    `weights` are the weights of disagreements: None (all alike), "linear" (by the distance of the classes) or
    "quadratic" (by its square), for classes that have an order.

    Example: `ws.metrics.CohenKappa(weights="quadratic")`.
    """

    kind: ClassVar[str] = "cohen_kappa"
    higher_is_better: ClassVar[bool | None] = True
    weights: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weights not in WEIGHTS:
            fail(OptionError, f"cohen_kappa: weights is None, 'linear' or 'quadratic'; received {self.weights!r}.")

    def _rows(self, prediction: X, target: X, weight: X | None) -> tuple[ClassRows[X], int]:
        rows, classes = super()._rows(prediction, target, weight)
        if rows.questions > 1:
            _refuse_labels(self.kind, rows.questions)
        return rows, classes

    def result(self, states: States) -> float:
        matrix = states["matrix"].astype(np.float64)
        if not matrix.any():
            return float("nan")
        place = np.arange(len(matrix))
        away = np.abs(place[:, None] - place).astype(np.float64)
        counts = {None: away > 0, "linear": away, "quadratic": away * away}[self.weights]
        by_chance = np.outer(matrix.sum(1), matrix.sum(0)) / matrix.sum()
        expected = (counts * by_chance).sum()
        return float(1.0 - (counts * matrix).sum() / expected) if expected > 0 else float("nan")
