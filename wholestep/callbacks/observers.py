"""Callbacks that observe activations, gradients and kernel times during training."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import Logs
from wholestep.errors import OptionError, UsageError

if TYPE_CHECKING:
    from wholestep.session.inspect.profile import Profile
    from wholestep.session.inspect.statistics import Stats


class Observer(Protocol):
    """Receives the activations of every layer, at each step or at every `every`-th step."""

    def on_activations(self, step: int, stats: Mapping[str, Stats]) -> None:
        """The statistics of each layer's output, before step `step` changes the weights."""


class ConsoleObserver:
    """Prints a table of activations every n steps.  Example: `ws.fit(..., observer=ws.ConsoleObserver(100))`.

    Args:
        tensors: names of layers, of tensors kept by `keep(name)`, and of gradients, instead of all layers' outputs:
            `["encoder", "encoder.grad"]`.
    """

    def __init__(self, every: int = 1, file: IO[str] | None = None, tensors: Sequence[str] = ()) -> None:
        self.tensors = tuple(tensors)
        if not isinstance(every, int) or every < 1:
            raise OptionError(f"ConsoleObserver: every must be an integer of at least 1; received {every!r}.")
        self.every, self.file = every, file

    def on_activations(self, step: int, stats: Mapping[str, Stats]) -> None:
        from wholestep.session.inspect.statistics import table

        if step % self.every == 0:
            (self.file or sys.stdout).write(table(f"step {step}", list(stats.values())) + "\n")


class GradientStatistics(Callback):
    """Prints the statistics of all gradients on a batch after every epoch, and stores them in `history`.

    Args:
        per: "parameter", or "layer": the gradients of a module's parameters together.

    Example: `ws.GradientStatistics({"x": x[:64], "labels": y[:64]})`.
    """

    def __init__(self, batch: Mapping[str, object], quiet: bool = False, per: str = "parameter") -> None:
        from wholestep.session.inspect.statistics import need_grouping

        self.batch, self.quiet, self.per = batch, quiet, need_grouping("GradientStatistics", per)
        self.history: list[dict[str, Stats]] = []

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        from wholestep.session.inspect.statistics import table

        stats = self.session.gradient_stats(self.batch, per=self.per)
        self.history.append(stats)
        if not self.quiet:
            sys.stderr.write(table(f"gradients after epoch {epoch + 1}", list(stats.values())) + "\n")


class Profiler(Callback):
    """Times every kernel of a step once, after the first epoch, or at every n-th step: prints the table and stores it.

    `profile` is the last one, `profiles` has all by their numbers of steps.

    Args:
        batch: the inputs of the step by name; the first rows of the run's own data when None.
        path: also write a trace for Chrome's and Perfetto's viewers here.
        steps: the number of steps to time.  Their effects on the state are undone.
        every: profile after every so many steps of an epoch instead; the traces are `<path>-<number of steps>`.

    Example: `ws.Profiler(path="trace.json")`.
    """

    def __init__(
        self,
        batch: Mapping[str, object] | None = None,
        path: str | PathLike[str] | None = None,
        steps: int = 10,
        quiet: bool = False,
        every: int | None = None,
    ) -> None:
        if every is not None and (not isinstance(every, int) or every < 1):
            raise OptionError(f"Profiler: every must be an integer of at least 1; received {every!r}.")
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            raise OptionError(f"Profiler: steps must be an integer of at least 1; received {steps!r}.")
        self.batch, self.path, self.steps, self.quiet = batch, path, steps, quiet
        self.profile: Profile | None = None
        self.profiles: dict[int, Profile] = {}
        self.pause = every

    def on_slice(self, steps: int, loss: float) -> None:
        if self.pause is not None and self.run is not None and self.run.step % self.pause == 0:
            self._measure(self.path and _path_with_number(Path(self.path), self.session.updates_made))

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if self.pause is None and self.profile is None:
            self._measure(self.path)

    def _measure(self, path: str | PathLike[str] | None) -> None:
        session = self.session
        self.profile = session.profile(self.batch or self._first_batch(), steps=self.steps)
        self.profiles[session.updates_made] = self.profile
        if path is not None:
            session.trace(path, self.profile)
        if not self.quiet:
            sys.stderr.write(f"{self.profile}\n")

    def _first_batch(self) -> Mapping[str, object]:
        from wholestep.data.loader import DataLoader
        from wholestep.train.data.loaders import sample_of

        loader = self.run.loader if self.run is not None else None
        if not isinstance(loader, DataLoader):
            raise UsageError("Profiler: a batch cannot be taken from this data; give one: Profiler({'x': x[:64]}).")
        return sample_of(loader).named()


def _path_with_number(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")
