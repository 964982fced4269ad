"""Schedules with several phases: one-cycle, cyclic, warm restarts, warm-up-stable-decay."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.schedules.base import FormulaNumbers, Schedule
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

    def check(self) -> None:
        self.need("lr")
        self.need("total_steps", least=2)
        self.need("pct_start", above=0, most=0.5 if self.three_phase else 1)
        self.need("div_factor", above=0)
        self.need("final_div_factor", above=0)
        one_of("OneCycle", "anneal", self.anneal, ("cos", "linear"))

    @property
    def length(self) -> int:
        return ceil(self.total_steps)

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

    def check(self) -> None:
        if self.down is None:
            object.__setattr__(self, "down", self.up)
        self.need("lr")
        self.need("base")
        self.need("up", above=0)
        self.need("down", above=0)
        self.need("gamma", above=0)
        one_of("Cyclic", "mode", self.mode, ("triangular", "triangular2", "exp_range"))

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

    def check(self) -> None:
        self.need("lr")
        self.need("T_0", above=0)
        self.need("T_mult", least=1)
        self.need("eta_min")

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

    def check(self) -> None:
        self.need("lr")
        self.need("warmup", least=0)
        self.need("stable", least=0)
        self.need("decay", above=0)
        self.need("end")
        one_of("WarmupStableDecay", "shape", self.shape, ("linear", "cosine", "sqrt"))

    @property
    def length(self) -> int:
        return ceil(self.warmup + self.stable + self.decay)

    @property
    def horizon(self) -> float | None:
        return self.warmup + self.stable + self.decay

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        done = most(part(n - v.warmup - v.stable, v.decay), 0.0)
        left = {"linear": lambda: 1.0 - done, "cosine": lambda: half_cosine(done), "sqrt": lambda: 1.0 - sqrt(done)}
        falling = v.end + (v.lr - v.end) * left[self.shape]()
        rising = v.lr * (n + 1.0) / most(v.warmup, 1.0)
        return choose(n < v.warmup, rising, falling)


def one_of(kind: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check an option that selects a formula."""
    if value not in allowed:
        fail(OptionError, f"{kind}: {name}={value!r}: expected one of {', '.join(map(repr, allowed))}.")
