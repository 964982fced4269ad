"""Search for settings: every combination of a grid, or random draws, each a whole run of an experiment.

Runs whose programs are the same, such as those that differ in learning rates, loss weights or other runtime scalars,
share one compiled program: the cache of plans knows them by their structure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from wholestep.errors import OptionError
from wholestep.schedules.monitor_modes import mode_of
from wholestep.train.experiment import Experiment
from wholestep.train.history import TrainHistory

Space = Mapping[str, Sequence[Any] | Callable[[np.random.Generator], Any]]


@dataclass(frozen=True)
class Trial:
    """One run of a search: its settings, its history, and the best value of the monitored number."""

    settings: Mapping[str, Any]
    experiment: Experiment
    history: TrainHistory
    value: float


@dataclass(frozen=True)
class SearchResult:
    """The trials of a search, in their order, and `best`, that of the best value."""

    monitor: str
    mode: str
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial of the best value; values that are NaN come last."""
        return self.by_value[0]

    @property
    def by_value(self) -> list[Trial]:
        """All trials, the best one first."""
        sign = 1.0 if self.mode == "min" else -1.0
        return sorted(self.trials, key=lambda t: np.inf if np.isnan(t.value) else sign * t.value)

    def __str__(self) -> str:
        rows = [f"{t.value:12.6g}  " + ", ".join(f"{k}={v}" for k, v in t.settings.items()) for t in self.by_value]
        return "\n".join([f"{self.monitor:>12}  settings", *rows])


def search(
    build: Callable[..., Experiment],
    space: Space,
    trials: int | None = None,
    *,
    monitor: str = "val_loss",
    mode: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> SearchResult:
    """Run an experiment with different settings, and rank them by a number of their histories.

    Args:
        build: a function of the settings that returns a `ws.Experiment`, as a script for `wholestep train` has.
        space: for each argument of `build` a list of values; or, for random draws, a function of a NumPy generator.
        trials: the number of random draws; None runs every combination of the lists.
        monitor: a name in the history; a trial's value is its best one.
        mode: "min" or "max"; None infers it from the name.
        seed: of the draws.
        settings: further arguments of `Experiment.fit`, the same for all trials.

    Example::

        found = ws.search(build, {"lr": [1e-3, 1e-2], "width": [32, 64]}, progress=False)
        drawn = ws.search(build, {"lr": lambda rng: 10 ** rng.uniform(-4, -1), "width": [32, 64]}, trials=20)
        print(found.best.settings)
    """
    way = mode or mode_of("search", monitor)
    done = []
    for chosen in _combinations(space) if trials is None else _draws(space, trials, seed):
        experiment = build(**chosen)
        if not isinstance(experiment, Experiment):
            raise OptionError(f"search: build returns a ws.Experiment; received {experiment!r}.")
        history = experiment.fit(**settings)
        done.append(Trial(chosen, experiment, history, _best(history, monitor, way)))
    return SearchResult(monitor, way, tuple(done))


def _combinations(space: Space) -> Iterator[dict[str, Any]]:
    for name, values in space.items():
        if callable(values) or isinstance(values, str) or not len(values):
            raise OptionError(f"search: a grid has a list of values for {name!r}; received {values!r}. Give trials=.")
    for values in product(*space.values()):  # type: ignore[arg-type]
        yield dict(zip(space, values, strict=True))


def _draws(space: Space, trials: int, seed: int) -> Iterator[dict[str, Any]]:
    if not isinstance(trials, int) or isinstance(trials, bool) or trials < 1:
        raise OptionError(f"search: trials must be an integer of at least 1; received {trials!r}.")
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        yield {n: v(rng) if callable(v) else v[int(rng.integers(len(v)))] for n, v in space.items()}


def _best(history: TrainHistory, monitor: str, mode: str) -> float:
    if monitor not in history.names:
        raise OptionError(f"search monitors {monitor!r}; the history has: {', '.join(history.names)}.")
    values = np.asarray(history[monitor], np.float64)
    if np.isnan(values).all():
        return float("nan")
    return float(np.nanmin(values) if mode == "min" else np.nanmax(values))
