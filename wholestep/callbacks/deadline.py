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

TICKS = 10_000  # steps of the schedule over the whole time
RESERVE = 1.25  # a validation, and the rest of a slice, may take this much longer than the longest one before
UNITS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def as_seconds(within: object) -> float:
    """A duration in seconds: a number, or a text such as "60s", "5m" or "1.5h"."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-z]*)\s*", str(within).lower())
    seconds = float(match[1]) * UNITS.get(match[2] or "s", 0.0) if match else 0.0
    if not seconds > 0:
        raise OptionError(f"within={within!r}: expected a duration above 0, e.g. 60, '60s', '5m' or '1.5h'.")
    return seconds


class Deadline(Callback):
    """Sets the learning rate by the share of the time that has passed, and ends the run before the time is over.

    With validation data the weights at the end are those of the best validation, the last one included.

    Args:
        seconds: the time from `began` to the end of the run.
        schedule: the learning rate over 10,000 ticks; None leaves it alone.
        began: the value of `time.monotonic()` from which the time counts; None: when training begins.
    """

    def __init__(
        self,
        seconds: float,
        schedule: Schedule | None = None,
        began: float | None = None,
    ) -> None:
        self.seconds, self.schedule, self._began = seconds, schedule, began
        self._validate: Callable[[], float] | None = None
        self._slice = self._last = self._validation = 0.0
        self._best = float("inf")
        self._weights: dict[str, Any] = {}

    def watch(self, trainer: Any) -> None:
        """Use the validation data of a trainer at the end."""
        if (held := trainer.validation) is not None:
            self._validate = lambda: float(trainer.session.evaluate_together(trainer.feed.named_table(held))["loss"])

    def on_train_begin(self) -> None:
        self._began = self._began or time.monotonic()
        self._last = time.monotonic()
        self._set_rate()

    def on_epoch_begin(self, epoch: int) -> None:
        self._last = time.monotonic()

    def on_slice(self, steps: int, loss: float) -> None:
        now = time.monotonic()
        self._slice, self._last = max(0.9 * self._slice, now - self._last), now
        self._set_rate()
        assert self.run is not None
        if self._age(now) + RESERVE * (self._slice + self._validation) >= self.seconds:
            self.run.stop(f"the time of {self.seconds:g} s is over")

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._validation = max(self._validation, time.monotonic() - self._last)
        value = logs.get("val_loss")
        if isinstance(value, float):
            self._keep(value)

    def on_train_end(self) -> None:
        if self._validate is None or self.run is None or self.run.position.epoch < 0:
            return
        self._keep(self._validate())
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
        if self.schedule is not None:
            share = min(1.0, self._age(time.monotonic()) / self.seconds)
            self.session.set_learning_rate(float(self.schedule(int(share * TICKS))))
