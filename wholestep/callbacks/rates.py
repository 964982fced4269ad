"""`LearningRateScheduler`: sets the learning rate from outside of the step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.monitor import not_measured, read_monitor
from wholestep.callbacks.run import Logs, StepMetrics
from wholestep.errors import OptionError, UsageError
from wholestep.schedules.base import CALL, Schedule

if TYPE_CHECKING:
    from wholestep.schedules.torch_schedule import TorchSchedule

Rule = Callable[[int], float] | Callable[[int, float], float]


class LearningRateScheduler(Callback):
    """Sets the learning rate before every epoch (or step), by a function, a schedule, or a plateau.

    A schedule given to `ws.fit(schedule=...)` is part of the step and costs nothing; this one may be any Python
    function, and with `unit="step"` every step is a call of its own.

    Args:
        schedule: `f(epoch)` or `f(epoch, lr)`, epochs counted from 0; a `ws.schedules.Schedule`; or one under torch's
            names, which also moves groups with an lr of their own.
        unit: "epoch" or "step"; None: the schedule's own, else "epoch".
        monitor: the number that a plateau observes; "" is its own, else val_loss, or loss without validation.

    Example: `ws.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 0.5 ** (epoch // 10))`.
    """

    def __init__(self, schedule: Rule | Schedule | TorchSchedule, unit: str | None = None, monitor: str = "") -> None:
        # imported here because they import all schedules
        from wholestep.schedules import ReduceOnPlateau, TorchSchedule

        plain: Any = schedule.schedule if isinstance(schedule, TorchSchedule) else schedule
        self._of_groups = schedule.of_groups if isinstance(schedule, TorchSchedule) else {}
        if not callable(plain):
            raise UsageError(f"LearningRateScheduler takes a function of the epoch or a schedule; received {plain!r}.")
        default_unit = plain.unit if isinstance(plain, Schedule) and plain.unit != CALL else "epoch"
        self.unit = default_unit if unit is None else unit
        if self.unit not in ("step", "epoch"):
            raise OptionError(f"LearningRateScheduler: unit={unit!r}: expected 'step' or 'epoch'.")
        self.schedule, self.monitor = plain, monitor
        self._observes = isinstance(plain, ReduceOnPlateau)
        self.every = 1 if self.unit == "step" else None
        self._base: float | None = None  # the learning rate before the first change
        self._count = 0  # steps
        self._seen: dict[str, float] = {}  # the history of a plateau

    def on_train_begin(self) -> None:
        live = self.session.optimizer
        if self._base is None:
            self._base = float(live.lr)
        if isinstance(self.schedule, Schedule):
            self.schedule = self.schedule.bound(self._base)
        if self._observes and not self._seen:
            self._seen = {k: float(v or 0.0) for k, v in self.schedule.numbers().items()}

    def on_epoch_begin(self, epoch: int) -> None:
        self._set(epoch if self.unit == "epoch" else self._count)

    def on_step(self, metrics: StepMetrics) -> None:
        self._count += 1
        if self.unit == "step":
            self._set(self._count)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self._observes:
            names = self.run.names if self.run is not None else ()
            usual = "val_loss" if "val_loss" in (*names, *logs) else "loss"
            watched = self.monitor or self.schedule.monitor or usual
            if not not_measured(watched, logs, names):
                value = read_monitor("LearningRateScheduler", watched, logs)
                self._seen = self.schedule.observed(self._seen, value)

    def _set(self, n: int) -> None:
        live = self.session.optimizer
        if self._observes:
            live.lr = self._seen["lr"]
        elif isinstance(self.schedule, Schedule) or len(signature(self.schedule).parameters) == 1:
            live.lr = self.schedule(n)
            for name, schedule in self._of_groups.items():
                self.session.scalars[name] = schedule(n)
        else:
            live.lr = self.schedule(n, float(live.lr))

    def state_dict(self) -> dict[str, Any]:
        return {"base": self._base, "count": self._count, "seen": self._seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._base, self._count, self._seen = state["base"], state["count"], dict(state["seen"])
