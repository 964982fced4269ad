"""`ws.find_batch_size`, computed from plans, and `ws.find_lr`, measured in a short run."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import StepMetrics
from wholestep.data.loader import DataLoader
from wholestep.errors import OptionError, UsageError
from wholestep.nn.module.module import Module
from wholestep.optim import AdamW
from wholestep.schedules.curves import Exponential
from wholestep.schedules.rates import OWN, rates_of
from wholestep.schedules.show import plot_to_file, terminal_plot
from wholestep.session.building.batch_size import MOST, largest_batch, with_one_row
from wholestep.session.building.build import define_session
from wholestep.steps.options import RATE
from wholestep.train.data.data_spec import DataSpec
from wholestep.train.data.loaders import prepare_data, sample_of
from wholestep.train.experiment import Experiment

NEAR = 4  # number of neighbours on either side over which losses are smoothed
WORSE = 4.0  # the search ends when the loss exceeds this multiple of the lowest loss
LEAST = 3 * NEAR  # the least number of steps of a search


def find_batch_size(
    model: Any, data: object = None, *, memory: object = None, most: int | None = None, **arguments: Any
) -> int:
    """The largest batch size whose training step fits into `memory`, solved from plans: nothing is compiled or run.

    A session built with it maps at most this many bytes: `ws.estimate(model, batch_size=found, ...).peak_bytes`.  The
    data, and the plans of `predict` and validation, need additional memory.

    Args:
        model: a model, a graph or a step.
        data: data as for `ws.fit`; or give inputs= and targets=, as for `ws.build_session`.
        memory: bytes, as a number or a text: "2GB", "512MiB"; None is what the device has free now.
        most: the largest answer; by default the rows of the data.
        arguments: those of `ws.build_session`: loss, optimizer (with data AdamW, as in `ws.fit`), metrics, accumulate
            (then the answer is the size of a part), precision, device, threads.

    Example::

        batch_size = ws.find_batch_size(model, (x, y), loss="cross_entropy", memory="2GB")
    """
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise OptionError(f"find_batch_size: most must be an integer of at least 1; received {most!r}.")
    rows = MOST
    if data is not None:
        arguments, rows = _describe_data(model, data, arguments)
    graph, arguments = with_one_row(model, arguments)
    definition, where = define_session(graph, arguments)
    return largest_batch(definition, where, memory, min(rows, most or rows))


def _describe_data(model: Any, data: object, arguments: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The types of the data's inputs and targets, as in `fit`, and its rows."""
    if not isinstance(model, Module):
        raise UsageError(
            f"data= describes the inputs of a ws.nn.Module; {type(model).__name__} declares its own. Leave data out."
        )
    for name in ("inputs", "targets"):
        if name in arguments:
            raise UsageError(f"{name}= and data specify the same thing; pass one of them.")
    loader = data if isinstance(data, DataLoader) else prepare_data(data, None, 1, False, 0)[0]
    described = DataSpec(model, sample_of(loader), arguments.get("loss"))
    specs = {"inputs": described.inputs(), "targets": described.targets(), "optimizer": AdamW(lr=1e-3)}
    try:
        rows = len(loader.source)  # type: ignore[arg-type]
    except (TypeError, UsageError):
        rows = MOST
    return {**specs, **arguments}, rows


# -- the learning rate -----------------------------------------------------------------------------------------------


