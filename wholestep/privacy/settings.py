"""`Privacy`: the settings of differentially private training."""

from __future__ import annotations

import math
from dataclasses import replace

from wholestep.errors import OptionError, UsageError
from wholestep.privacy.accountant import Phase, epsilon_of, noise_for
from wholestep.records import dataclass

NEGLIGIBLE = 0.01  # the probability of batches that do not fit the step must be below this fraction of δ


@dataclass(frozen=True)
class Privacy:
    """(ε, δ)-differential privacy of training: the weights reveal almost nothing about any one row.

    The gradient of each row is scaled to a norm of at most `clip`, every batch is a random draw of the rows, and
    Gaussian noise is added to the sum of the gradients.

    Args:
        epsilon: the bound ε for the whole run; `ws.fit` computes the noise that its epochs need.
        delta: the probability δ with which the bound may fail; choose less than 1 / rows.
        clip: the norm to which the gradients of rows are clipped.
        noise: the noise multiplier, instead of `epsilon`: the standard deviation of the noise is `noise * clip`.
        rows: the expected number of rows of a batch, by which the sum is divided; None: the batch size.

    Example: `ws.fit(model, (x, y), loss="cross_entropy", epochs=5, privacy=ws.Privacy(epsilon=3, delta=1e-5))`.
    """

    epsilon: float | None = None
    delta: float = 1e-5
    clip: float = 1.0
    noise: float | None = None
    rows: float | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise is None) and self.rows is None:
            raise OptionError("Privacy: give either epsilon=, the bound for the run, or noise=, the noise multiplier.")
        for name in ("epsilon", "delta", "clip", "rows"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                raise OptionError(f"Privacy: {name} must be a number above 0; received {value!r}.")
        if self.noise is not None and not (_is_number(self.noise) and 0 <= self.noise < math.inf):
            raise OptionError(f"Privacy: noise must be a number of at least 0; received {self.noise!r}.")
        if self.delta >= 1:
            raise OptionError(f"Privacy: delta must be a probability below 1; received {self.delta!r}.")

    def for_batches(self, batch_size: int | None) -> Privacy:
        """The settings for a session's step; UsageError if they lack a noise multiplier."""
        if self.noise is None:
            raise UsageError(
                "privacy=ws.Privacy(epsilon=...) is for ws.fit, whose number of steps determines the noise. Give a "
                "session the noise itself: ws.Privacy(noise=1.1, clip=1.0)."
            )
        if self.rows is None and batch_size is None:
            raise UsageError("privacy=: the expected number of rows of a batch is unknown; give ws.Privacy(rows=64).")
        return self if self.rows is not None else replace(self, rows=float(batch_size or 0))

    def for_run(self, rows: int, batch_size: int, steps: int) -> Privacy:
        """The settings with the noise for a run of `steps` steps over a data set of `rows` rows."""
        rate = batch_size / rows
        outside = steps * chance_outside(rows, rate)
        delta = self.delta - outside * (1 + math.exp(min(self.epsilon or 0.0, 50.0)))
        if delta < (1 - NEGLIGIBLE) * self.delta:
            raise OptionError(
                f"privacy=: with batch_size={batch_size} a random batch is empty too often for delta={self.delta}. "
                "Choose a batch_size of at least 32 that is smaller than the data set."
            )
        noise = self.noise
        if noise is None:
            assert self.epsilon is not None
            noise = noise_for(self.epsilon, delta, rate, steps)
        return replace(self, noise=noise, rows=float(batch_size))


def capacity_for(rows: int, rate: float) -> int:
    """The capacity of a step in rows: ten standard deviations above the mean size of a random batch."""
    return min(rows, math.ceil(rows * rate + 10 * math.sqrt(rows * rate) + 10))


def chance_outside(rows: int, rate: float) -> float:
    """Chernoff's bound on the probability that a random batch is empty, or has more rows than the capacity."""
    above, mean = capacity_for(rows, rate) + 1, rows * rate
    empty = math.exp(rows * math.log1p(-rate)) if rate < 1 else 0.0
    if above > rows:
        return empty
    return empty + math.exp(above - mean - above * math.log(above / mean))


def total_epsilon(phases: list[Phase], delta: float) -> float:
    """The ε that these phases of steps have spent; infinite if there are steps without noise."""
    return math.inf if any(p.noise == 0 and p.steps for p in phases) else epsilon_of(phases, delta)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
