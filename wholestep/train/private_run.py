"""A run with differential privacy: its noise, the random draws of its batches, and its ledger."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.privacy_ledger import PrivacyLedger
from wholestep.data.loader import DataLoader
from wholestep.data.order import Poisson, Shuffled
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.sources import Stream
from wholestep.errors import UsageError
from wholestep.privacy.settings import capacity_for

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment


def private_run(run: Experiment, loader: DataLoader) -> tuple[Experiment, DataLoader]:
    """The run with its noise and a ledger, and the loader with batches that are drawn."""
    assert run.privacy is not None
    if isinstance(loader.source, Stream) or not isinstance(loader.sampler, Shuffled) or loader.drop_last:
        raise UsageError(
            "privacy= draws every batch from all rows: give arrays, frames, or a data set with len(), and leave out "
            "shuffle=False, drop_last= and sampler=."
        )
    if isinstance(loader.source, PackedTable):
        raise UsageError(
            "privacy= protects rows, and a row of packed sequences has several. Pad or cut the sequences to one "
            "length, and give them as arrays with a weight for each element."
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
