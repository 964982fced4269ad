"""`ReplicaHistory`: means and spread of the histories of replicas, the best of them, and their ensemble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, nan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.progress import short
from wholestep.callbacks.run import EpochStats
from wholestep.charts import draw
from wholestep.errors import NonFiniteError, UsageError
from wholestep.nn.module.module import Module
from wholestep.schedules.monitor_modes import canonical, mode_of
from wholestep.train.history import TrainHistory, align_right, charts_of

if TYPE_CHECKING:
    from wholestep.nn.layers.containers import Ensemble

LEAVE_OUT = "leave_out"  # the setting with the rows that a replica was trained without


@dataclass(frozen=True)
class Replica:
    """One of the runs: the settings in which it differs from the others, its model, history and folder."""

    index: int
    settings: Mapping[str, Any]
    model: Module
    history: TrainHistory
    folder: Path | None = None  # the folder of its checkpoints
    error: NonFiniteError | None = None  # the error that ended the replica early

    def last(self, name: str) -> float:
        """The last value of a metric; NaN if the replica diverged."""
        values = self.history[name] if name in self.history.names else []
        return nan if self.error is not None or not values else float(values[-1])

    def __str__(self) -> str:
        names = [n for n in self.history.scalars if n in ("loss", "val_loss")]
        numbers = ", ".join(f"{name} {short(name, self.last(name))}" for name in names)
        ended = f" ({type(self.error).__name__})" if self.error is not None else ""
        return f"{settings_text(self.settings)}  {numbers}{ended}"


def settings_text(settings: Mapping[str, Any]) -> str:
    """The settings of a replica as text: "optimizer.lr=0.001, seed=3"."""
    return ", ".join(f"{name}={value}" for name, value in settings.items())


@dataclass
class ReplicaHistory(TrainHistory):
    """The histories of replicas: `history["val_loss"]` is their mean in each epoch, `std` their standard deviation.

    Example::

        history = ws.fit(model, (x, y), validation=0.2, loss="cross_entropy", replicas=8, epochs=5)
        print(history["val_loss"][-1], history.std("val_loss")[-1], history.best)
    """

    replicas: tuple[Replica, ...] = field(default=(), compare=False, repr=False)

    @staticmethod
    def of(replicas: Sequence[Replica]) -> ReplicaHistory:
        """The history of some replicas."""
        histories = [r.history for r in replicas if r.error is None]
        most = max(len(history) for history in histories)
        epochs = [_mean([h.epochs[i] for h in histories if i < len(h)]) for i in range(most)]
        reasons = dict.fromkeys(h.stopped_by for h in histories if h.stopped_by)
        return ReplicaHistory(epochs, "; ".join(reasons), replicas=tuple(replicas))

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas)

    def std(self, name: str) -> list[float]:
        """The sample standard deviation of a metric over the replicas, in every epoch; 0 for a single replica."""
        values = [r.history[name] for r in self.replicas if r.error is None]
        columns = ([v[i] for v in values if i < len(v)] for i in range(len(self)))
        return [float(np.std(column, ddof=1)) if len(column) > 1 else 0.0 for column in columns]

    @property
    def monitor(self) -> str:
        """The metric by which replicas are compared: val_loss, or loss without validation data."""
        return "val_loss" if "val_loss" in self.names else "loss"

    @property
    def best(self) -> Replica:
        """The replica with the lowest `monitor` in its last epoch."""
        return self.rank_by(self.monitor)[0]

    def rank_by(self, name: str) -> list[Replica]:
        """The replicas, sorted by a metric of their last epochs, the best one first; diverged replicas are last."""
        sign = -1.0 if mode_of("rank_by", name) == "max" else 1.0
        values = {r.index: sign * r.last(canonical(name)) for r in self.replicas}
        return sorted(self.replicas, key=lambda r: v if isfinite(v := values[r.index]) else inf)

    def without(self, rows: Sequence[int]) -> ReplicaHistory:
        """The replicas trained without these rows of the training data; `without([])`: those of all rows.

        Example::

            history = ws.fit(model, (x, y), validation=0.2, loss="mse", sweep={"leave_out": [[], [3, 17]]})
            influence = history.without([3, 17])["val_loss"][-1] - history.without([])["val_loss"][-1]
        """
        wanted = set(map(int, rows))
        chosen = [r for r in self.replicas if set(map(int, r.settings.get(LEAVE_OUT, ()))) == wanted]
        if not chosen:
            raise UsageError(
                f"no replica was trained without the rows {sorted(wanted)}: give them to ws.fit, "
                f'sweep={{"leave_out": [[], {sorted(wanted)}]}}.'
            )
        return ReplicaHistory.of(chosen)

    def ensemble(self) -> Ensemble:
        """A module whose output is the mean of the outputs of all replicas, computed by one program."""
        from wholestep.nn.layers.containers import Ensemble  # imported here because few runs need it

        return Ensemble([r.model for r in self.replicas if r.error is None])

    def plot(self, path: str | PathLike[str] | None = None, names: Sequence[str] | None = None) -> str:
        """Draw the means of metrics, with bands of one standard deviation, into a file such as "runs.svg".

        Without a file it returns a drawing of the means as text.
        """
        if path is None:
            return super().plot(None, names)
        if not self.epochs:
            raise UsageError("there is nothing to plot: the history has no epochs.")
        chosen = self._text if names is None else [canonical(name) for name in names]
        curves = {name: self[name] for name in chosen}
        bands = {name: self.std(name) for name in chosen}
        draw(charts_of([e.epoch + 1 for e in self.epochs], curves, bands), Path(path))
        return str(path)

    def __str__(self) -> str:
        names = self._text
        varied = list(self.replicas[0].settings) if self.replicas else []
        rows = [["replica", *varied, *names]]
        rows += [
            [str(r.index), *(str(r.settings[s]) for s in varied), *(short(n, r.last(n)) for n in names)]
            for r in self.replicas
        ]
        rows += [["mean", *[""] * len(varied), *(short(n, self[n][-1]) for n in names)]]
        rows += [["std", *[""] * len(varied), *(short(n, self.std(n)[-1]) for n in names)]]
        return align_right(rows)


def _mean(epochs: Sequence[EpochStats]) -> EpochStats:
    """The statistics of one epoch, averaged over replicas."""
    logs = {name: np.mean([e.logs[name] for e in epochs if name in e.logs], 0).tolist() for name in epochs[0].logs}
    loss = float(np.mean([e.avg_loss for e in epochs]))
    return EpochStats(epochs[0].epoch, loss, epochs[0].steps, logs, any(e.partial for e in epochs))
