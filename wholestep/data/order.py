"""Samplers: the order in which an epoch visits rows, a function of (seed, epoch), so that a run can resume anywhere.

`RankRows` are the rows of a batch that a rank reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wholestep.compiler.runtime.epoch_permutation import epoch_order
from wholestep.compiler.runtime.process_group import rows_of_rank
from wholestep.data.table import Batch
from wholestep.errors import InputError, OptionError

Rows = NDArray[np.int64]
POISSON = 1 << 32  # draws of `Poisson` are numbered from here: random transforms use small numbers


class Sampler(Protocol):
    """Determines which rows an epoch visits, and in which order."""

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        """The rows of an epoch over a data set of `count` rows."""


@dataclass(frozen=True)
class Sequential:
    """Visits every row, in order."""

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        return np.arange(count)


@dataclass(frozen=True)
class Shuffled:
    """Visits every row once, in the order that `session.run` uses for the same seed and epoch."""

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        return epoch_order(seed, epoch, count)


@dataclass(frozen=True)
class Subset:
    """The rows at `indices`, shuffled each epoch or in that order."""

    indices: Sequence[int]
    shuffle: bool = True

    def __post_init__(self) -> None:
        if not len(self.indices):
            raise InputError("Subset: there are no rows to visit; give at least one index.")

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        chosen = np.asarray(self.indices, np.int64)
        if chosen.min() < 0 or chosen.max() >= count:
            raise InputError(f"Subset: indices go from 0 to {count - 1}; received {chosen.min()} to {chosen.max()}.")
        return chosen[epoch_order(seed, epoch, len(chosen))] if self.shuffle else chosen


@dataclass(frozen=True)
class Weighted:
    """Rows drawn with replacement, each with a probability in proportion to its weight."""

    weights: Any
    draws: int | None = None  # draws per epoch; None: as many as there are rows
    _ends: NDArray[np.float64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        w = np.asarray(self.weights, np.float64)
        if w.ndim != 1 or not len(w) or (w < 0).any() or not np.isfinite(w).all() or w.sum() <= 0:
            raise OptionError("Weighted: weights are numbers of at least 0, one per row, and not all 0.")
        object.__setattr__(self, "_ends", np.cumsum(w / w.sum()))

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        if len(self._ends) != count:
            raise InputError(f"Weighted: the data has {count} rows; received {len(self._ends)} weights.")
        drawn = keyed_uniform(seed, epoch, np.arange(self.draws or count), 0)
        return np.minimum(np.searchsorted(self._ends, drawn, side="right"), count - 1).astype(np.int64)


@dataclass(frozen=True)
class Poisson:
    """Batches that contain each row with the same probability, independently of all others, as privacy needs.

    An epoch has as many batches as one in order, with `batch_size` rows on average.  A batch without rows, or with more
    than `capacity`, is drawn again with the others of its epoch.
    """

    batch_size: int
    capacity: int

    def count(self, rows: int) -> int:
        """The number of batches of an epoch."""
        return -(-rows // self.batch_size)

    def rows(self, seed: int, epoch: int, count: int) -> Rows:
        """The concatenated rows of all batches."""
        return np.concatenate(self.batches(seed, epoch, count))

    def batches(self, seed: int, epoch: int, count: int) -> list[Rows]:
        """The rows of each batch of an epoch."""
        steps, rate = self.count(count), min(1.0, self.batch_size / count)
        for attempt in range(100):
            drawn = _bernoulli(seed, epoch, attempt, rate, steps * count)
            batches = np.split(drawn % count, np.searchsorted(drawn, count * np.arange(1, steps)))
            if all(0 < len(batch) <= self.capacity for batch in batches):
                return batches
        raise OptionError(
            f"Poisson: with batch_size={self.batch_size} of {count} rows, every draw of an epoch has a batch that is "
            f"empty or has more than {self.capacity} rows; choose a larger batch_size."
        )


def _bernoulli(seed: int, epoch: int, attempt: int, rate: float, trials: int) -> Rows:
    """The successes among independent trials of one probability, by the geometric gaps between them."""
    if rate >= 1:
        return np.arange(trials)
    chunk = int(1.1 * rate * trials) + 64
    chunks, last, first = list[Rows](), -1, 0
    while last < trials:
        drawn = keyed_uniform(seed, epoch, np.arange(first, first + chunk), POISSON + attempt)
        gaps = np.floor(np.log1p(-drawn) / np.log1p(-rate)).astype(np.int64)
        places = last + np.cumsum(gaps + 1)
        chunks.append(places)
        last, first = int(places[-1]), first + chunk
    places = np.concatenate(chunks)
    return places[places < trials]


def Balanced(labels: ArrayLike, draws: int | None = None) -> Weighted:
    """Rows drawn so that every class is equally frequent.  Example: `ws.data.Balanced(y)`."""
    y = np.asarray(labels)
    if y.ndim != 1 or not len(y):
        raise OptionError(f"Balanced: needs one class per row; received labels of shape {y.shape}.")
    _, inverse, counts = np.unique(y, return_inverse=True, return_counts=True)
    return Weighted(1.0 / counts[inverse], draws)


def keyed_uniform(seed: int, epoch: int, rows: ArrayLike, draw: int) -> NDArray[np.float64]:
    """A uniform number in [0, 1) for each row: a function of (seed, epoch, row, draw) alone."""
    x = np.asarray(rows).astype(np.uint64)
    for word in (seed, epoch, draw):
        x = _splitmix64(x ^ np.uint64((word * 0x9E3779B97F4A7C15 + 0xD1342543DE82EF95) % 2**64))
    return (_splitmix64(x) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _splitmix64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One step of the splitmix64 generator."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# -- the rows of a rank -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankRows:
    """The rows of a batch that one rank computes: its share of every micro-batch."""

    rank: int  # along the data axis; ranks along the model axis read the same rows
    ranks: int
    part: int  # rows per micro-batch

    def of(self, rows: int) -> NDArray[np.int64]:
        """The positions of this rank's rows in a batch of `rows` rows."""
        shares = []
        for start in range(0, rows, self.part):
            first, count = rows_of_rank(min(self.part, rows - start), self.rank, self.ranks)
            shares.append(np.arange(start + first, start + first + count))
        return np.concatenate(shares) if shares else np.arange(0)


def scatter_rows(batch: Batch, positions: NDArray[np.int64], rows: int) -> Batch:
    """A batch of `rows` rows with the rows of `batch` at their positions; the other rows are zero and never read."""

    def scatter(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Mapping):
            return {name: scatter(array) for name, array in value.items()}
        array = np.asarray(value)
        out = np.zeros((rows, *array.shape[1:]), array.dtype)
        out[positions] = array[: len(positions)]
        return out

    return Batch(scatter(batch.inputs), scatter(batch.targets), scatter(batch.weights))
