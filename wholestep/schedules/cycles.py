"""Schedules with several phases: one-cycle, cyclic, warm restarts, warm-up-stable-decay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from wholestep.schedules.base import POSITIVE, FormulaNumbers, Limits, Schedule
from wholestep.schedules.maths import Value, choose, floor, half_cosine, log, most, part, sqrt


@dataclass(frozen=True)
class OneCycle(Schedule):
    """A rise from lr/div_factor to lr in the fraction pct_start of the steps, then a fall to
    lr/(div_factor·final_div_factor) (arXiv:1708.07120).

    `anneal` is "cos" or "linear"; with `three_phase` the way down first mirrors the way up.  The last value holds.

    Example: `ws.schedules.OneCycle(0.1, 1000)`.
    """

    lr: float | None
    total_steps: float
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    anneal: str = "cos"
    three_phase: bool = False

    _limits: ClassVar[Limits] = {
        "total_steps": {"least": 2},
        "pct_start": {"above": 0, "most": 1},
        "div_factor": POSITIVE,
        "final_div_factor": POSITIVE,
    }
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"anneal": ("cos", "linear")}

    def check(self) -> None:
        super().check()
        if self.three_phase:
            self.need("pct_start", above=0, most=0.5)

    @property
    def horizon(self) -> float | None:
        return self.total_steps

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        first, last = v.lr / v.div_factor, v.lr / v.div_factor / v.final_div_factor
        up, end = v.pct_start * v.total_steps - 1.0, v.total_steps - 1.0
        rise = self._between(first, v.lr, n / most(up, 1e-12))
        if not self.three_phase:
            fall = self._between(v.lr, last, part(n - up, most(end - up, 1e-12)))
            return choose(n <= up, rise, fall)
        middle = 2.0 * v.pct_start * v.total_steps - 2.0
        mirrored = self._between(v.lr, first, (n - up) / most(middle - up, 1e-12))
        fall = self._between(first, last, part(n - middle, most(end - middle, 1e-12)))
        return choose(n <= up, rise, choose(n <= middle, mirrored, fall))

    def _between(self, start: Value, end: Value, done: Value) -> Value:
        return end + (start - end) * (half_cosine(done) if self.anneal == "cos" else 1.0 - done)


@dataclass(frozen=True)
class Cyclic(Schedule):
    """A repeated cycle: a rise from `base` to lr in `up`, a fall in `down` (by default as long) (arXiv:1506.01186).

    The height lr - base of a cycle is the same ("triangular"), half that of the one before ("triangular2"), or shrinks
    with every step, ·gammaⁿ ("exp_range").

    Example: `ws.schedules.Cyclic(0.1, base=0.001, up=2000)`.
    """

    lr: float | None
    base: float
    up: float = 2000
    down: float | None = None
    mode: str = "triangular"
    gamma: float = 1.0

    _limits: ClassVar[Limits] = {"up": POSITIVE, "down": POSITIVE, "gamma": POSITIVE}
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"mode": ("triangular", "triangular2", "exp_range")}

    def check(self) -> None:
        if self.down is None:
            object.__setattr__(self, "down", self.up)
        super().check()

    @property
    def length(self) -> int:
        return ceil(3 * (self.up + (self.down or self.up)))

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        whole = v.up + v.down
        cycle = floor(n / whole)
        done = n - cycle * whole
        height = choose(done <= v.up, done / v.up, (whole - done) / v.down)
        shrunk = {"triangular": 1.0, "triangular2": 0.5**cycle, "exp_range": v.gamma**n}[self.mode]
        return v.base + (v.lr - v.base) * height * shrunk


@dataclass(frozen=True)
class WarmRestarts(Schedule):
    """SGDR (arXiv:1608.03983): cosine cycles from lr to `eta_min`, each T_mult times as long as the previous one.

    Example: `ws.schedules.WarmRestarts(0.1, 10, T_mult=2)`.
    """

    lr: float | None
    T_0: float
    T_mult: float = 1.0
    eta_min: float = 0.0

    _limits: ClassVar[Limits] = {"T_0": POSITIVE, "T_mult": {"least": 1}}

    @property
    def length(self) -> int:
        return ceil(self.T_0 * (1 + self.T_mult + self.T_mult**2))

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        cycles = n / v.T_0
        # The start of cycle k is T_0·(T_mult^k - 1)/(T_mult - 1), or T_0·k where T_mult is 1.
        growth = most(v.T_mult, 1.0 + 1e-9)
        grown = floor(log(cycles * (growth - 1.0) + 1.0) / log(growth) + 1e-9)
        start = (growth**grown - 1.0) / (growth - 1.0)
        growing = (cycles - start) / growth**grown
        done = choose(v.T_mult > 1.0, growing, cycles - floor(cycles))
        return v.eta_min + (v.lr - v.eta_min) * half_cosine(most(done, 0.0))


@dataclass(frozen=True)
class WarmupStableDecay(Schedule):
    """A rise to lr in `warmup`, lr for `stable`, a fall to `end` in `decay` along `shape` (arXiv:2404.06395):

        lr·(n + 1)/warmup,      lr,      end + (lr - end)·(1 - done),  (1 + cos(π·done))/2  or  1 - √done

    Example: `ws.schedules.WarmupStableDecay(1e-3, warmup=100, stable=800, decay=100)`.
    """

    lr: float | None
    warmup: float
    stable: float
    decay: float
    end: float = 0.0
    shape: str = "linear"

    _limits: ClassVar[Limits] = {"warmup": {"least": 0}, "stable": {"least": 0}, "decay": POSITIVE}
    _choices: ClassVar[Mapping[str, tuple[str, ...]]] = {"shape": ("linear", "cosine", "sqrt")}

    @property
    def horizon(self) -> float | None:
        return self.warmup + self.stable + self.decay

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        done = most(part(n - v.warmup - v.stable, v.decay), 0.0)
        left = {"linear": lambda: 1.0 - done, "cosine": lambda: half_cosine(done), "sqrt": lambda: 1.0 - sqrt(done)}
        falling = v.end + (v.lr - v.end) * left[self.shape]()
        rising = v.lr * (n + 1.0) / most(v.warmup, 1.0)
        return choose(n < v.warmup, rising, falling)
