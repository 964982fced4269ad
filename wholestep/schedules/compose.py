"""Schedules composed of schedules: warm-up, sequence, product."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.schedules.base import FormulaNumbers, Schedule
from wholestep.schedules.curves import Constant, check_milestones
from wholestep.schedules.maths import Value, choose, most
from wholestep.schedules.plateau import ReduceOnPlateau


@dataclass(frozen=True)
class Warmup(Schedule):
    """Linear warm-up peak·(n + 1)/steps for `steps`, then `after`, counted from 0; the peak is `after(0)`.

    The first update is not wasted on a rate of 0.  A number stands for a constant.

    Example: `ws.schedules.Warmup(ws.schedules.Cosine(1e-3, 900), steps=100)`.
    """

    after: Schedule
    steps: float

    def check(self) -> None:
        after: object = self.after
        if isinstance(after, int | float) and not isinstance(after, bool):
            object.__setattr__(self, "after", Constant(after, unit=self.unit))
        _need_schedule("Warmup", self.after, self.unit)
        self.need("steps", above=0)

    @property
    def length(self) -> int:
        return ceil(self.steps) + self.after.length

    @property
    def horizon(self) -> float | None:
        return None if self.after.horizon is None else self.steps + self.after.horizon

    @property
    def reach(self) -> float | None:
        return self.steps + (self.after.reach or 0)

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        inner = v.inner("after")
        peak = self.after.formula(0.0 * n, inner)
        later = self.after.formula(most(n - v.steps, 0.0), inner)
        return choose(n < v.steps, peak * (n + 1.0) / v.steps, later)


@dataclass(frozen=True)
class Sequence(Schedule):
    """One schedule after another: at each milestone the next one begins, counted from 0.

    Example: `ws.schedules.Sequence((ws.schedules.Constant(0.1), ws.schedules.Cosine(0.1, 90)), milestones=(10,))`.
    """

    schedules: tuple[Schedule, ...]
    milestones: tuple[float, ...]

    def check(self) -> None:
        object.__setattr__(self, "schedules", _check_schedules("Sequence", self.schedules, self.unit))
        object.__setattr__(self, "milestones", check_milestones("Sequence", self.milestones))
        if len(self.milestones) != len(self.schedules) - 1:
            fail(
                OptionError,
                f"Sequence: {len(self.schedules)} schedules meet at {len(self.schedules) - 1} milestones; received "
                f"{len(self.milestones)}.",
            )

    @property
    def length(self) -> int:
        return ceil(self.milestones[-1]) + self.schedules[-1].length

    @property
    def horizon(self) -> float | None:
        last = self.schedules[-1].horizon
        return None if last is None else self.milestones[-1] + last

    @property
    def reach(self) -> float | None:
        return self.milestones[-1] + (self.schedules[-1].reach or 0)

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        inner, starts = v.inner("schedules"), v.listed("milestones")
        value = self.schedules[0].formula(n, inner.inner("0"))
        for i, (schedule, start) in enumerate(zip(self.schedules[1:], starts, strict=True), start=1):
            value = choose(n >= start, schedule.formula(most(n - start, 0.0), inner.inner(str(i))), value)
        return value


@dataclass(frozen=True)
class Chained(Schedule):
    """The product of the factors of all schedules: lr·Π sᵢ(n)/lr.

    A schedule with an `lr` of None uses the lr of the chain.

    Example: `ws.schedules.Chained((ws.schedules.Exponential(None, 0.99), ws.schedules.StepDecay(None, 30)), lr=0.1)`.
    """

    schedules: tuple[Schedule, ...]
    lr: float | None = None

    def check(self) -> None:
        object.__setattr__(self, "schedules", _check_schedules("Chained", self.schedules, self.unit))
        self.need("lr", above=0)

    def bound(self, base: float) -> Schedule:
        lr = base if self.lr is None else self.lr
        return replace(self, lr=lr, schedules=tuple(s.bound(lr) for s in self.schedules))

    @property
    def length(self) -> int:
        return max(s.length for s in self.schedules)

    @property
    def horizon(self) -> float | None:
        return max((s.horizon for s in self.schedules if s.horizon is not None), default=None)

    @property
    def reach(self) -> float | None:
        return max((s.reach for s in self.schedules if s.reach is not None), default=None)

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        inner, value = v.inner("schedules"), v.lr
        for i, schedule in enumerate(self.schedules):
            value = value * (schedule.formula(n, inner.inner(str(i))) / v.lr)
        return value


def _check_schedules(kind: str, schedules: object, unit: str) -> tuple[Schedule, ...]:
    if not isinstance(schedules, tuple | list) or not schedules:
        fail(UsageError, f"{kind}: schedules is a tuple of schedules; received {schedules!r}.")
    for schedule in schedules:
        _need_schedule(kind, schedule, unit)
    return tuple(schedules)


def _need_schedule(kind: str, schedule: object, unit: str) -> None:
    if not isinstance(schedule, Schedule):
        fail(UsageError, f"{kind} takes schedules, e.g. ws.schedules.Cosine(1e-3, 100); received {schedule!r}.")
    if schedule.unit != unit and not isinstance(schedule, ReduceOnPlateau):  # a plateau counts observations
        fail(
            OptionError,
            f"{kind} counts in unit={unit!r}, the schedule inside in {schedule.unit!r}; give both the same.",
        )
