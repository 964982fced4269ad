"""`Deadline`: a run that ends at a time, with a schedule over that time instead of over steps (`ws.fit(within=)`)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import Logs
from wholestep.errors import OptionError
from wholestep.schedules.base import Schedule

RESERVE = 1.25  # a validation, and the rest of a slice, may take this much longer than the longest one before
TIMED_ROWS = 256  # validation rows that are timed before training
FASTEST = 1e-7  # seconds; no step is faster
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def as_seconds(within: object) -> float:
    """A duration in seconds: a number, or a text such as "60s", "5m" or "1.5h"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", str(within).lower())
    seconds = float(match[1]) * UNITS.get(match[2] or "s", 0.0) if match else 0.0
    if not seconds > 0:
        raise OptionError(f"within={within!r}: expected a duration above 0, e.g. 60, '60s', '5m' or '1.5h'.")
    return seconds


class Deadline(Callback):
    """Sets the learning rate by the elapsed share of the run, and ends the run before the time limit.

    The number of steps that the time allows is that of the price of a step until the first steps are measured.  With
    validation data the weights at the end are those of the best validation, the last one included.

    Args:
        seconds: the time from `began` to the end of the run.
        schedule: returns the schedule for a run of a given number of steps; None leaves the learning rate alone.
        began: the value of `time.monotonic()` from which the time counts; None: when training begins.
    """

    def __init__(
        self,
        seconds: float,
        schedule: Callable[[int], Schedule] | None = None,
        began: float | None = None,
    ) -> None:
        self.seconds, self.schedule, self._began = seconds, schedule, began
        self._validate: Callable[[int | None], float] | None = None
        self._slice = self._last = self._validation = self._first = 0.0
        self._price = 1e-3  # seconds of a step
        self._steps = self._validated = 0  # steps so far, and steps before the last validation
        self._best = float("inf")
        self._weights: dict[str, Any] = {}

    def watch(self, trainer: Any, price: float) -> None:
        """Set the validation data, and the predicted seconds of a step, which the first measurements replace."""
        self._price = price
        if (held := trainer.validation) is not None:

            def validate(rows: int | None) -> float:
                table = held if rows is None else held.select(slice(rows))
                return float(trainer.session.evaluate_together(trainer.feed.named_table(table))["loss"])

            self._validate, self._held_rows = validate, len(held)

    def on_train_begin(self) -> None:
        self._began = self._began or time.monotonic()
        if self._validate is not None:  # compile the validation and time it on a few rows before it is needed
            rows = min(self._held_rows, TIMED_ROWS)
            self._validate(rows)
            began = time.monotonic()
            self._validate(rows)
            self._validation = (time.monotonic() - began) * self._held_rows / rows
        self._set_rate()

    def on_epoch_begin(self, epoch: int) -> None:
        self._last = time.monotonic()
        self._first = self._first if self._steps else self._last

    def on_slice(self, steps: int, loss: float) -> None:
        now = time.monotonic()
        self._slice, self._last = max(0.9 * self._slice, now - self._last), now
        self._steps += steps
        self._set_rate()
        self._stop_in_time(now)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        now = time.monotonic()
        value = logs.get("val_loss")
        if isinstance(value, float) and self._validate is not None:
            self._validation, self._validated = max(0.9 * self._validation, now - self._last), self._steps
            self._keep(value)
        self._stop_in_time(now)

    def _stop_in_time(self, now: float) -> None:
        """End the run if another slice and a validation would not fit."""
        assert self.run is not None
        if self._age(now) + RESERVE * (self._slice + self._validation) >= self.seconds:
            self.run.stop(f"the time of {self.seconds:g} s is over")

    def on_train_end(self) -> None:
        if self._validate is None or self.run is None or not self._steps:
            return
        if self._validated < self._steps:
            self._keep(self._validate(None))
        for name, value in self._weights.items():
            self.session.set(name, value)

    def _keep(self, loss: float) -> None:
        """Copy the weights if their validation loss is the smallest so far."""
        if loss < self._best:
            own = self.session.lasting_states
            self._best = loss
            self._weights = {name: self.session.get(name).copy() for name, is_own in own.items() if is_own}

    def _age(self, now: float) -> float:
        assert self._began is not None
        return now - self._began

    def _set_rate(self) -> None:
        """Set the learning rate of the current step in a run of as many steps as the time allows."""
        if self.schedule is not None:
            now = time.monotonic()
            price = (now - self._first) / self._steps if self._steps else self._price
            left = max(0.0, self.seconds - self._age(now))
            steps = self._steps + int(left / max(price, FASTEST))
            self.session.set_learning_rate(float(self.schedule(max(steps, 1))(min(self._steps, steps))))
