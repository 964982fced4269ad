"""The privacy budget that noisy steps spend: Rényi divergences of the subsampled Gaussian mechanism.

A step draws every row with probability `rate` (Poisson sampling), and adds noise whose standard deviation is `noise`
times the clipping norm of a row's gradient.  The Rényi divergence of a step is computed exactly for each order
(arXiv:1908.10530, section 3.3).  The divergences of steps add up, and are converted to (ε, δ) by proposition 12 of
arXiv:2004.00010.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from wholestep.errors import OptionError
from wholestep.records import dataclass

ORDERS = (*(1 + i / 10 for i in range(1, 100)), *range(12, 64), 80, 96, 128, 256, 512)
SMALLEST_TERM = -30.0  # a series ends at a term whose logarithm is below this
LARGEST_NOISE = 1e4


@dataclass(frozen=True)
class Phase:
    """Consecutive steps with the same noise and sampling rate."""

    noise: float
    rate: float
    steps: int


def renyi_divergence(noise: float, rate: float, order: float) -> float:
    """The Rényi divergence of one step, for an order above 1.

    Example: `ws.privacy.renyi_divergence(noise=1.0, rate=0.01, order=8)`.
    """
    if rate == 0:
        return 0.0
    if noise == 0:
        return math.inf
    if rate == 1:
        return order / (2 * noise**2)
    moment = _integer_moment if float(order).is_integer() else _fractional_moment
    return moment(noise, rate, order) / (order - 1)


def epsilon_of(phases: Phase | Iterable[Phase], delta: float) -> float:
    """The ε that steps spend at this δ: the smallest bound over all orders.

    Example: `ws.privacy.epsilon_of(ws.privacy.Phase(noise=1.1, rate=256 / 60000, steps=14062), delta=1e-5)`.
    """
    steps = [phases] if isinstance(phases, Phase) else list(phases)

    def epsilon_bound(order: float) -> float:
        total = math.fsum(p.steps * _divergence(p.noise, p.rate, order) for p in steps)
        return total + math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)

    low, high = 0, len(ORDERS) - 1
    while low < high:  # a convex function divided by a linear one has one minimum
        middle = (low + high) // 2
        low, high = (
            (low, middle) if epsilon_bound(ORDERS[middle]) <= epsilon_bound(ORDERS[middle + 1]) else (middle + 1, high)
        )
    return max(0.0, epsilon_bound(ORDERS[low]))


def noise_for(epsilon: float, delta: float, rate: float, steps: int) -> float:
    """The smallest noise multiplier with which the steps spend at most ε, to four digits.

    Example: `ws.privacy.noise_for(epsilon=3, delta=1e-5, rate=256 / 60000, steps=4688)`.
    """

    def epsilon_at(noise: float) -> float:
        return epsilon_of(Phase(noise, rate, steps), delta)

    low, high = 0.0, 1.0
    while epsilon_at(high) > epsilon:
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            raise OptionError(
                f"epsilon={epsilon} is out of reach with delta={delta} for {steps} steps at a rate of {rate:.3g}: no "
                "noise is large enough. Train fewer epochs, or raise epsilon or delta."
            )
    while high - low > 1e-4 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_at(middle) <= epsilon else (middle, high)
    return high


_divergence = lru_cache(4096)(renyi_divergence)


# -- log E[(density ratio)^order] ---------------------------------------------------------------------------------


def _integer_moment(noise: float, rate: float, order: float) -> float:
    """Integer orders: the finite sum Σₖ C(α, k)·(1 − q)^(α − k)·q^k·exp((k² − k) / 2σ²)."""
    k = np.arange(int(order) + 1)
    log_binomial = math.lgamma(order + 1) - np.array([math.lgamma(i + 1) + math.lgamma(order - i + 1) for i in k])
    terms = log_binomial + k * math.log(rate) + (order - k) * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
    return _log_sum(terms.tolist(), [1.0] * len(terms))


def _fractional_moment(noise: float, rate: float, order: float) -> float:
    """Other orders: an integral split where both densities are equal; each of the two parts is a series."""
    middle = noise**2 * math.log(1 / rate - 1) + 0.5
    logs, signs = list[float](), list[float]()
    coefficient, k = 1.0, 0  # C(α, k)
    while True:
        rest, here = order - k, math.log(abs(coefficient))
        below = here + k * math.log(rate) + rest * math.log1p(-rate) + (k * k - k) / (2 * noise**2)
        above = here + rest * math.log(rate) + k * math.log1p(-rate) + (rest * rest - rest) / (2 * noise**2)
        below += _log_tail((k - middle) / noise)
        above += _log_tail((middle - rest) / noise)
        logs += [below, above]
        signs += [math.copysign(1.0, coefficient)] * 2
        if max(below, above) < SMALLEST_TERM and k > order:
            return _log_sum(logs, signs)
        coefficient *= (order - k) / (k + 1)
        k += 1


def _log_tail(z: float) -> float:
    """log P(N(0, 1) > z)."""
    if z < 35:
        return math.log(math.erfc(z / math.sqrt(2)) / 2)
    return -z * z / 2 - math.log(z) - math.log(2 * math.pi) / 2 + math.log1p(-1 / z**2 + 3 / z**4)


def _log_sum(logs: Sequence[float], signs: Sequence[float]) -> float:
    """log Σ sign·exp(log), for a positive sum."""
    largest = max(logs)
    total = math.fsum(sign * math.exp(log - largest) for log, sign in zip(logs, signs, strict=True))
    return largest + math.log(total)
