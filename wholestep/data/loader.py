"""`DataLoader`: batches of a data set, in an order that is a function of (seed, epoch)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from wholestep.compiler.frontend.step import ROW_NUMBERS
from wholestep.data.loader_workers import Pools, Task
from wholestep.data.order import Poisson, RankRows, Rows, Sampler, Sequential, Shuffled, scatter_rows
from wholestep.data.row_samplers import RowSampler
from wholestep.data.sources import RowSource, Stream, as_source
from wholestep.data.table import INPUT, Array, Batch, Table, with_row_numbers
from wholestep.data.transforms import Transform, TransformDraw
from wholestep.errors import InputError, OptionError, UsageError, WholestepError

T = TypeVar("T")

LARGEST_COPY = 1 << 28  # the most bytes of a copy of an epoch's drawn rows
_END = object()
_PATIENCE = 0.1  # seconds between checks whether the consumer has stopped


class DataLoader:
    """Batches of arrays, of a data set that is read row by row, or of an iterable.

    Each `for` loop over a loader is one epoch, from its first batch to its last, `len(loader)` of them, and the next
    loop has the order of the next epoch.  Two loops over one loader are independent of each other, and `ws.fit` and
    `model.evaluate` leave it as it was.

    Args:
        data: arrays `x`, `(x, y)`, `(x, y, sample_weight)` or dicts of them; an object with `len` and `[i]` (a torch
            Dataset); or an iterable of batches.
        labels: the targets, where `data` is the inputs alone.
        batch_size: rows of a batch; the last one has what is left, which is all rows where there are fewer.
        shuffle: visit the rows in another order in every epoch.
        drop_last: leave out a last batch that is not full.  Of fewer rows than `batch_size` no batch is left, and
            `ws.fit` refuses such a loader.
        sampler: another order, e.g. `ws.data.Balanced(y)`; replaces `shuffle`.  `ws.data.Hard()` and others that read
            the values of rows need `ws.fit`.
        transform: one or several changes to the inputs, e.g. `[ws.data.Flip(), ws.data.Crop(4)]`.
        seed: the seed of the order and of random transforms; `fit` keeps it and ignores its own seed here.
        prefetch: batches that a background thread computes in advance; results are the same.
        num_workers: processes that read a data set with `len` and `[i]`, for rows that take long to read; results are
            the same.  A data set that draws from NumPy's, Python's or torch's global generator draws from one that is
            seeded for each batch.
        collate_fn: a function of a list of examples that returns a batch of them, `(x, y)` or a dict of arrays, e.g. to
            pad them; without it they are stacked.
        limit: the largest number of batches of an epoch; the others of its order are left out.

    Example::

        for batch in ws.data.DataLoader(x, y, batch_size=64):
            session.step(batch.named())
    """

    def __init__(
        self,
        data: object,
        labels: object = None,
        batch_size: int = 32,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Sampler | None = None,
        transform: Transform | Sequence[Transform] = (),
        prefetch: int = 0,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        limit: int | None = None,
    ) -> None:
        limits = (
            ("batch_size", batch_size, 1),
            ("prefetch", prefetch, 0),
            ("num_workers", num_workers, 0),
            ("seed", seed, 0),
        )
        for name, value, least in limits if limit is None else (*limits, ("limit", limit, 1)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
                raise OptionError(f"DataLoader: {name} must be an integer of at least {least}; received {value!r}.")
        self.source = as_source(data, labels)
        if num_workers or collate_fn is not None:
            self.source = _need_rows(self.source, "num_workers" if num_workers else "collate_fn").with_collate(
                collate_fn
            )
        self.num_workers = int(num_workers)
        self.pools = Pools() if num_workers else None
        self.batch_size, self.seed, self.drop_last, self.prefetch = int(batch_size), int(seed), drop_last, prefetch
        self.limit = limit
        self.sampler: Sampler = sampler or (Shuffled() if shuffle else Sequential())
        self.transforms = (transform,) if callable(transform) else tuple(transform)
        self.epoch = self.position = 0
        self._order: tuple[int, Rows] | None = None
        self._draws: tuple[tuple[int, int], list[Rows]] | None = None  # the batches of an epoch, if they are drawn
        self._sought = False  # the position was set by `seek`, so the next loop begins there
        self._stream: Iterator[Batch] | None = None  # an iterable's batches from the current position on
        self._passed = 0  # rows of a stream that were yielded in this epoch
        self.numbers_rows = False  # do batches have the number of each row, for augmentations?
        self.own: RankRows | None = None  # with several workers, the rows that this worker reads
        if isinstance(self.source, Stream) and (sampler is not None or drop_last):
            raise UsageError("DataLoader: an iterable decides its own order and batches; leave out sampler, drop_last.")

    # -- the interface of a training loop ------------------------------------------------------------------------

    def shuffle(self, epoch: int) -> None:
        """Use the order of an epoch: a function of the seed and the epoch."""
        self.epoch = int(epoch)
        self._rewind()

    def reset(self) -> None:
        """Back to the first batch, in the same order."""
        self._rewind()

    def _rewind(self) -> None:
        self.position, self._stream, self._passed, self._sought = 0, None, 0, False

    def seek(self, epoch: int, batch: int = 0) -> None:
        """Set the position: the next batch is batch number `batch` of an epoch."""
        self.shuffle(epoch)
        if not isinstance(self.source, Stream) and not 0 <= batch <= len(self):
            raise OptionError(f"seek: an epoch has {len(self)} batches; received batch {batch}.")
        self.position, self._sought = batch, True

    def next_batch(self) -> Batch | None:
        """The next batch of the epoch, or None at its end."""
        if isinstance(self.source, Stream):
            item = None if self.position == self.limit else next(self._open_stream(self.source), None)
            batch = None if item is None else self._transform_stream(item, self._passed, self.epoch)
        else:
            batch = self._make(self.position, self.epoch) if self.position < len(self) else None
        return None if batch is None else self._count_batch(batch)

    def _count_batch(self, batch: Batch) -> Batch:
        self.position += 1
        self._passed += batch.rows
        self._sought = False
        return batch

    def _open_stream(self, source: Stream) -> Iterator[Batch]:
        """The batches of an iterable from the position on."""
        if self._stream is None:
            self._stream = iter(source)
            self._passed = sum(skipped.rows for skipped in islice(self._stream, self.position))
        return self._stream

    def __len__(self) -> int:
        """The number of batches of an epoch."""
        if isinstance(self.source, Stream):
            raise UsageError("the number of batches of an iterable is not known; wrap arrays or a data set with len().")
        # Called after every slice of steps, so it avoids computing the order of an epoch, which takes milliseconds.
        if isinstance(self.sampler, Poisson):
            batches = self.sampler.count(len(self.source))
            return batches if self.limit is None else min(batches, self.limit)
        rows = self._rows_in_order
        batches = rows // self.batch_size if self.drop_last else -(-rows // self.batch_size)
        return batches if self.limit is None else min(batches, self.limit)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch that no loop has begun.

        After `seek` or `load_state_dict` the next loop starts there.  `state_dict` inside a loop has its position.
        """
        begun = self.position > 0 and not self._sought
        if begun or (not isinstance(self.source, Stream) and self.position >= len(self) > 0):
            self.shuffle(self.epoch + 1)
        reader = copy(self)  # the copy has a position that is independent of this loader's
        self._stream = None
        for batch in reader.remaining():
            self.epoch, self.position = reader.epoch, reader.position
            self._stream, self._sought = None, False
            yield batch
        if self.epoch == reader.epoch:
            self.shuffle(reader.epoch + 1)

    def remaining(self) -> Iterator[Batch]:
        """The batches from the position to the end of the epoch; with `prefetch` a thread computes them in advance."""
        if self.pools is not None:
            yield from self._by_workers(self.pools)
            return
        if not self.prefetch:
            yield from iter(self.next_batch, None)
            return
        for batch in prefetch_items(self._later_batches(), self.prefetch):
            yield self._count_batch(batch)

    def _by_workers(self, pools: Pools) -> Iterator[Batch]:
        """The later batches of the epoch from a pool of processes."""
        epoch, positions = self.epoch, range(self.position, len(self))
        rows_of = (self._rows_of_batch(position, epoch) for position in positions)
        pool = pools.take(self)
        tasks = (
            Task(self._rows_to_read(rows), epoch, self.seed, position, self.numbers_rows, position % pool.ahead)
            for rows, position in zip(rows_of, positions, strict=True)
        )
        try:
            with closing(pool.batches(tasks)) as batches:
                for batch, position in zip(batches, positions, strict=True):
                    rows = self._rows_of_batch(position, epoch)
                    yield self._count_batch(
                        self._place(self._with_sampler_weights(batch, self._rows_to_read(rows)), rows)
                    )
        finally:
            pools.give_back(pool)

    def for_worker(self) -> DataLoader:
        """A copy for a process that only reads rows: it has no order of epochs."""
        reader = copy(self)
        reader.sampler, reader.pools, reader.own = Sequential(), None, None
        reader._order = reader._draws = reader._stream = None
        return reader

    def _later_batches(self) -> Iterator[Batch]:
        """Batches for the background thread, read by a copy: this loader moves with the consumer."""
        reader = copy(self)
        self._stream = None
        return iter(reader.next_batch, None)

    # -- for training loops and checkpoints ----------------------------------------------------------------------

    def arrays(self) -> Table | None:
        """The whole data set if the native loop can gather its batches: in memory, without transforms, shuffled or not.

        An epoch has `len(loader)` batches of it.
        """
        plain = self._visits_every_row and not self.transforms
        if not plain or not isinstance(self.source, Table):
            return None
        return with_row_numbers(self.source) if self.numbers_rows else self.source

    def epoch_table(self, epoch: int) -> Table | None:
        """The rows of an epoch in the order in which a sampler draws them, copied for the native loop.

        None if they are more than `LARGEST_COPY` bytes, or are not arrays in memory: then batches are gathered one by
        one, with the same result.
        """
        if self.transforms or self.own is not None or type(self.source) is not Table:
            return None
        if self._visits_every_row or isinstance(self.sampler, Poisson | RowSampler):
            return None  # the native loop reads the whole table in place, unless a subclass wants single batches
        table = with_row_numbers(self.source) if self.numbers_rows else self.source
        rows = self._rows(epoch)
        bytes_of_row = sum(array.nbytes // max(1, len(array)) for array in table.columns.values())
        return table.select(rows) if len(rows) * bytes_of_row <= LARGEST_COPY else None

    def every_row(self) -> Table | None:
        """The data set if an epoch visits each row exactly once, without transforms."""
        table = self.arrays()
        return table if table is not None and self.rows == len(table) else None

    @property
    def _visits_every_row(self) -> bool:
        return isinstance(self.sampler, Shuffled | Sequential)

    @property
    def rows(self) -> int:
        """The number of rows of an epoch, excluding rows that `drop_last` and `limit` omit."""
        return min(self._rows_in_order, len(self) * self.batch_size)

    @property
    def _rows_in_order(self) -> int:
        assert not isinstance(self.source, Stream)
        if isinstance(self.sampler, RowSampler):
            return self.sampler.count(len(self.source))
        return len(self.source) if self._visits_every_row else len(self._rows(self.epoch))

    def order(self, epoch: int) -> Rows:
        """The rows that an epoch visits, in the order of its batches."""
        if isinstance(self.source, Stream):
            raise UsageError("the rows of an iterable have no numbers; wrap arrays or a data set with len().")
        return self._rows(epoch)[: self.rows]

    @property
    def shuffles(self) -> bool:
        """Does the order change from epoch to epoch?"""
        return not isinstance(self.sampler, Sequential)

    def state_dict(self) -> dict[str, int]:
        """The position: epoch, batch, and the seed of the order."""
        return {"epoch": self.epoch, "batch": self.position, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Restore a position from `state_dict`: the next batch is the batch that followed the position."""
        try:
            seed, epoch, batch = (int(state[name]) for name in ("seed", "epoch", "batch"))
        except (LookupError, TypeError, ValueError):
            raise InputError(
                f"a loader resumes from its seed, epoch and batch, as state_dict() gives them; received {state!r}."
            ) from None
        before, self.seed, self._order = self.seed, seed, None
        try:
            self.seek(epoch, batch)
        except WholestepError:
            self.seed = before
            raise

    # -- batches -------------------------------------------------------------------------------------------------

    def _rows(self, epoch: int) -> Rows:
        assert not isinstance(self.source, Stream)
        order = self._order
        if isinstance(self.sampler, RowSampler):  # its order changes at the end of an epoch, and it stores it itself
            return self.sampler.rows(self.seed, epoch, len(self.source))
        if order is None or order[0] != epoch:
            order = self._order = epoch, self.sampler.rows(self.seed, epoch, len(self.source))
        return order[1]

    def _make(self, position: int, epoch: int) -> Batch:
        rows = self._rows_of_batch(position, epoch)
        return self._place(self.batch_of(self._rows_to_read(rows), epoch), rows)

    def _rows_to_read(self, rows: Rows) -> Rows:
        """The rows of a batch that this rank reads."""
        if self.own is None:
            return rows
        positions = self.own.of(len(rows))
        return rows[positions] if len(positions) else rows[:1]  # a rank without rows still needs their shape

    def _place(self, batch: Batch, rows: Rows) -> Batch:
        """The rows that this rank reads at their positions in the batch."""
        return batch if self.own is None else scatter_rows(batch, self.own.of(len(rows)), len(rows))

    def batch_of(self, rows: Rows, epoch: int) -> Batch:
        """Some rows as a batch, after transforms, with the weights of the sampler."""
        source: Table | RowSource = self.source  # type: ignore[assignment]
        return self._with_sampler_weights(self.transformed(source.take(rows), rows, epoch), rows)

    def _with_sampler_weights(self, batch: Batch, rows: Rows) -> Batch:
        assert not isinstance(self.source, Stream)
        factors = self.sampler.weights(len(self.source)) if isinstance(self.sampler, RowSampler) else None
        if factors is None:
            return batch
        own = factors[rows].astype(np.float32)
        return replace(batch, weights=own if batch.weights is None else batch.weights * own)

    def _rows_of_batch(self, position: int, epoch: int) -> Rows:
        if not isinstance(self.sampler, Poisson):
            return self._rows(epoch)[position * self.batch_size : (position + 1) * self.batch_size]
        assert not isinstance(self.source, Stream)
        if self._draws is None or self._draws[0] != (self.seed, epoch):
            self._draws = (self.seed, epoch), self.sampler.batches(self.seed, epoch, len(self.source))
        return self._draws[1][position]

    def _transform_stream(self, batch: Batch, passed: int, epoch: int) -> Batch:
        """A batch of an iterable, whose rows are numbered from `passed`."""
        return self.transformed(batch, np.arange(passed, passed + batch.rows), epoch)

    def transformed(self, batch: Batch, rows: Rows, epoch: int) -> Batch:
        """A batch after all transforms; `rows` are the row numbers of its examples, which key the random ones."""
        inputs = self._apply(batch.inputs, rows, epoch) if self.transforms else batch.inputs
        if self.numbers_rows:
            named = inputs if isinstance(inputs, Mapping) else {INPUT: inputs}
            inputs = {**named, ROW_NUMBERS: np.asarray(rows, np.int32)}
        return batch if inputs is batch.inputs else Batch(inputs, batch.targets, batch.weights)

    def _apply(self, inputs: Any, rows: Rows, epoch: int) -> Any:
        if isinstance(inputs, Mapping):
            return {name: self._apply(a, rows, epoch) for name, a in inputs.items()}
        changed: Array = inputs
        for stream, transform in enumerate(self.transforms):
            changed = transform(changed, TransformDraw(self.seed, epoch, rows, stream))
        return changed


def _need_rows(source: Table | RowSource | Stream, name: str) -> RowSource:
    if isinstance(source, RowSource):
        return source
    if isinstance(source, Stream):
        fix = "an iterable makes its own batches; prefetch=2 reads them in advance"
    else:
        fix = "arrays are gathered by the native loop; prefetch=2 computes transforms in advance"
    raise UsageError(f"DataLoader: {name}= is for a data set with len() and [i], read row by row: {fix}.")


# -- prefetching ------------------------------------------------------------------------------------------------


class _Failed:
    """An exception of the background thread, passed to the consumer."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def prefetch_items(items: Iterator[T], ahead: int) -> Iterator[T]:
    """The items in order, up to `ahead` of them computed in advance by a thread.

    An exception of the thread is raised here, after the items before it.  If the consumer stops early, the thread ends.
    """
    batch: queue.Queue[object] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()
    thread = threading.Thread(target=_make, args=(items, batch, stopped), name="wholestep-prefetch", daemon=True)
    thread.start()
    try:
        while (item := batch.get()) is not _END:
            if isinstance(item, _Failed):
                raise item.error
            yield item  # type: ignore[misc]
    finally:
        stopped.set()
        thread.join(timeout=10 * _PATIENCE)


def _make(items: Iterator[object], batch: queue.Queue[object], stopped: threading.Event) -> None:
    try:
        for item in items:
            if not _put(item, batch, stopped):
                return
        _put(_END, batch, stopped)
    except BaseException as error:  # the consumer raises it
        _put(_Failed(error), batch, stopped)


def _put(item: object, batch: queue.Queue[object], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            batch.put(item, timeout=_PATIENCE)
            return True
        except queue.Full:
            continue
    return False
