"""Callbacks that end training."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.monitor import Best, not_measured, read_monitor
from wholestep.callbacks.run import Logs, StepMetrics
from wholestep.errors import OptionError
from wholestep.schedules.monitor_modes import canonical, mode_of, mode_of_name


class EarlyStopping(Callback):
    """Ends training when a number has not improved for `patience` epochs.

    Args:
        monitor: a name in the logs, e.g. "val_loss" or "val_accuracy".
        patience: epochs without improvement until training ends; with `validate_every=` or `validate_every_steps=`,
            validations instead of epochs.
        mode: "min" where smaller is better, "max" where larger is; None infers it from the metric, else from its name.
        min_delta: the least difference that counts as better.
        restore_best: put the weights of the best epoch back at the end.
        baseline: values that are not better than it count as no improvement.
        divergence: end at once if the number is worse than this, or not finite.

    Example: `ws.EarlyStopping("val_loss", patience=3)`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        patience: int = 10,
        mode: str | None = None,
        min_delta: float = 0.0,
        restore_best: bool = False,
        baseline: float | None = None,
        divergence: float | None = None,
    ) -> None:
        if not isinstance(patience, int) or isinstance(patience, bool) or patience < 1:
            raise OptionError(f"EarlyStopping: patience must be an integer of at least 1; received {patience!r}.")
        self.monitor, self.patience, self.restore_best = canonical(monitor), patience, restore_best
        self.best = Best(mode_of_name(monitor) or "" if mode is None else mode, min_delta)
        self.baseline, self.divergence = need_limit("baseline", baseline), need_limit("divergence", divergence)
        self._mode_by_metric = mode is None
        self.wait, self.stopped_epoch, self.best_epoch = 0, None, None
        self._weights: dict[str, Any] = {}

    stopped_epoch: int | None
    best_epoch: int | None

    @property
    def mode(self) -> str:
        return self.best.mode

    def on_train_begin(self) -> None:
        if self.run is not None and self.monitor in self.run.names:
            self._need_mode()
        if self.run is not None and self._mode_by_metric:
            self.best.mode = self.run.modes.get(self.monitor, self.mode)
        if self.wait >= self.patience:  # true at once in a resumed run that had already ended
            self._stop()

    def _need_mode(self) -> None:
        if not self.mode:
            self.best.mode = mode_of("EarlyStopping", self.monitor, self.run.modes if self.run else None)

    def _stop(self) -> None:
        if self.run is not None:
            self.run.stop(f"{self.monitor} has not improved for {self.patience} epochs")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        names = self.run.names if self.run else ()
        if not not_measured(self.monitor, logs, names):
            self._judge(epoch, read_monitor("EarlyStopping", self.monitor, logs, names))

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        if self.monitor.startswith("val_"):
            self._judge(epoch, read_monitor("EarlyStopping", self.monitor, logs))

    def _judge(self, epoch: int, value: float) -> None:
        self._need_mode()
        if self._is_divergent(value) and self.run is not None:
            self.stopped_epoch = epoch
            self.run.stop(f"{self.monitor} is {value:g}, beyond the divergence of {self.divergence:g}")
        if self.best.improves(value):
            self.best_epoch = epoch
            if self.restore_best:
                self._weights = {name: self.session.get(name) for name in self.session.state.names}
            if self.baseline is None or self.best.better(value, self.baseline):
                self.wait = 0
                return
        self.wait += 1
        if self.wait >= self.patience:
            self.stopped_epoch = epoch
            self._stop()

    def _is_divergent(self, value: float) -> bool:
        """Is the value worse than `divergence`, or not finite?"""
        return self.divergence is not None and not (
            math.isfinite(value) and (value <= self.divergence if self.mode == "min" else value >= self.divergence)
        )

    def on_train_end(self) -> None:
        for name in self._weights:
            # the states of an `evaluate` that a resumed run has not compiled yet are missing
            if name in self.session.state:
                self.session.state.set(name, self._weights[name])
        self._weights = {}

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self.best.value,
            "wait": self.wait,
            "best_epoch": self.best_epoch,
            "stopped_epoch": self.stopped_epoch,
            "weights": self._weights,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best.value, self.wait, self.best_epoch = state["best"], state["wait"], state["best_epoch"]
        self.stopped_epoch, self._weights = state["stopped_epoch"], dict(state["weights"])


def need_limit(name: str, value: object) -> float | None:
    """Raise OptionError unless the value is a finite number or None."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)):
        return value
    raise OptionError(f"EarlyStopping: {name} must be a number, or None; received {value!r}.")


class TimeBudget(Callback):
    """Ends training after some seconds.  Example: `ws.TimeBudget(600)`."""

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise OptionError(f"TimeBudget: seconds must be above 0; received {seconds!r}.")
        self.seconds, self._end = seconds, float("inf")

    def on_train_begin(self) -> None:
        self._end = time.monotonic() + self.seconds

    def on_slice(self, steps: int, loss: float) -> None:
        if time.monotonic() >= self._end and self.run is not None:
            self.run.stop(f"the time budget of {self.seconds:g} s is spent")


class StepBudget(Callback):
    """Ends training after a number of steps.  Example: `ws.StepBudget(1000)`."""

    def __init__(self, steps: int) -> None:
        if not isinstance(steps, int) or steps < 1:
            raise OptionError(f"StepBudget: steps must be an integer of at least 1; received {steps!r}.")
        self.steps, self.done = steps, 0
        self.every = 1  # exact, since no slice exceeds the budget

    def on_train_begin(self) -> None:
        self._stop_when_spent()

    def on_step(self, metrics: StepMetrics) -> None:
        self.done += 1
        self._stop_when_spent()

    def _stop_when_spent(self) -> None:
        if self.done >= self.steps and self.run is not None:
            self.run.stop(f"the budget of {self.steps} steps is spent")

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.done = state["done"]


class PruneTrial(Callback):
    """Reports a number to a trial of Optuna, or of anything with `report` and `should_prune`, and ends the run when
    the trial says so; `pruned` is then True.

    Args:
        trial: `report(value, epoch)` and `should_prune()`, as an `optuna.Trial` has them.
        monitor: a name in the logs.

    Example::

        def objective(trial):
            pruning = ws.callbacks.PruneTrial(trial)
            history = build(lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True)).fit(callbacks=[pruning])
            if pruning.pruned:
                raise optuna.TrialPruned
            return min(history["val_loss"])
    """

    def __init__(self, trial: Any, monitor: str = "val_loss") -> None:
        if not (hasattr(trial, "report") and hasattr(trial, "should_prune")):
            raise OptionError(f"PruneTrial takes a trial with report and should_prune; received {trial!r}.")
        self.trial, self.monitor, self.pruned = trial, canonical(monitor), False

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self.trial.report(read_monitor("PruneTrial", self.monitor, logs, self.run.names if self.run else ()), epoch)
        self.pruned = bool(self.trial.should_prune())
        if self.pruned and self.run is not None:
            self.run.stop(f"the trial was pruned at epoch {epoch}")
