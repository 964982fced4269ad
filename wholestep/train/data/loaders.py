"""Converts user data to a training loader, a validation table, and a first batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.ir.types import letter_of
from wholestep.data.loader import DataLoader
from wholestep.data.order import Sampler
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.sequences.ragged import as_ragged
from wholestep.data.sources import Stream, as_source
from wholestep.data.splits import Holdout
from wholestep.data.table import Array, Batch, Table, as_table
from wholestep.errors import InputError, OptionError, UsageError, WholestepError
from wholestep.steps.options import Measure, as_measures
from wholestep.train.data.frames import split_holdout
from wholestep.train.step_source import need_batches, rows_of_batch

if TYPE_CHECKING:
    from wholestep.metrics import Metric


def prepare_data(
    data: object, validation: object, batch_size: int, shuffle: bool, seed: int, sampler: Sampler | None = None
) -> tuple[DataLoader, Table | None]:
    """A loader of the training data, and the validation data as a table."""
    if isinstance(validation, float | Holdout):
        data, validation = _split_holdout(data, validation, seed, shuffle)
    if isinstance(data, DataLoader):
        if sampler is not None:
            raise UsageError(
                "sampler= is for arrays and data sets; give it to the loader: ws.DataLoader(..., sampler=)."
            )
        loader = copy(data)  # a copy, so that the run has its own position
    else:
        loader = DataLoader(data, None, batch_size, shuffle=shuffle, seed=seed, sampler=sampler)
    return loader, None if validation is None else _validation_table(validation, loader)


def masked_rows(loader: DataLoader, rows: Sequence[int]) -> DataLoader:
    """A copy of the loader with weights of rows, 0 for the rows of `leave_out=`."""
    table = loader.source
    if not isinstance(table, Table):
        raise UsageError("leave_out= needs data in memory: arrays, or a frame. Read the data set into arrays first.")
    chosen = np.asarray(rows)
    inside = (
        letter_of(chosen.dtype) in "iu" and chosen.ndim == 1 and bool(((chosen >= 0) & (chosen < len(table))).all())
    )
    if chosen.size and not inside:
        raise OptionError(
            f"leave_out={rows!r}: expected rows of the training data, integers from 0 to {len(table) - 1}."
        )
    masked = copy(loader)
    masked.source = with_weights(table)
    weights = masked.source.weights
    assert weights is not None
    weights[chosen.astype(np.int64)] = 0
    if not weights.any():
        raise OptionError(f"leave_out= leaves out all {len(table)} rows; nothing is left to train on.")
    return masked


def with_weights(table: Table) -> Table:
    """A table with weights of its own, 1 unless it has some."""
    return replace(table, weights=np.ones(len(table), np.float32) if table.weights is None else table.weights.copy())


def _split_holdout(data: object, validation: float | Holdout, seed: int, shuffle: bool) -> tuple[Any, Any]:
    fraction = validation.fraction if isinstance(validation, Holdout) else validation
    if isinstance(data, DataLoader):
        ordered = "" if data.shuffles else ", shuffle=False"
        raise UsageError(
            f"validation={fraction} holds out rows of arrays or a data set; received {type(data).__name__}. Split it "
            f"before: train, held = ws.data.split(data, {fraction}{ordered}); then ws.fit(model, "
            "ws.DataLoader(train), validation=held)."
        )
    if isinstance(as_source(data), Stream):
        raise UsageError(
            f"validation={fraction} holds out rows of arrays or a data set; received {type(data).__name__}, an "
            "iterable of batches. Give other data to validation=: (x, y), or another iterable."
        )
    return split_holdout(data, validation, seed, shuffle)


def _validation_table(data: object, loader: DataLoader) -> Table:
    try:
        if isinstance(loader.source, PackedTable) and (ragged := as_ragged(data)) is not None:
            return ragged.for_rows_of(loader.source.capacity, loader.source.slots).table
        return table_of(data)
    except WholestepError as error:
        raise type(error)(f"validation: {error}") from None


def table_of(data: object) -> Table:
    """The data for an evaluation as one table in memory; a data set or an iterable is read once."""
    loader = copy(data) if isinstance(data, DataLoader) else DataLoader(data, shuffle=False)
    if (table := loader.every_row()) is not None:
        return table
    need_batches(loader)
    parts = [as_table(batch) for batch in loader]
    if not parts:
        raise InputError("the data is empty: it has no batches. There is nothing to measure.")
    return concat_tables(parts)


def concat_tables(parts: list[Table]) -> Table:
    """Concatenate the rows of several tables."""
    weights = [p.weights for p in parts if p.weights is not None]
    return Table(
        _columns([p.inputs for p in parts]),
        _columns([p.targets for p in parts]),
        np.concatenate(weights) if weights else None,
    )


def _columns(parts: list[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def sample_of(loader: DataLoader) -> Batch:
    """A first batch, after transforms."""
    if isinstance(loader.source, Stream):
        first = next(islice(iter(loader.source), 1), None)
        loader.reset()
        if first is None:
            raise InputError("the data is empty: it has no batches. Training needs at least one example.")
        return loader.transformed(first, np.arange(first.rows), loader.epoch)
    rows = np.arange(min(loader.batch_size, len(loader.source)))
    return loader.batch_of(rows, loader.epoch)


def batch_capacity(loader: DataLoader, first: int, *, exact: bool) -> int:
    """The largest number of rows of a batch; for an iterable the rows of its `first` batch, or `batch_size` if larger.

    `exact`: micro-batches have to be these batches, so the capacity is not larger.
    """
    if not isinstance(loader.source, Stream):
        return rows_of_batch(loader)
    return first if exact else max(first, loader.batch_size)


def with_room(metrics: Any, rows: int) -> Any:
    """The metrics with buffers for this number of rows, unless they have a capacity."""
    if not metrics:
        return ()
    measures = as_measures(metrics)
    return [_about(m, m.metric.with_capacity(rows) if rows else m.metric) for m in measures]


def _about(measure: Measure, metric: Metric) -> Any:
    """A metric as `build_session` takes it: alone, or with the names of an output and an input."""
    names = [name for name in (measure.prediction, measure.target) if name is not None]
    return (metric, *names) if names else metric


def rows_to_measure(loader: DataLoader, held: Table | None) -> int:
    """The number of rows of the larger data set; 0 if it is not known."""
    rows = 0 if isinstance(loader.source, Stream) else len(loader.source)
    return max(rows, 0 if held is None else len(held))
