"""Runs that sample rows: by their losses or gradient norms in earlier epochs (`ws.data.Hard`), or for privacy."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.base import Callback
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.privacy_ledger import PrivacyLedger
from wholestep.callbacks.run import Logs
from wholestep.data.loader import DataLoader
from wholestep.data.order import Poisson, Shuffled
from wholestep.data.row_samplers import RowSampler
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.sources import Stream
from wholestep.data.table import Table
from wholestep.errors import UsageError
from wholestep.privacy.settings import capacity_for

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment

Array = np.ndarray[Any, Any]


class RowFeedback(Callback):
    """Passes losses or gradient norms of rows to a sampler after each epoch; stores its scores in checkpoints."""

    def __init__(self, sampler: RowSampler) -> None:
        self.sampler = sampler

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        assert self.run is not None
        assert self.run.history is not None
        loader, recorded = self.run.loader, self.run.history.per_row.epochs[-1]
        values = np.asarray(recorded.values[self.sampler.by], np.float64)
        if self.sampler.by == "gradient_norm":
            batches = self.session._programs.step_options.batches_per_update
            values = values * _scale(loader, recorded.rows, batches * loader.batch_size)
        self.sampler.record(recorded.rows, values, len(loader.source))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.sampler.scores is None else {"scores": self.sampler.scores}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sampler.restore(np.asarray(state["scores"], np.float64) if state else None)


def _scale(loader: DataLoader, rows: Array, update: int) -> Array | float:
    """Factors that remove the sampler's weights from gradient norms: mean weight in the update / weight of the row."""
    source, sampler = loader.source, loader.sampler
    assert not isinstance(source, Stream)
    weights = sampler.weights(len(source)) if isinstance(sampler, RowSampler) else None
    if weights is None:
        return 1.0
    own = weights[rows]
    user_weights = source.weights if isinstance(source, Table) else None
    whole = own if user_weights is None else own * user_weights[rows]
    number = np.arange(len(rows)) // update
    means = np.bincount(number, whole) / np.bincount(number)
    factors: Array = means[number] / own
    return factors


def sampled_run(run: Experiment, loader: DataLoader) -> tuple[Experiment, DataLoader]:
    """The run and its loader with a copy of the sampler, if the sampler needs the values of rows; else unchanged."""
    if not isinstance(loader.sampler, RowSampler):
        return run, loader
    drawn, sampler = copy(loader), loader.sampler.for_run()
    drawn.sampler = sampler
    names = dict.fromkeys((*run.per_row, sampler.by))
    return replace(run, per_row=tuple(names), callbacks=[RowFeedback(sampler), *CallbackList(run.callbacks)]), drawn


def private_run(run: Experiment, loader: DataLoader) -> tuple[Experiment, DataLoader]:
    """The run with its noise multiplier and a privacy ledger, and the loader with Poisson sampling."""
    assert run.privacy is not None
    if isinstance(loader.source, Stream) or not isinstance(loader.sampler, Shuffled) or loader.drop_last:
        raise UsageError(
            "privacy= draws every batch from all rows: give arrays, frames, or a data set with len(), and leave out "
            "shuffle=False, drop_last= and sampler=."
        )
    if isinstance(loader.source, PackedTable):
        raise UsageError(
            "privacy= protects single rows, but a packed row contains several sequences. Pad or cut the sequences to "
            "one length, and give them as arrays with a weight for each element."
        )
    if run.within is not None or run.overfit_batches is not None:
        raise UsageError("privacy= needs the number of steps before the run: leave out within= and overfit_batches=.")
    rows = len(loader.source)
    batch_size = min(loader.batch_size, rows)
    drawn = copy(loader)
    drawn.batch_size = capacity_for(rows, batch_size / rows)
    drawn.sampler = Poisson(batch_size, drawn.batch_size)
    steps = run.epochs * len(drawn)
    privacy = run.privacy.for_run(rows, batch_size, steps)
    ledger = PrivacyLedger(privacy, batch_size / rows, steps)
    return replace(run, privacy=privacy, callbacks=[ledger, *CallbackList(run.callbacks)]), drawn
