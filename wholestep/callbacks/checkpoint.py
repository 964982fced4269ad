"""`ModelCheckpoint`: writes checkpoints of a run, and keeps the best and the last ones."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Container, Mapping
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.monitor import Best, not_measured, read_monitor
from wholestep.callbacks.run import Logs
from wholestep.errors import CheckpointError, OptionError, UsageError
from wholestep.schedules.monitor_modes import MODES, canonical, mode_of, mode_of_name

if TYPE_CHECKING:
    from wholestep.train.checkpoint import Checkpoint
    from wholestep.train.checkpoint.folder import StoredCheckpoint
    from wholestep.train.checkpoint.lock import FolderLock
    from wholestep.train.checkpoint.sharded_write import ShardedWrite

log = logging.getLogger("wholestep")


class ModelCheckpoint(Callback):
    """Writes checkpoints, from which `ws.fit(resume=...)` continues to the same bits.

    Args:
        folder: the folder of the run; each checkpoint is a folder in it, e.g. `runs/digits/step-00000120`.  `filepath=`
            is the same.
        monitor: the number that ranks epochs.
        mode: "min" where smaller is better, "max" where larger is; None infers it from the metric, else from its name.
        best: the number of best epochs to keep.
        last: the number of newest epochs to keep.  0 writes only where `monitor` has improved (or is among the `best`).
        every: also write after this many steps, inside an epoch.
        seconds: also write when this much time has passed, inside an epoch.
        config: the configuration of the run, as JSON values; `ws.load_checkpoint(folder).config` has it.

    Files are written on a background thread; `wait()` returns when they are on the disk.  A checkpoint that cannot be
    written is logged as an error, training continues, and earlier checkpoints are kept; if the last one could not be
    written, the run ends with a `CheckpointError` after its last epoch.  Only one run at a time writes to a folder: a
    second one gets a `CheckpointError` that names the first.  If the folder holds checkpoints of later steps than the
    run begins with (it was resumed from an older one, or starts anew), they are moved to `<folder>/superseded` before
    the first is written.

    `model.load(folder)` reads the weights of the best checkpoint where `last=0`, else of the newest.  A name with a
    suffix, "best.keras", is a folder of that name.

    Example: `ws.ModelCheckpoint("runs/digits", monitor="val_accuracy")`.
    """

    def __init__(
        self,
        folder: str | PathLike[str] | None = None,
        monitor: str = "val_loss",
        mode: str | None = None,
        *,
        filepath: str | PathLike[str] | None = None,
        best: int = 1,
        last: int = 0,
        every: int | None = None,
        seconds: float | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value, least in (("best", best, 0), ("last", last, 0), ("every", every, 1)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
                raise OptionError(
                    f"ModelCheckpoint: {name} must be an integer of at least {least}; received {value!r}."
                )
        if best == 0 and last == 0:
            raise OptionError(
                "ModelCheckpoint: best=0 and last=0 would delete every checkpoint; one of them must be at least 1."
            )
        if (place := folder if filepath is None else filepath) is None or None not in (folder, filepath):
            raise UsageError("ModelCheckpoint takes one place to write to: ModelCheckpoint('runs/digits').")
        self._mode_by_metric = mode is None
        if mode is None:
            mode = mode_of_name(monitor) or ("" if best else "min")
        Best(mode)  # raises OptionError for an invalid mode
        self.folder, self.monitor, self.mode = Path(place), canonical(monitor), mode
        self.best, self.last, self.every, self.seconds = best, last, every, seconds
        self.config = dict(config or {})
        self.saves = self.writes = True
        self.last_path: Path | None = None
        self.failure: Exception | None = None  # the error of the last write
        self._lock: FolderLock | None = None
        self._run_failed = False
        self._writing: threading.Thread | None = None
        self._sharded: ShardedWrite | None = None  # a checkpoint of several workers that is not published yet
        self._values: list[float] = []  # the monitored numbers of the best epochs, best first
        # checkpoints of steps after the one at which this run starts
        self._superseded: list[StoredCheckpoint] = []
        self._versions: Mapping[str, str] = {}  # the environment when the run started
        self._due = False
        self._since, self._written = 0, time.monotonic()

    # -- when ----------------------------------------------------------------------------------------------------

    def on_train_begin(self) -> None:
        from wholestep.train.checkpoint.environment import run_environment
        from wholestep.train.checkpoint.folder import checkpoints_in, sweep

        session = self.session
        self.failure, self._run_failed = None, False
        self._versions = run_environment(session)
        self._written = time.monotonic()
        # raises an error for a misspelt name before the first epoch
        if self.best and self.run is not None and self.run.names:
            read_monitor("ModelCheckpoint", self.monitor, dict.fromkeys(self.run.names, 0.0))
        if self._mode_by_metric:
            mode = self.run.modes.get(self.monitor) if self.run is not None else None
            self.mode = mode or self.mode or mode_of("ModelCheckpoint", self.monitor)
        if self.run is not None and not self.run.writes:
            return
        self.lock()
        sweep(self.folder)
        self._superseded = [f for f in checkpoints_in(self.folder) if f.step > session.state.step]

    def lock(self, owner: object = None) -> None:
        """Lock the folder until training ends; all callbacks of a run share the lock, by its `owner`.

        A folder that is not writable, or that another run has locked, is an error before the first step.
        """
        from wholestep.train.checkpoint.lock import FolderLock

        if self._lock is not None:
            return
        if owner is None:
            assert self.run is not None, "training has begun"
            owner = self.run.callbacks
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self._lock = FolderLock(self.folder, owner)
        except CheckpointError:
            raise
        except OSError as error:
            raise UsageError(
                f"ModelCheckpoint cannot write to {self.folder}: {error.strerror}. Name a folder that can be written."
            ) from error

    def unlock(self) -> None:
        """Release the lock of the folder."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def on_slice(self, steps: int, loss: float) -> None:
        self._since += steps
        enough = self.every is not None and self._since >= self.every
        late = self.seconds is not None and time.monotonic() - self._written >= self.seconds
        self._due = self._due or enough or late

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        names = self.run.names if self.run is not None else ()
        measured = self.best and not not_measured(self.monitor, logs, names)
        improved = measured and self._improves(read_monitor("ModelCheckpoint", self.monitor, logs))
        self._due = self._due or improved or self.last > 0

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        if self.best and self.monitor.startswith("val_"):
            self._due = self._improves(read_monitor("ModelCheckpoint", self.monitor, logs)) or self._due

    def _improves(self, value: float) -> bool:
        """Is the value among the best?  NaN never is."""
        if value != value:
            return False
        better = sorted([*self._values, value], reverse=self.mode == "max")
        improves = len(self._values) < self.best or better[self.best - 1] != self._values[-1]
        self._values = better[: self.best]
        return improves

    @property
    def due(self) -> bool:
        """Is a checkpoint due at the next safe point?"""
        return self._due or (self.run is not None and self.run.interrupted)

    def decide(self, due: bool) -> None:
        """Called with the decision of rank 0."""
        self._due = due

    def on_safe_point(self) -> None:
        if self.due:
            self.save()

    def on_exception(self, error: BaseException) -> None:
        self._sharded = None  # the workers are no longer synchronised
        self._run_failed = True

    def on_train_end(self) -> None:
        self.settle()
        self.wait()
        self.unlock()
        if self.failure is not None and not self._run_failed:
            raise self._last_write_error(self.failure)

    def _last_write_error(self, failure: Exception) -> CheckpointError:
        error = CheckpointError(
            f"training has finished, but its last checkpoint was not saved: {failure} The trained weights are in "
            "memory: write them elsewhere, model.save('trained.safetensors'); the history is this error's `history`."
        )
        error.history = self.run.history if self.run is not None else None
        return error

    # -- what ----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Take a checkpoint now and write it in the background, after the one before it.

        With several workers each writes its shards, and the checkpoint is published at a later safe point.
        """
        run = self.run
        assert run is not None, "training has begun"
        self._due, self._since, self._written = False, 0, time.monotonic()
        self.settle()
        pieces = {} if run.group is None else run.session.own_pieces()
        if run.group is not None and pieces:
            from wholestep.train.checkpoint.sharded_write import ShardedWrite, meet

            step = run.session.state.step
            place = meet(run.group, self.folder, step)
            if place is not None:
                self._sharded = ShardedWrite(run.group, place, step, pieces, self._capture(without=pieces))
                return
        taken = self._capture()
        if taken is not None:
            self._start(partial(self._write_alone, taken))

    def _capture(self, without: Container[str] = ()) -> Checkpoint | None:
        """Capture the current state of the run on rank 0; None on other ranks."""
        from wholestep.train.checkpoint import capture
        from wholestep.train.checkpoint.format import KEEPS_BEST

        run = self.run
        assert run is not None, "training has begun"
        if not run.writes:
            run.session.share_parts(without=without)
            return None
        noted = {KEEPS_BEST: {"monitor": self.monitor, "mode": self.mode}} if self.best and not self.last else {}
        noted |= {MODES: dict(run.modes)} if run.modes else {}
        return capture(
            run.session,
            position=run.position,
            history=run.history,
            loader=run.loader,
            callbacks=run.callbacks,
            config={**run.config, **self.config, **noted},
            logs=run.logs,
            versions=self._versions,
            writer=self._writer,
            without=without,
        )

    @property
    def is_written(self) -> bool:
        """Has this worker written its files of a checkpoint that is not published yet?"""
        return self._sharded is not None and self._sharded.is_written

    def settle(self) -> None:
        """Collective: publish the checkpoint that the workers have written, if there is one."""
        if self._sharded is None:
            return
        write, self._sharded = self._sharded, None
        try:
            files = write.settle()
        except CheckpointError as error:
            self.failure = error
            if write.taken is not None:
                log.error("%s", error)
                write.remove()
            return
        if write.taken is not None:
            self._start(partial(write.publish, files))

    def _start(self, write: Callable[[], Path]) -> None:
        self.wait()
        self._writing = threading.Thread(target=self._write, args=(write,), name="wholestep-checkpoint")
        self._writing.start()

    def wait(self) -> None:
        """Block until all checkpoints are on the disk or have failed: see `failure`."""
        if self._sharded is not None:
            self._sharded.wait()
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def _write_alone(self, taken: Checkpoint) -> Path:
        from wholestep.train.checkpoint import write_checkpoint

        return write_checkpoint(self.folder, taken)

    def _write(self, write: Callable[[], Path]) -> None:
        from wholestep.train.checkpoint.folder import rotate

        try:
            self._move_superseded()
            self.last_path, self.failure = write(), None
            log.info("saved %s", self.last_path)
        except Exception as error:  # an error on a background thread is lost unless it is logged
            self.failure = error
            log.error("%s", error)
            return
        try:
            rotate(self.folder, self._writer, self.last, self.best, self.monitor, self.mode)
        except Exception as error:
            log.error("older checkpoints in %s could not be removed: %s", self.folder, error)

    def _move_superseded(self) -> None:
        """Move checkpoints of later steps, before the first write: if the process is killed in between, the newest
        checkpoint is the one that the run started from.
        """
        from wholestep.train.checkpoint.folder import set_aside
        from wholestep.train.checkpoint.format import SUPERSEDED

        if self._superseded:
            names = ", ".join(f.path.name for f in self._superseded)
            log.warning("%s are of later steps than this run starts with; moved to %s", names, self.folder / SUPERSEDED)
            set_aside(self._superseded)
            self._superseded = []

    @property
    def _writer(self) -> str:
        return f"ModelCheckpoint {self.monitor} {self.mode}"

    @property
    def best_path(self) -> Path | None:
        """The best checkpoint so far."""
        from wholestep.train.checkpoint.folder import checkpoints_in, rank_checkpoints

        ranked = rank_checkpoints(checkpoints_in(self.folder), self.monitor, self.mode)
        return ranked[0].path if ranked else None

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._values = list(state["values"])