def find_lr(
    model: Module, data: object, *, loss: Any, start: float = 1e-6, end: float = 10.0, steps: int = 100, **settings: Any
) -> RateSearch:
    """Find a good learning rate with a short run in which it grows from step to step: the one at which the loss falls
    fastest.

    The model is left as it is: the run trains a copy of it (Smith, arXiv:1506.01186).

    Args:
        model, data, loss: as for `ws.fit`.
        start, end: the first and the last rate; it ends before, where the loss is four times its lowest.
        steps: the number of rates that are tried.
        settings: other arguments of `ws.fit`: optimizer, batch_size, accumulate, clip_norm, precision, device.
            Groups with an lr of their own keep its ratio to that of the optimizer.

    Example::

        found = ws.find_lr(model, (x, y), loss="cross_entropy", optimizer=ws.AdamW())
        print(found.plot())
        ws.fit(model, (x, y), loss="cross_entropy", optimizer=ws.AdamW(lr=found.suggestion))
    """
    for name in ("schedule", "epochs", "callbacks", "checkpoint", "resume"):
        if name in settings:
            raise UsageError(f"find_lr sets the rate itself and stores nothing of its run; leave {name}= out.")
    if not (0 < start < end < math.inf) or not isinstance(steps, int) or steps < LEAST:
        raise OptionError(
            f"find_lr goes from start up to end, both above 0, in at least {LEAST} steps; received start={start}, "
            f"end={end}, steps={steps}."
        )
    options = {"nonfinite": "ignore", "progress": False, **settings}
    experiment = Experiment(model=copy.deepcopy(model), data=data, loss=loss, **options)
    gamma = (end / start) ** (1.0 / (steps - 1))
    rates = rates_of(experiment.optimizer or AdamW(), "find_lr")
    schedule = {
        RATE if name == OWN else name: Exponential(start * (rate / rates[OWN] if rates[OWN] else 1.0), gamma)
        for name, rate in rates.items()
    }
    watch = Rising(steps)  # it ends the run; every epoch has at least one step
    replace(experiment, schedule=schedule, epochs=steps, callbacks=[watch], validation=None, metrics=()).fit()
    return RateSearch(tuple(start * gamma**n for n in range(len(watch.losses))), tuple(watch.losses))


class Rising(Callback):
    """Records the loss of every step, and stops the run once the loss diverges."""

    every = 1

    def __init__(self, steps: int) -> None:
        self.steps, self.losses, self.lowest = steps, list[float](), math.inf

    def on_step(self, metrics: StepMetrics) -> None:
        if self.run is None or self.run.asked:
            return
        finite = math.isfinite(metrics.loss)
        if finite:
            self.losses.append(metrics.loss)
        recent = math.fsum(self.losses[-NEAR:]) / NEAR if len(self.losses) >= NEAR else math.inf
        self.lowest = min(self.lowest, recent)
        if not finite or recent > WORSE * self.lowest or len(self.losses) == self.steps:
            self.run.stop("find_lr has seen enough")


@dataclass(frozen=True)
class RateSearch:
    """The result of `ws.find_lr`: the loss at each learning rate, and the suggested rate."""

    lrs: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def smoothed(self) -> tuple[float, ...]:
        """Losses smoothed over neighbouring steps, since the loss of a single batch is noisy."""
        weights = np.bartlett(2 * NEAR + 3)[1:-1]
        total = np.convolve(self.losses, weights)[NEAR:-NEAR]
        return tuple((total / np.convolve(np.ones(len(self.losses)), weights)[NEAR:-NEAR]).tolist())

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest, per logarithm of the rate, before its minimum.

        Raises an error if it never falls.
        """
        losses = np.array(self.smoothed)
        slopes = np.gradient(losses)[: int(losses.argmin())] if len(losses) > 1 else losses[:0]
        if not slopes.size or slopes.min() >= 0:
            raise UsageError(
                f"find_lr: the loss fell at none of {len(self.lrs)} rates, so that none can be suggested. Begin with a "
                "smaller rate, start=1e-8, take more steps, or look at the data: ws.find_lr(...).plot()."
            )
        return self.lrs[int(slopes.argmin())]

    def __str__(self) -> str:
        lowest = int(np.argmin(self.smoothed)) if self.losses else 0
        lines = [f"{len(self.lrs)} learning rates tried, from {self.lrs[0]:.3g} to {self.lrs[-1]:.3g}"]
        lines.append(f"lowest loss {self.smoothed[lowest]:.4g} at lr {self.lrs[lowest]:.3g} (smoothed)")
        try:
            lines.append(f"suggestion: lr {self.suggestion:.3g}, where the loss falls fastest")
        except UsageError:
            lines.append("no suggestion: the loss fell at none of them")
        return "\n".join(lines)

    __repr__ = __str__

    def plot(self, file: object = None) -> str:
        """The loss over the learning rate, drawn into `file` (e.g. "lr.svg") or, without a file, returned as text."""
        points = list(zip(self.lrs, self.smoothed, strict=True))
        if file is not None:
            return plot_to_file("lr", points, file, f"suggestion: {self.suggestion:.3g}", log=True)
        return terminal_plot("lr", [(f"{lr:.2g}", loss) for lr, loss in points])
