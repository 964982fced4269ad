"""Schedules from a Python function: traced into the step if possible, otherwise a table of its values."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError, WholestepError
from wholestep.schedules.base import FormulaNumbers, Schedule
from wholestep.schedules.curves import check_milestones
from wholestep.schedules.maths import Value, choose

Factor = Callable[[Any], Any]
MOST = 512  # the most changes in a table: every step compares with each of them
TRIED = (0, 1, 2, 3, 5, 8, 13, 50, 99, 100, 1000)


@dataclass(frozen=True)
class Lambda(Schedule):
    """lr·function(n), for any function of the training progress.

    A function that is a formula, `lambda n: 0.95**n` or of `ws.where`, `ws.minimum`, `ws.cos`, is traced into the step.
    One that is not, because it branches or calls `math`, becomes a table of its values as soon as the length of the run
    is known: in `ws.fit` and `ws.Experiment`; elsewhere pass it, `.over(100)`.

    Example: `ws.schedules.Lambda(lambda epoch: 0.95**epoch, unit="epoch")`.
    """

    function: Factor
    lr: float | None = None

    def check(self) -> None:
        if not callable(self.function) or isinstance(self.function, Schedule):
            fail(UsageError, f"Lambda takes a function of the {self.unit}; received {self.function!r}.")
        self.need("lr")

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        if not isinstance(n, Tensor):
            return v.lr * self._factor(n)
        if self.why_not_traced:
            fail(
                UsageError,
                f"{self._name} cannot become part of the step ({self.why_not_traced}). Write it as a formula, with "
                "ws.where and ws.minimum in place of if and min; or train with ws.fit, which makes a table of it; or "
                "make one: ws.schedules.Lambda(function).over(100).",
            )
        return v.lr * self.function(n)

    def _factor(self, n: float) -> float:
        """The value of the function at a number, passed as an `int` if it is integral: functions of an epoch may index
        with it.
        """
        returned = self.function(int(n) if n == int(n) else n)
        try:
            factor = float(returned)
        except (TypeError, ValueError):
            factor = math.nan
        if not math.isfinite(factor):
            fail(OptionError, f"{self._name} returned {returned!r} at {n:g}; a factor of the lr is a finite number.")
        return factor

    @property
    def why_not_traced(self) -> str:
        """The reason why the function cannot be traced as a formula of tensors; "" if it can."""
        from wholestep.compiler.ir.semantics.interpret import interpret

        g = Graph()
        try:
            value = self.function(g.step)
            if not isinstance(value, Tensor):
                value = g.step * 0.0 + float(value)
            g.set_outputs({"value": value.astype("float64")})
        except (WholestepError, TypeError, ValueError, AttributeError, KeyError, IndexError) as error:
            return str(error).splitlines()[0]
        graph = g.to_ir()
        for n in TRIED:
            scalars = {name: float(n) for name in graph.leaves("scalar")}
            traced = interpret(graph, inputs={}, state={}, scalars=scalars, sizes={}, seed=0, step=n).outputs["value"]
            if not math.isclose(float(traced), self._factor(n), rel_tol=1e-9, abs_tol=1e-12):
                return f"traced, it is another function: {float(traced):g} and not {self._factor(n):g} at {n}"
        return ""

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__).replace("<lambda>", "the lambda")

    def over(self, run: int) -> Schedule:
        """A table of the values for a run of so many steps or epochs; the last value holds after its end."""
        values = [self._factor(n) for n in range(max(1, run))]
        changes = [n for n in range(1, len(values)) if values[n] != values[n - 1]]
        if len(changes) > MOST:
            fail(
                OptionError,
                f"{self._name} changes {len(changes)} times in {run} {self.unit}s, and a table has room for {MOST}. "
                "Write it as a formula, count epochs (unit='epoch'), or set the rate from outside: "
                "callbacks=ws.callbacks.LearningRateScheduler(function, unit='step').",
            )
        factors = tuple(values[n] for n in (0, *changes))
        return Table(self.lr, factors, tuple(float(n) for n in changes), unit=self.unit)

    def tabulated(self, run: int | None) -> Schedule:
        if run is None or not self.why_not_traced:
            return self
        return self.over(run)

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self.function)

    def to_config(self) -> dict[str, Any]:
        fail(
            UsageError,
            f"{self._name} is a function, which a configuration cannot store. A table can be stored: "
            "ws.schedules.Lambda(function).over(100).to_config().",
        )


@dataclass(frozen=True)
class Table(Schedule):
    """lr times a factor that changes at milestones: the first factor, then the next one from each milestone on.

    Example: `ws.schedules.Table(0.1, (1.0, 0.5, 0.1), milestones=(30, 60))`.
    """

    lr: float | None
    factors: tuple[float, ...]
    milestones: tuple[float, ...] = ()

    def check(self) -> None:
        self.need("lr")
        for name in ("factors", "milestones"):
            items = getattr(self, name)
            if not isinstance(items, tuple | list) or not all(isinstance(x, int | float) for x in items):
                fail(UsageError, f"Table: {name} is a tuple of numbers; received {items!r}.")
            object.__setattr__(self, name, tuple(items))
        if self.milestones:
            check_milestones("Table", self.milestones)
        if len(self.milestones) != len(self.factors) - 1:
            fail(
                OptionError,
                f"Table: {len(self.factors)} factors meet at {len(self.factors) - 1} milestones; received "
                f"{len(self.milestones)}.",
            )

    @property
    def length(self) -> int:
        return math.ceil(1.25 * self.milestones[-1]) if self.milestones else 100

    @property
    def reach(self) -> float | None:
        return self.milestones[-1] if self.milestones else None

    def formula(self, n: Value, v: FormulaNumbers) -> Value:
        first, *others = v.listed("factors")
        value = first
        for milestone, factor in zip(v.listed("milestones"), others, strict=True):
            value = choose(n >= milestone, factor, value)
        return v.lr * value
