"""`LossSpikes`: names the steps whose loss jumps, and the rows of the batch that cause it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import StepMetrics
from wholestep.errors import OptionError

log = logging.getLogger("wholestep")
WARM_UP = 20  # steps before the first judgement: the average of fewer losses says little


@dataclass(frozen=True)
class Spike:
    """A step whose loss jumped."""

    epoch: int
    step: int
    loss: float
    expected: float  # the moving average of the losses before it
    rows: tuple[int, ...]  # with `per_row=`: rows of the training data, by decreasing influence


class LossSpikes(Callback):
    """Finds steps whose loss is far above the moving average, logs them, and names their rows.

    With `ws.fit(..., per_row=["gradient_norm"])` (or "loss") the rows of the batch are ordered by that value.

    Args:
        deviations: a loss this many moving standard deviations above the moving average is a spike.
        decay: the weight of the past in both averages; 0.98 is a memory of about 50 steps.
        rows: rows to name.

    Example: `ws.fit(model, data, loss="mse", per_row=["loss"], callbacks=[ws.callbacks.LossSpikes()])`.
    """

    tolerant = True

    def __init__(self, deviations: float = 6.0, decay: float = 0.98, rows: int = 5) -> None:
        if not deviations > 0 or not 0 < decay < 1 or rows < 0:
            raise OptionError(
                f"LossSpikes: deviations must be above 0, decay between 0 and 1, rows at least 0; received "
                f"{deviations!r}, {decay!r} and {rows!r}."
            )
        self.deviations, self.decay, self.count = deviations, decay, rows
        self.spikes: list[Spike] = []
        self._mean = self._variance = 0.0
        self._steps = 0

    def on_step(self, metrics: StepMetrics) -> None:
        loss = float(metrics.loss)
        limit = self._mean + self.deviations * max(self._variance, 0.0) ** 0.5
        if self._steps >= WARM_UP and (loss > limit or not isfinite(loss)):
            self._report(Spike(metrics.epoch, metrics.step, loss, self._mean, self._rows(metrics)))
            return  # a spike does not raise the average
        weight = max(1 - self.decay, 1 / (self._steps + 1))
        difference = loss - self._mean
        self._mean += weight * difference
        self._variance = (1 - weight) * (self._variance + weight * difference**2)
        self._steps += 1

    def _report(self, spike: Spike) -> None:
        self.spikes.append(spike)
        rows = f"; rows {', '.join(map(str, spike.rows))}" if spike.rows else ""
        log.warning(
            "epoch %d, step %d: the loss is %.4g, and %.4g was expected%s",
            spike.epoch, spike.step, spike.loss, spike.expected, rows,
        )  # fmt: skip

    def _rows(self, metrics: StepMetrics) -> tuple[int, ...]:
        """The rows of the step's batch by decreasing gradient norm or loss; () if neither is stored."""
        assert self.run is not None
        options = self.session._programs.step_options
        if not options.per_row.capacity:
            return ()
        values = self.session.row_values()
        value = values.get("gradient_norm", values.get("loss"))
        assert value is not None
        batch = self.run.loader.batch_size
        own = slice(metrics.step * batch, (metrics.step + 1) * batch)
        order = np.argsort(-np.nan_to_num(value[own], nan=np.inf), kind="stable")[: self.count]
        return tuple(int(row) for row in self.run.loader.order(metrics.epoch)[own][order])

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self._mean, "variance": self._variance, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._mean, self._variance, self._steps = float(state["mean"]), float(state["variance"]), int(state["steps"])
