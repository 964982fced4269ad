"""Schedules with a single curve."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.schedules.base import POSITIVE, FormulaNumbers, Limits, Schedule
from wholestep.schedules.maths import Value, choose, floor, half_cosine, part, sqrt


@dataclass(frozen=True)
class Constant(Schedule):
    """The constant lr.

    Example: `ws.schedules.Constant(0.01)`.
    """

    lr: float | None

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from lr to `end` in `steps`, then `end`: lr + (end - lr)·min(n/steps, 1).

    Example: `ws.schedules.Linear(1e-3, 1e-4, 100)`.
    """

    lr: float | None
    end: float
    steps: float

    _limits: ClassVar[Limits] = {"steps": POSITIVE}

    @property
    def length(self) -> int:
        return ceil(self.steps)

    @property
    def horizon(self) -> float | None:
        return self.steps if self.lr is None or abs(self.end) < abs(self.lr) else None  # an increase is a warm-up

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr + (v.end - v.lr) * part(n, v.steps)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """A polynomial from lr to `end`: end + (lr - end)·(1 - min(n/steps, 1))^power.

    Example: `ws.schedules.Polynomial(0.1, 1000, power=2.0)`.
    """

    lr: float | None
    steps: float
    power: float = 1.0
    end: float = 0.0

    _limits: ClassVar[Limits] = {"steps": POSITIVE, "power": POSITIVE}

    @property
    def horizon(self) -> float | None:
        return self.steps

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.end + (v.lr - v.end) * (1.0 - part(n, v.steps)) ** v.power


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from lr to `eta_min` in T_max, then `eta_min` (arXiv:1608.03983, one cycle):

        eta_min + (lr - eta_min)·(1 + cos(π·min(n/T_max, 1)))/2

    Example: `ws.schedules.Cosine(1e-3, 100)`.
    """

    lr: float | None
    T_max: float
    eta_min: float = 0.0

    _limits: ClassVar[Limits] = {"T_max": POSITIVE}

    def check(self) -> None:
        super().check()
        if self.T_max < 1:
            fail(
                OptionError, f"Cosine: T_max={self.T_max} is less than one {self.unit}; the order is Cosine(lr, T_max)."
            )

    @property
    def horizon(self) -> float | None:
        return self.T_max

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.eta_min + (v.lr - v.eta_min) * half_cosine(part(n, v.T_max))


@dataclass(frozen=True)
class Exponential(Schedule):
    """Exponential decay lr·gammaⁿ.

    Example: `ws.schedules.Exponential(0.1, 0.95)`.
    """

    lr: float | None
    gamma: float

    _limits: ClassVar[Limits] = {"gamma": POSITIVE}

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr * v.gamma**n


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Decay by a factor every `step_size`: lr·gamma^⌊n/step_size⌋.

    Example: `ws.schedules.StepDecay(0.1, 10)`.
    """

    lr: float | None
    step_size: float
    gamma: float = 0.1

    _limits: ClassVar[Limits] = {"step_size": POSITIVE, "gamma": POSITIVE}

    @property
    def length(self) -> int:
        return ceil(5 * self.step_size)

    @property
    def reach(self) -> float | None:
        return self.step_size

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr * v.gamma ** floor(n / v.step_size)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """Decay by a factor at each milestone: lr·gamma^k, where k milestones have been reached.

    Example: `ws.schedules.MultiStep(0.1, (30, 80))`.
    """

    lr: float | None
    milestones: tuple[float, ...]
    gamma: float = 0.1

    _limits: ClassVar[Limits] = {"gamma": POSITIVE}

    def check(self) -> None:
        super().check()
        object.__setattr__(self, "milestones", check_milestones("MultiStep", self.milestones))

    @property
    def length(self) -> int:
        return ceil(1.25 * self.milestones[-1])

    @property
    def reach(self) -> float | None:
        return self.milestones[-1]

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        factor: Value = 1.0
        for milestone in v.listed("milestones"):
            factor = choose(n >= milestone, factor * v.gamma, factor)
        return v.lr * factor


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """lr·√(steps/(n + steps)): after a warm-up of as many steps, the schedule of arXiv:1706.03762.

    Example: `ws.schedules.Warmup(ws.schedules.InverseSqrt(1e-3, 4000), 4000)`.
    """

    lr: float | None
    steps: float

    _limits: ClassVar[Limits] = {"steps": POSITIVE}

    @property
    def length(self) -> int:
        return ceil(10 * self.steps)

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        return v.lr * sqrt(v.steps / (n + v.steps))


def check_milestones(kind: str, milestones: object) -> tuple[float, ...]:
    """Check the milestones: at least one, strictly increasing, all above 0."""
    items = tuple(milestones) if isinstance(milestones, tuple | list) else ()
    numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in items)
    if not items or not numbers or any(b <= a for a, b in zip((0, *items), items, strict=False)):
        fail(
            OptionError, f"{kind}: milestones are numbers above 0, each larger than the last; received {milestones!r}."
        )
    return items
