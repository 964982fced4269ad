"""The losses and gradient norms of every row in every epoch of a run (`ws.fit(..., per_row=...)`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wholestep.errors import OptionError, UsageError

Array = np.ndarray[Any, Any]
ROWS = "history/rows/"  # prefix of the arrays of a checkpoint


@dataclass(frozen=True)
class RowEpoch:
    """One epoch: element i of each array is about row `rows[i]` of the training data, in the order of the steps."""

    epoch: int
    rows: Array  # int64
    values: Mapping[str, Array]  # "loss", "gradient_norm"


@dataclass(frozen=True)
class Suspect:
    """A row of the training data that pulled on the weights more than others."""

    row: int
    score: float  # mean over the epochs of its gradient norm or, without norms, of its loss
    loss: float  # its mean loss; NaN if it was not recorded


@dataclass
class RowHistory:
    """The epochs in which values of rows were recorded; checkpoints have them as arrays."""

    epochs: list[RowEpoch] = field(default_factory=list)

    def mean(self, name: str) -> Array:
        """The mean of a value over the epochs, by row of the training data; NaN for a row that no epoch visited."""
        if not self.epochs:
            raise UsageError("no values of rows were recorded: train with ws.fit(..., per_row=['gradient_norm']).")
        if name not in self.epochs[0].values:
            raise OptionError(f"{name!r} was not recorded for rows; there are: {', '.join(self.epochs[0].values)}.")
        size = 1 + max(int(e.rows.max()) for e in self.epochs)
        total, visits = np.zeros(size), np.zeros(size)
        for epoch in self.epochs:
            np.add.at(total, epoch.rows, epoch.values[name])
            np.add.at(visits, epoch.rows, 1)
        with np.errstate(invalid="ignore"):
            return total / visits

    def suspects(self, count: int) -> list[Suspect]:
        """The rows with the largest mean gradient norms (losses, if these alone were recorded), largest first.

        Wrong labels and outliers are among the first: their gradients stay large when the others have become small.
        """
        if not isinstance(count, int) or count < 1:
            raise OptionError(f"suspects({count!r}): expected a number of rows of at least 1.")
        recorded: Sequence[str] = list(self.epochs[0].values) if self.epochs else ["gradient_norm"]
        name = "gradient_norm" if "gradient_norm" in recorded else "loss"
        scores = self.mean(name)
        losses = self.mean("loss") if "loss" in recorded else np.full(len(scores), np.nan)
        ordered = np.argsort(-np.nan_to_num(scores, nan=-np.inf), kind="stable")
        chosen = [int(row) for row in ordered[:count] if not np.isnan(scores[row])]
        return [Suspect(row, float(scores[row]), float(losses[row])) for row in chosen]

    def arrays(self) -> dict[str, Array]:
        """The epochs as arrays by name, for a checkpoint."""
        named: dict[str, Array] = {}
        for each in self.epochs:
            named |= {f"{ROWS}{each.epoch}/{name}": a for name, a in {"rows": each.rows, **each.values}.items()}
        return named

    @staticmethod
    def from_arrays(arrays: Mapping[str, Array]) -> RowHistory:
        """The history whose `arrays` are among these."""
        epochs: dict[int, dict[str, Array]] = {}
        for name, array in arrays.items():
            if name.startswith(ROWS):
                epoch, _, value = name.removeprefix(ROWS).partition("/")
                epochs.setdefault(int(epoch), {})[value] = array
        ordered = sorted(epochs.items())
        return RowHistory(
            [RowEpoch(epoch, values.pop("rows"), dict(sorted(values.items()))) for epoch, values in ordered]
        )
