"""Samplers that read the losses or gradient norms of the rows of their own run.

`Hard` draws rows with large values more often (online hard example mining, Loshchilov and Hutter, arXiv:1511.06343),
`Importance` also weighs them so that the gradient stays that of all rows (Katharopoulos and Fleuret, arXiv:1803.00942),
and `SelfPaced` begins with the easy rows (Kumar, Packer and Koller, 2010).  The values of an epoch are known at its
end, so the rows of the next one are a function of the seed, the epoch and these values, which checkpoints contain.
"""

from __future__ import annotations

from copy import copy
from math import ceil
from typing import Any, TypeVar

import numpy as np

from wholestep.compiler.runtime.epoch_permutation import epoch_order
from wholestep.data.order import Rows, Weighted
from wholestep.errors import InputError, OptionError

Array = np.ndarray[Any, Any]
Self = TypeVar("Self", bound="RowSampler")
VALUES = ("loss", "gradient_norm")


class RowSampler:
    """Visits rows by their values in earlier epochs: a score for each row, NaN for a row that was not visited yet."""

    def __init__(self, by: str, draws: int | None) -> None:
        name = type(self).__name__
        if by not in VALUES:
            raise OptionError(f"{name}: by={by!r}: expected 'loss' or 'gradient_norm'.")
        if draws is not None and (not isinstance(draws, int | np.integer) or isinstance(draws, bool) or draws < 1):
            raise OptionError(f"{name}: draws={draws!r}: expected a number of rows per epoch of at least 1, or None.")
        self.by, self.draws = by, draws
        self.scores: Array | None = None
        self._drawn: tuple[tuple[int, int, int], Rows] | None = None

    def for_run(self: Self) -> Self:
        """A sampler of the same kind that has recorded nothing."""
        new = copy(self)
        new.scores = new._drawn = None
        return new

    def record(self, rows: Rows, values: Array, count: int) -> None:
        """Replace the scores of the rows that an epoch visited, each by the mean of its finite values."""
        finite = np.isfinite(values)
        visits = np.bincount(rows[finite], minlength=count)
        total = np.bincount(rows[finite], np.asarray(values, np.float64)[finite], minlength=count)
        scores = np.full(count, np.nan) if self.scores is None else self.scores
        self.restore(np.where(visits > 0, total / np.maximum(visits, 1), scores))

    def restore(self, scores: Array | None) -> None:
        """Set the scores, e.g. to the scores in a checkpoint."""
        self.scores, self._drawn = scores, None

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        """The rows of an epoch; without scores, every row once in random order."""
        if self.scores is not None and len(self.scores) != count:
            raise InputError(
                f"{type(self).__name__}: the data has {count} rows; received the values of {len(self.scores)} rows, "
                "which an earlier run recorded. Resume with the data of that run."
            )
        key = seed, epoch, count
        if self._drawn is None or self._drawn[0] != key:
            scores = self._complete_scores()
            chosen = epoch_order(seed, epoch, count) if scores is None else self._choose(scores, seed, epoch)
            self._drawn = key, np.resize(chosen, self.count(count))
        return self._drawn[1]

    def count(self, rows: int) -> int:
        """The number of rows of an epoch."""
        return rows if self.draws is None else int(self.draws)

    def weights(self, count: int) -> Array | None:
        """Factors of the rows' losses; None if all are 1."""
        return None

    def _complete_scores(self) -> Array | None:
        """The scores; rows without one have the mean of the others."""
        if self.scores is None or np.isnan(self.scores).all():
            return None
        return np.where(np.isnan(self.scores), np.nanmean(self.scores), self.scores)

    def _choose(self, scores: Array, seed: int, epoch: int) -> Rows:
        raise NotImplementedError


class Hard(RowSampler):
    """Draws rows with replacement; rows with large losses or gradient norms in earlier epochs are drawn more often.

    The first epoch visits every row once.  Rows with wrong labels are hard, too: look at `history.suspects` first.

    Args:
        by: "gradient_norm" or "loss"; `ws.fit` records it for every row (`per_row=`).
        floor: the probability of a row is in proportion to its value plus `floor` times the mean value.
        draws: rows per epoch; None: as many as there are.

    Example: `ws.fit(model, (x, y), sampler=ws.data.Hard(), loss="cross_entropy", epochs=10)`.
    """

    def __init__(self, by: str = "gradient_norm", floor: float = 0.1, draws: int | None = None) -> None:
        super().__init__(by, draws)
        if not isinstance(floor, int | float) or not 0.0 < floor < float("inf"):
            raise OptionError(f"{type(self).__name__}: floor={floor!r}: expected a number above 0, e.g. 0.1.")
        self.floor = floor

    def _choose(self, scores: Array, seed: int, epoch: int) -> Rows:
        return Weighted(self._proportions(scores), self.count(len(scores))).rows(seed, epoch, len(scores))

    def _proportions(self, scores: Array) -> Array:
        """The relative frequencies of the rows; their mean is 1."""
        mean = float(scores.mean())
        if mean == 0.0:
            return np.ones(len(scores))
        proportions: Array = (scores / mean + self.floor) / (1 + self.floor)
        return proportions


class Importance(Hard):
    """Draws rows as `Hard` does, and divides their weight in the loss by their frequency.

    The gradient of a batch then estimates that of all rows as the gradient of a uniform batch does, with less variance
    where the gradients of the rows differ in size.

    Example: `ws.fit(model, (x, y), sampler=ws.data.Importance(), loss="cross_entropy", epochs=10)`.
    """

    def weights(self, count: int) -> Array | None:
        scores = self._complete_scores()
        return np.ones(count) if scores is None else 1.0 / self._proportions(scores)


class SelfPaced(RowSampler):
    """Begins with the rows of the smallest losses and gradually adds the other rows.

    The first epoch visits every row once.  Epochs have one length: a part of the rows is repeated to fill it.

    Args:
        start: the share of the rows at the beginning.
        epochs: the epoch from which all rows are visited; in between the share grows in proportion.
        by: "loss" or "gradient_norm"; `ws.fit` records it for every row (`per_row=`).
        draws: rows per epoch; None: as many as there are.

    Example: `ws.fit(model, (x, y), sampler=ws.data.SelfPaced(0.5, epochs=5), loss="cross_entropy", epochs=10)`.
    """

    def __init__(self, start: float = 0.5, epochs: int = 10, by: str = "loss", draws: int | None = None) -> None:
        super().__init__(by, draws)
        if not isinstance(start, int | float) or not 0.0 < start <= 1.0:
            raise OptionError(f"SelfPaced: start={start!r}: expected a share of the rows above 0, at most 1.")
        if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 1:
            raise OptionError(f"SelfPaced: epochs={epochs!r}: expected an integer of at least 1.")
        self.start, self.epochs = start, epochs

    def _choose(self, scores: Array, seed: int, epoch: int) -> Rows:
        share = min(1.0, self.start + (1.0 - self.start) * epoch / self.epochs)
        easy = np.sort(np.argsort(scores, kind="stable")[: ceil(share * len(scores))])
        return easy[epoch_order(seed, epoch, len(easy))]
