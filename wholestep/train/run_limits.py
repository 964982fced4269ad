"""Limits of a run: `fast_dev_run`, `limit_batches`, `limit_validation`, `overfit_batches`, `drop_last`."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from wholestep.callbacks.list import CallbackList
from wholestep.data.loader import DataLoader
from wholestep.data.order import Sequential, Shuffled
from wholestep.data.row_samplers import Importance
from wholestep.data.sources import Stream
from wholestep.data.table import Table, as_table
from wholestep.errors import InputError, OptionError, UsageError
from wholestep.nn.module.module import Module
from wholestep.train.data.frames import encode_data
from wholestep.train.data.loaders import concat_tables, masked_rows, prepare_data, with_weights

if TYPE_CHECKING:
    from wholestep.train.experiment import Experiment


def dev_run_of(run: Experiment) -> Experiment:
    """The run that `fast_dev_run=n` asks for: one epoch of n batches, n batches validated, and no files."""
    batches = run.fast_dev_run
    if batches is False:
        return run
    if not isinstance(batches, int) or batches < 1:
        raise OptionError(f"fast_dev_run={batches!r}: expected True (one batch), a number of batches, or False.")
    return replace(
        run,
        epochs=1,
        min_epochs=0,
        limit_batches=int(batches),
        limit_validation=None if run.validation is None else int(batches),
        validate_every_steps=None,
        checkpoint=None,
        resume=None,
        callbacks=[c for c in CallbackList(run.callbacks) if not c.writes],
    )


def limited_data(run: Experiment) -> tuple[DataLoader, Table | None]:
    """The training loader and validation table of a run within its limits."""
    data, validation = run.data, run.validation
    if isinstance(run.model, Module):
        data, validation = encode_data(run.model, data, validation, run.encoder, run.loss, run.shuffle, run.data_seed)
    loader, held = prepare_data(data, validation, run.batch_size, run.shuffle, run.data_seed, run.sampler)
    if run.leave_out is not None:  # [] too, so that runs with and without rows have one plan
        loader = masked_rows(loader, run.leave_out)
    if held is not None and (run.leave_out is not None or isinstance(loader.sampler, Importance)):
        held = with_weights(held)
    if run.drop_last and not loader.drop_last:
        loader = without_rest(loader)
    if run.overfit_batches is not None:
        if run.limit_batches is not None or run.limit_validation is not None:
            raise UsageError("overfit_batches= limits the data itself; leave limit_batches and limit_validation out.")
        return overfit_batches(loader, run.overfit_batches, validates=held is not None)
    if run.limit_batches is not None:
        loader = limit_batches(loader, run.limit_batches)
    if run.limit_validation is not None:
        held = _first_batches(held, run.limit_validation, loader.batch_size)
    return loader, held


def without_rest(loader: DataLoader) -> DataLoader:
    """A copy of the loader without an incomplete last batch."""
    if isinstance(loader.source, Stream):
        raise UsageError("drop_last: an iterable decides its own batches; leave its last one out there.")
    full = copy(loader)
    full.drop_last = True
    return full


def limit_batches(loader: DataLoader, limit: object) -> DataLoader:
    """A copy of the loader with shorter epochs."""
    streams = isinstance(loader.source, Stream)
    if streams and isinstance(limit, float):
        raise OptionError(
            f"limit_batches={limit}: an iterable does not say how many batches it has; give a number, not a share."
        )
    short = copy(loader)
    short.limit = _count("limit_batches", limit, None if streams else len(loader))
    return short


def _first_batches(held: Table | None, limit: object, batch_size: int) -> Table:
    if held is None:
        raise UsageError(
            f"limit_validation={limit!r} limits validation data, and there is none: give validation=(x, y) or "
            "validation=0.1, or leave it out."
        )
    count = _count("limit_validation", limit, -(-len(held) // batch_size))
    return held.select(np.arange(min(len(held), count * batch_size)))


def _count(name: str, limit: object, batches: int | None) -> int:
    """A number of batches from a number or a share of them."""
    if isinstance(limit, float) and batches is not None and 0.0 < limit <= 1.0:
        return max(1, ceil(limit * batches - 1e-9))
    if isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1:
        return limit if batches is None else min(limit, batches)
    raise OptionError(f"{name}={limit!r}: expected a number of batches, e.g. 10, or a share of them, e.g. 0.1.")


def overfit_batches(loader: DataLoader, batches: object, *, validates: bool) -> tuple[DataLoader, Table | None]:
    """The first batches in a fixed order as training data of every epoch, and as validation data."""
    if not isinstance(batches, int) or isinstance(batches, bool) or batches < 1:
        raise OptionError(f"overfit_batches={batches!r}: expected an integer of at least 1 batch, or None.")
    rows = batches * loader.batch_size
    if isinstance(loader.source, Table) and not loader.transforms:
        table = loader.source.select(np.arange(min(rows, len(loader.source))))
    else:
        ordered = copy(loader)
        ordered.sampler = Sequential() if isinstance(loader.sampler, Shuffled) else loader.sampler
        ordered.shuffle(0)
        parts = [as_table(batch) for batch in islice(ordered, batches)]
        loader.reset()
        if not parts:
            raise InputError("the data is empty: it has no batches. Training needs at least one example.")
        table = concat_tables(parts)
    size = min(loader.batch_size, len(table))
    return DataLoader(table, None, size, shuffle=False, seed=loader.seed), table if validates else None
