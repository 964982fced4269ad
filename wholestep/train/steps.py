"""Where a trainer's steps come from: data in memory, many of them per native call; any other data, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.backend import Slice
from wholestep.data.loader import DataLoader
from wholestep.data.table import Batch, Table
from wholestep.errors import UsageError
from wholestep.session import Session
from wholestep.session.epochs import Unchanged
from wholestep.train.config import TrainConfig


class Loader(Protocol):
    """What `Trainer.train` needs of its data."""

    def shuffle(self, epoch: int, /) -> None: ...

    def reset(self) -> None: ...

    def next_batch(self) -> Any: ...


class Steps:
    """The steps of a session over a loader's batches, under the names of the session's inputs."""

    def __init__(self, session: Session, config: TrainConfig) -> None:
        self.session, self.config = session, config
        self.unchanged: Unchanged | None = None  # of a run whose data nobody changes between its epochs

    def prepare(self, loader: Loader) -> None:
        """Before the first epoch: what is compiled or copied for all of them is no time of one."""
        table = arrays_of(loader)
        if table is not None and isinstance(loader, DataLoader) and self.unchanged is not None:
            self.session.prepare_to_run(self.named_table(table), loader.batch_size, self.unchanged)

    def of_epoch(
        self, loader: Loader, epoch: int, start: int, every: int | None, pause: int | None = None
    ) -> Iterator[Slice]:
        """The steps of an epoch from `start` on, `every` at a time at most and none past a multiple of `pause`."""
        if start == length(loader):  # resumed where an epoch's steps were done and nothing was measured yet
            self.session.state.epoch = epoch + 1
            return iter(())
        table = arrays_of(loader)
        if table is None or not isinstance(loader, DataLoader):
            return self._single(loader, epoch, start)
        slices = self.session.run_in_slices(
            self.named_table(table),
            shuffle=loader.shuffles,
            start=start,
            batch_size=loader.batch_size,
            every=every,
            order_seed=loader.seed,
            most=len(loader),
            pause=pause,
            unchanged=self.unchanged,
        )
        self.session.state.epoch = epoch
        return slices

    def _single(self, loader: Loader, epoch: int, start: int) -> Iterator[Slice]:
        """One step per batch."""
        session = self.session
        batches = _batches(loader, epoch, start)
        if not start:
            session.reset_metrics()
        session.state.epoch = epoch
        for step, batch in enumerate(batches, start):
            with session.span("set_input"):
                named = self.named_batch(batch)
            loss = float(session.step(named))
            yield Slice(0, step, np.array([loss]), np.array([len(next(iter(named.values())))]))
        session.state.epoch = epoch + 1

    def batch_at(self, loader: Loader, epoch: int, step: int) -> Mapping[str, Any]:
        """The inputs of one step, those of all workers."""
        own = getattr(loader, "own", None)
        if own is not None and isinstance(loader, DataLoader):
            loader.own = None
        try:
            return self.named_batch(next(_batches(loader, epoch, step)))
        finally:
            if isinstance(loader, DataLoader):
                loader.own = own

    def named_batch(self, batch: Any) -> Mapping[str, Any]:
        """A batch under the names of the session's inputs."""
        if isinstance(batch, Batch):
            single = not isinstance(batch.inputs, Mapping)
            named = batch.named()
            return self._renamed(named) if single else named
        return {self.config.data_input: batch.data, self.config.label_input: batch.labels}

    def named_table(self, table: Table) -> dict[str, Any]:
        """Columns under the names of the session's inputs."""
        return dict(self._renamed(table.columns))

    def _renamed(self, named: Mapping[str, Any]) -> Mapping[str, Any]:
        other = {"x": self.config.data_input, "labels": self.config.label_input}
        return {other.get(name, name): array for name, array in named.items()}


def arrays_of(loader: Loader) -> Table | None:
    """The whole data, where it lies in memory as it is."""
    return loader.arrays() if isinstance(loader, DataLoader) else None


def _batches(loader: Loader, epoch: int, start: int) -> Iterator[Any]:
    """The batches of an epoch from `start` on, made ahead where the loader is told to."""
    loader.shuffle(epoch)
    loader.reset()
    if isinstance(loader, DataLoader):
        if start:
            loader.seek(epoch, start)
        return loader.remaining()
    for _ in range(start):
        loader.next_batch()
    return iter(loader.next_batch, None)


def length(loader: Loader) -> int | None:
    """The steps of an epoch; None where nobody knows."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except (TypeError, UsageError):
        return None
