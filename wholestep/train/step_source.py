"""The updates of an epoch: data in memory runs many per native call, any other data one at a time.

An update takes `accumulate` consecutive batches of a loader, and the last one of an epoch the remaining ones.  Only
this file counts updates and joins batches, for all kinds of data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.backend import StepRange
from wholestep.compiler.frontend.step import ROW_NUMBERS
from wholestep.data.loader import DataLoader
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.sources import Stream
from wholestep.data.table import WEIGHT, Batch, Table, with_row_numbers
from wholestep.errors import InputError, ShapeError, UsageError
from wholestep.session import Session
from wholestep.session.running.run import DataCache
from wholestep.train.config import TrainConfig


class Loader(Protocol):
    """The methods of a loader that `Trainer.train` uses."""

    def shuffle(self, epoch: int, /) -> None: ...

    def reset(self) -> None: ...

    def next_batch(self) -> Any: ...


class StepSource:
    """The steps of a session over a loader's batches, under the names of the session's inputs."""

    def __init__(self, session: Session, config: TrainConfig) -> None:
        self.session, self.config = session, config
        self.step_options = session._programs.step_options
        self.accumulate = self.step_options.batches_per_update
        self.unchanged: DataCache | None = None  # cache for data that does not change between the epochs of a run

    def prepare(self, loader: Loader) -> None:
        """Compile and copy before the first epoch, so that its measured time does not include this."""
        table = arrays_of(loader)
        if table is not None and isinstance(loader, DataLoader) and self.unchanged is not None:
            self.session.prepare_to_run(self.named_table(table), self.rows_of_update(loader), self.unchanged)

    def count(self, loader: Loader) -> int | None:
        """The number of updates in an epoch; None if the loader has no length."""
        return updates_of(loader, self.accumulate)

    def check_sizes(self, loader: Loader) -> None:
        """Raise InputError if batches exceed the capacity, or the last update is too small, e.g. for batch norm."""
        if not isinstance(loader, DataLoader) or isinstance(loader.source, Stream):
            return
        inputs, rows = self.session._programs.main.inputs, self.rows_of_update(loader)
        most = inputs.most_rows
        if self.accumulate > 1 and most is not None and rows > most:
            raise InputError(
                f"accumulate={self.accumulate}: an update of this session takes {self.accumulate} batches of at most "
                f"{most // self.accumulate} rows; the loader has batch_size={loader.batch_size}. Give both one size."
            )
        inputs.check_rows((loader.rows - 1) % rows + 1)

    def seek(self, loader: DataLoader, epoch: int, update: int) -> None:
        """Set the position of a loader to an update."""
        batch = update * self.accumulate
        loader.seek(epoch, batch if isinstance(loader.source, Stream) else min(batch, len(loader)))

    def rows_of_update(self, loader: DataLoader) -> int:
        """The number of rows of a complete update."""
        return rows_of_batch(loader) * self.accumulate

    def of_epoch(
        self, loader: Loader, epoch: int, start: int, every: int | None, pause: int | None = None
    ) -> Iterator[StepRange]:
        """The updates of an epoch from `start` on, `every` at a time at most and none past a multiple of `pause`."""
        if start == self.count(loader):  # resumed after an epoch's last step, before its metrics were computed
            self.session.state.epoch = epoch + 1
            return iter(())
        table = arrays_of(loader)
        if isinstance(loader, DataLoader) and table is None and (rows := loader.epoch_table(epoch)) is not None:
            return self._in_memory(loader, rows, epoch, start, every, pause, drawn=True)
        if table is None or not isinstance(loader, DataLoader):
            return self._count_targets(loader, epoch, self._single(loader, epoch, start))
        return self._count_targets(loader, epoch, self._in_memory(loader, table, epoch, start, every, pause))

    def _count_targets(self, loader: Loader, epoch: int, parts: Iterator[StepRange]) -> Iterator[StepRange]:
        """The same updates; for packed rows with their numbers of targets, over which the epoch's loss is averaged.

        A row of packed sequences has as many targets as sequences or elements that are no padding.
        """
        if not isinstance(loader, DataLoader) or not isinstance(loader.source, PackedTable):
            return parts
        assert loader.source.weights is not None, "packed rows with targets have weights"
        counts = (loader.source.weights > 0).sum(axis=1)[loader.order(epoch)]
        of_update = np.add.reduceat(counts, np.arange(0, len(counts), self.rows_of_update(loader)))
        return (replace(part, rows=of_update[part.first : part.end]) for part in parts)

    def _in_memory(
        self,
        loader: DataLoader,
        table: Table,
        epoch: int,
        start: int,
        every: int | None,
        pause: int | None,
        drawn: bool = False,
    ) -> Iterator[StepRange]:
        """Updates by the native loop; an update that `drop_last` or `limit` shortens is a separate call.

        `drawn`: the table has the rows of this epoch, in their order.
        """
        rows, count = self.rows_of_update(loader), updates_of(loader, self.accumulate)
        assert count is not None
        cut = loader.rows < min(count * rows, len(table))
        native, parts = count - cut, list[Iterator[StepRange]]()
        if start < native:
            slices = self.session.run_in_slices(
                self.named_table(table),
                shuffle=loader.shuffles and not drawn,
                start=start,
                batch_size=rows,
                every=every,
                order_seed=loader.seed,
                most=native,
                pause=pause,
                unchanged=None if drawn else self.unchanged,
            )
            self.session.state.epoch = epoch
            parts.append(slices)
        if cut:
            parts.append(self._single(loader, epoch, max(start, native)))
        return chain.from_iterable(parts)

    def _single(self, loader: Loader, epoch: int, start: int) -> Iterator[StepRange]:
        """The updates of an epoch, one per call."""
        session = self.session
        updates = self._updates(loader, epoch, start)
        if not start:
            session.reset_metrics()
        session.state.epoch = epoch
        for step, named in enumerate(updates, start):
            loss = float(session.step(named))
            yield StepRange(0, step, np.array([loss]), np.array([_rows(named)]))
        session.state.epoch = epoch + 1

    def batch_at(self, loader: Loader, epoch: int, step: int) -> Mapping[str, Any]:
        """The inputs of one step, those of all workers."""
        rank_rows = getattr(loader, "own", None)
        if rank_rows is not None and isinstance(loader, DataLoader):
            loader.own = None
        try:
            return next(self._updates(loader, epoch, step))
        finally:
            if isinstance(loader, DataLoader):
                loader.own = rank_rows

    def _updates(self, loader: Loader, epoch: int, start: int) -> Iterator[Mapping[str, Any]]:
        """The inputs of each update of an epoch from `start` on."""
        batches = _batches(loader, epoch, start * self.accumulate)
        while group := list(islice(batches, self.accumulate)):
            with self.session.span("set_input"):
                named = self._join_batches([self.named_batch(batch) for batch in group])
            yield named

    def _join_batches(self, batches: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Concatenate the rows of several batches."""
        if len(batches) == 1:
            return batches[0]
        if self.step_options.per_micro_batch:
            self._need_micro_batches(batches)
        try:
            return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        except (KeyError, ValueError):
            shapes = [{name: np.shape(array) for name, array in batch.items()} for batch in batches]
            raise ShapeError(
                f"accumulate={self.accumulate} joins {len(batches)} batches to one update, so their arrays must have "
                f"the same names and rows of the same shape; received {shapes}. Pad the rows, or train with "
                "accumulate=1."
            ) from None

    def _need_micro_batches(self, batches: Sequence[Mapping[str, Any]]) -> None:
        """Raise InputError unless the session splits the joined rows into the same batches, for per_micro_batch."""
        rows = [_rows(batch) for batch in batches]
        sizes = self.session._programs.need("accumulate").definition.rows_in(batches[0])
        capacity = rows[0] if sizes is None else sizes[1] // self.step_options.accumulate
        if any(n != capacity for n in rows[:-1]) or rows[-1] > capacity:
            raise InputError(
                f"per_micro_batch=True computes the loss of each batch by itself, and this session splits an update "
                f"into {capacity} rows each; received batches of {', '.join(map(str, rows))} rows. Give batches of one "
                "size."
            )

    def named_batch(self, batch: Any) -> Mapping[str, Any]:
        """A batch under the names of the session's inputs."""
        if isinstance(batch, Batch):
            single = not isinstance(batch.inputs, Mapping)
            named = batch.named()
            return self._rename(named) if single else named
        return {self.config.data_input: batch.data, self.config.label_input: batch.labels}

    def with_row_inputs(self, table: Table) -> Table:
        """The table with further inputs of the step for each row: its number, and a weight of 1."""
        wanted = {i.name for i in self.session._programs.main.inputs.all}
        if ROW_NUMBERS in wanted and ROW_NUMBERS not in table.columns:
            table = with_row_numbers(table)
        if WEIGHT in wanted and table.weights is None:
            table = replace(table, weights=np.ones(len(table), np.float32))
        return table

    def named_table(self, table: Table) -> dict[str, Any]:
        """Columns under the names of the session's inputs."""
        return dict(self._rename(table.columns))

    def _rename(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        other = {"x": self.config.data_input, "labels": self.config.label_input}
        return {other.get(name, name): array for name, array in named.items()}


def arrays_of(loader: Loader) -> Table | None:
    """The data set if it is in memory and needs no transform."""
    return loader.arrays() if isinstance(loader, DataLoader) else None


def _batches(loader: Loader, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from `start` on, prefetched with `prefetch=`."""
    loader.shuffle(epoch)
    loader.reset()
    if isinstance(loader, DataLoader):
        if start:
            loader.seek(epoch, start)
        return loader.remaining()
    for _ in range(start):
        loader.next_batch()
    return iter(loader.next_batch, None)


def updates_of(loader: Loader, accumulate: int) -> int | None:
    """The number of updates in an epoch; None if the loader has no length."""
    try:
        return -(-len(loader) // accumulate)  # type: ignore[arg-type]
    except (TypeError, UsageError):
        return None


def need_batches(loader: Loader) -> None:
    """Raise InputError for an epoch without a batch."""
    if updates_of(loader, 1) != 0:
        return
    if isinstance(loader, DataLoader) and loader.drop_last:
        raise InputError(
            f"an epoch has no batches: drop_last=True leaves out a batch that is not full, and batch_size="
            f"{loader.batch_size} is more than the rows of an epoch. Choose a smaller batch_size, or drop_last=False."
        )
    raise InputError("an epoch has no batches: len(loader) is 0. Give at least one example.")


def rows_of_batch(loader: DataLoader) -> int:
    """The number of rows of a full batch, at most all rows of the data."""
    table = loader.arrays()
    return loader.batch_size if table is None else min(loader.batch_size, len(table))


def _rows(named: Mapping[str, Any]) -> int:
    return len(next(iter(named.values())))
