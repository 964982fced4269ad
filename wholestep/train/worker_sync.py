"""Synchronisation of the workers of a run.

All workers run the same loop.  Local decisions (by the clock, by a signal, in a user-defined callback) are exchanged at
safe points, where all have made the same steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING

from wholestep.callbacks.base import Callback
from wholestep.callbacks.checkpoint import ModelCheckpoint
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.progress import Progress
from wholestep.callbacks.run import Run
from wholestep.compiler.ir.attrs import DATA
from wholestep.errors import UsageError
from wholestep.options import Launch, read_launch
from wholestep.train.checkpoint.folder import checkpoints_in

if TYPE_CHECKING:
    from wholestep.data.loader import DataLoader
    from wholestep.train.experiment import Experiment
    from wholestep.train.trainer import Trainer


def agree(run: Run) -> None:
    """Collective: stop if any worker wants to stop, save if rank 0 saves, publish checkpoints that all have written."""
    group = run.group
    if group is None:
        return
    savers = [c for c in run.callbacks or () if isinstance(c, ModelCheckpoint)]
    flags = [2 * c.is_written + c.due for c in savers]
    replies = group.gather(bytes([run.received, bool(run.asked), *flags]))
    if any(one[1] for one in replies):
        reasons = [reason.decode() for reason in group.gather(run.asked.encode())]
        run.stopped_by = next(reason for reason in reasons if reason)
    rank, number = next(((rank, one[0]) for rank, one in enumerate(replies) if one[0]), (0, 0))
    if number:
        run.interrupted, run.signal = True, number
        run.stopped_by = f"worker {rank} received {Signals(number).name}"
    for i, saver in enumerate(savers, 2):
        saver.decide(bool(replies[0][i] & 1))
        if all(one[i] & 2 for one in replies):
            saver.settle()


class Quiet(Callback):
    """Replaces a callback that writes or prints on all ranks but 0; it keeps the length of slices."""

    def __init__(self, of: Callback) -> None:
        self.every, self.pause = of.every, of.pause


def quieten(callbacks: CallbackList) -> None:
    """Replace callbacks that write or print, except those that save, in which all ranks take part."""
    members = callbacks.callbacks
    members[:] = [Quiet(c) if (c.writes and not c.saves) or isinstance(c, Progress) else c for c in members]


def as_launched(run: Experiment) -> Experiment:
    """The settings of a run in a launched process: with its workers, and with a resume after a restart of the job."""
    launch = read_launch()
    if launch is None:
        return run
    if run.workers is None and run.shards is None and launch.ours and launch.count != 1:
        from wholestep.distributed.workers import Workers

        run = replace(run, workers=Workers())
    if run.workers is None:
        return run
    if run.checkpoint is None:
        run = replace(run, checkpoint=run.workers.checkpoint)
    if run.checkpoint is None and launch.restarts:
        raise UsageError(
            f"restarts={launch.restarts} resume from checkpoints, and this run writes none: give ws.fit(..., "
            "checkpoint='runs/name')."
        )
    if run.checkpoint is not None and launch.attempt:
        run = replace(run, resume=_of_this_job(run.checkpoint, launch) or run.resume)
    return run


def _of_this_job(folder: str | PathLike[str], launch: Launch) -> Path | None:
    """The newest checkpoint since the first start of the job; earlier ones belong to another run."""
    there = [stored.path for stored in checkpoints_in(folder)] if Path(folder).is_dir() else []
    return next((path for path in reversed(there) if path.stat().st_mtime >= launch.since - 1.0), None)


@contextmanager
def locked_folders(trainer: Trainer) -> Iterator[None]:
    """Lock the folders of a run's checkpoints on rank 0, before one is read to resume."""
    group = trainer.session.group
    is_writer = group is None or group.rank == 0
    savers = [c for c in trainer.callbacks if isinstance(c, ModelCheckpoint) and is_writer and c.folder.is_dir()]
    try:
        for saver in savers:
            saver.lock(trainer.callbacks)
        yield
    finally:
        for saver in savers:
            saver.unlock()


def begin_together(trainer: Trainer, loader: DataLoader) -> None:
    """Before the first step: check that all workers train the same, and leave output to rank 0."""
    group = trainer.session.group
    if group is None:
        return
    from wholestep.data.order import RankRows
    from wholestep.distributed.digest import need_same

    need_same(group, trainer.session, loader, trainer.started_with, trainer.validation)
    place = group.grid.coordinate(DATA, group.rank)
    loader.own = RankRows(place, group.grid.data, loader.batch_size)
    if group.rank != 0:
        quieten(trainer.callbacks)


def end_together(run: Run) -> None:
    """After the last step: a barrier, after which the files of rank 0 exist."""
    if run.group is not None:
        run.group.gather(b"")
