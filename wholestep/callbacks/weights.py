"""Callbacks about weights: `WeightStatistics` records norms, update ratios and histograms, `Pruning` computes masks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.base import Callback
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import NORM, UPDATE_RATIO, Logs
from wholestep.errors import OptionError
from wholestep.optim import Optimizer
from wholestep.optim.wrappers.pruning import Pruned, pruning_rules

if TYPE_CHECKING:
    from wholestep.compiler.runtime.arrays import AnyArray


@dataclass(frozen=True, eq=False)
class Histogram:
    """The histogram of weights after an epoch (from 0): NumPy's `counts` between its `edges`.

    Elements that are not finite are in none of the bins.
    """

    epoch: int
    counts: AnyArray
    edges: AnyArray
    sum: float
    sum_of_squares: float

    @staticmethod
    def of(epoch: int, values: AnyArray, bins: int) -> Histogram:
        finite = values[np.isfinite(values)]
        counts, edges = np.histogram(finite, bins)
        return Histogram(epoch, counts, edges, float(finite.sum()), float((finite**2).sum()))


class WeightStatistics(Callback):
    """Measures the weights after epochs: `norm/<name>` and `update_ratio/<name>` in the history and in every log.

    The update ratio is |w - w before| / |w before| since the last measurement, or the start of the run; NaN if the
    weights were 0.  A ratio near 0 means a learning rate that is too small, or no gradient.  `histograms[name]` has
    one of each time, which `ws.TensorBoardLogger` shows too.

    Args:
        per: "parameter", or "layer": the parameters of a module together; those outside of layers are "model".
        every: the number of epochs between measurements.
        bins: the number of bins of a histogram.

    Example: `ws.fit(..., callbacks=[ws.WeightStatistics(per="layer")])["update_ratio/0"]`.
    """

    def __init__(self, per: str = "parameter", every: int = 1, bins: int = 30) -> None:
        from wholestep.session.inspect.statistics import need_grouping

        for name, value in (("every", every), ("bins", bins)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"WeightStatistics: {name} must be an integer of at least 1; received {value!r}.")
        self.per, self.epochs, self.bins = need_grouping("WeightStatistics", per), every, bins
        self.histograms: dict[str, list[Histogram]] = {}
        self._before: dict[str, AnyArray] = {}  # the parameters when they were last measured
        self._resumed = False

    def on_train_begin(self) -> None:
        if not self._resumed:
            self.histograms, self._before = {}, {}
        self._resumed = False
        self._before = self._before or self._parameters()
        if self.run is not None:
            names = [kind + name for name in self._groups(self._before) for kind in (NORM, UPDATE_RATIO)]
            self.run.names = tuple(dict.fromkeys([*self.run.names, *names]))

    def _parameters(self) -> dict[str, AnyArray]:
        return {name: self.session.get(name) for name in self.session.parameter_names}

    def _groups(self, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
        """The elements of each parameter or layer, concatenated to one array."""
        from wholestep.session.inspect.statistics import layers_of

        members = {name: [name] for name in arrays} if self.per == "parameter" else layers_of(arrays)
        return {
            group: np.concatenate([arrays[name].astype(np.float64).ravel() for name in names])
            for group, names in members.items()
        }

    def epoch_numbers(self, epoch: int) -> Logs:
        if (epoch + 1) % self.epochs:
            return {}
        arrays = self._parameters()
        now, before, numbers = self._groups(arrays), self._groups(self._before), Logs()
        for name, values in now.items():
            length = _norm(before[name])
            numbers[NORM + name] = _norm(values)
            numbers[UPDATE_RATIO + name] = _norm(values - before[name]) / length if length else math.nan
            self.histograms.setdefault(name, []).append(Histogram.of(epoch, values, self.bins))
        self._before = arrays
        return numbers

    def histograms_of(self, epoch: int) -> dict[str, Histogram]:
        """The histograms of an epoch, by name."""
        return {name: h for name, histograms in self.histograms.items() for h in histograms if h.epoch == epoch}

    def state_dict(self) -> dict[str, Any]:
        histograms = {name: _stack_histograms(each) for name, each in self.histograms.items()}
        return {"per": self.per, "bins": self.bins, "before": self._before, "histograms": histograms}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if (state["per"], state["bins"]) != (self.per, self.bins):
            raise OptionError(
                f"WeightStatistics: the run was started with per={state['per']!r}, bins={state['bins']}; received "
                f"per={self.per!r}, bins={self.bins}. Pass the same values to resume."
            )
        self._before, self._resumed = dict(state["before"]), True
        self.histograms = {name: _unstack_histograms(each) for name, each in state["histograms"].items()}


def _norm(values: AnyArray) -> float:
    with np.errstate(all="ignore"):  # differences of infinities are NaN, without a warning
        return float(np.sqrt((values**2).sum()))


def _stack_histograms(histograms: list[Histogram]) -> dict[str, Any]:
    """Pack histograms into a few arrays, for a checkpoint."""
    return {
        "epochs": [h.epoch for h in histograms],
        "counts": np.stack([h.counts for h in histograms]),
        "edges": np.stack([h.edges for h in histograms]),
        "sums": np.array([(h.sum, h.sum_of_squares) for h in histograms]),
    }


def _unstack_histograms(state: Mapping[str, Any]) -> list[Histogram]:
    rows = zip(state["epochs"], state["counts"], state["edges"], state["sums"].tolist(), strict=True)
    return [Histogram(epoch, counts, edges, *sums) for epoch, counts, edges, sums in rows]


SPARSITY = "sparsity"


class Pruning(Callback):
    """Computes new masks after every `rule.every` updates of an epoch and at its end, and logs the `sparsity`.

    `ws.fit` and `ws.Trainer` have one for each `ws.optim.Pruned` of their optimizer; give it yourself for the rule of a
    `@ws.step`.  Which updates get new masks depends on their position in the epoch only, so that a resumed run computes
    the same ones.

    Example: `ws.fit(step, data, callbacks=[ws.callbacks.Pruning(rule)])`.
    """

    def __init__(self, rule: Pruned) -> None:
        self.rule = rule
        self.pause = rule.every
        self.sparsity = 0.0

    def on_slice(self, steps: int, loss: float) -> None:
        run = self.run
        if run is not None and (run.step % self.rule.every == 0 or run.step == run.steps_per_epoch):
            self.sparsity = self.rule.update_masks(self.session)

    def epoch_numbers(self, epoch: int) -> Logs:
        if self.run is not None and self.run.steps_per_epoch is None:  # `on_slice` did not know the last step
            self.sparsity = self.rule.update_masks(self.session)
        return {SPARSITY: self.sparsity}


def add_pruning(callbacks: CallbackList, optimizer: Optimizer | None) -> None:
    """Append a `Pruning` for each `Pruned` of an optimizer that no callback serves yet."""
    served = [c.rule for c in callbacks if isinstance(c, Pruning)]
    for rule in pruning_rules(optimizer):
        if rule not in served:
            callbacks.append(Pruning(rule))
