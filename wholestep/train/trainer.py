"""The training loop: epochs over data, with callbacks between steps."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import replace
from math import gcd, isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.base import Callback
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import EpochStats, Position, Run, StepMetrics, Value, advance
from wholestep.callbacks.weights import add_pruning
from wholestep.data.loader import DataLoader
from wholestep.data.row_samplers import RowSampler
from wholestep.data.table import Table
from wholestep.errors import InputError, NonFiniteError, OptionError, UsageError
from wholestep.lazy import interop
from wholestep.session import Session
from wholestep.session.running.run import DataCache
from wholestep.session.session import delegate
from wholestep.steps.loss_scale import LOSS_SCALE
from wholestep.steps.options import GRAD_NORM
from wholestep.train.checkpoint import Checkpoint
from wholestep.train.config import TrainConfig
from wholestep.train.history import TrainHistory
from wholestep.train.learning_rates import (
    check_horizons,
    count_epochs,
    describe_schedules,
    need_monitors,
    observe,
    rate_used,
)
from wholestep.train.nonfinite import LossWatch, policy_of
from wholestep.train.row_history import RowEpoch
from wholestep.train.signals import finish_before_exit
from wholestep.train.step_source import Loader, StepSource, arrays_of, need_batches
from wholestep.train.worker_sync import agree, end_together

log = logging.getLogger("wholestep")

SKIPPED = "skipped_steps"  # key in the logs of an epoch


class Trainer:
    """Drives a session over data, epoch by epoch.

    Example::

        trainer = ws.Trainer(session, ws.TrainConfig(log_interval=0))
        history = trainer.train(ws.DataLoader(x, y, batch_size=32), epochs=3)
    """

    def __init__(
        self,
        session: Session,
        config: TrainConfig | None = None,
        callbacks: Iterable[Callback] | Callback = (),
        validation: Table | None = None,
    ) -> None:
        self.session = session
        self.config = config or TrainConfig()
        self.callbacks = CallbackList(callbacks)
        self.validation = validation
        self.feed = StepSource(session, self.config)
        self.history = TrainHistory()
        self.started_with: Mapping[str, Any] = {}  # JSON values in checkpoints, for readers and the command line
        self._run: Run | None = None
        self._resumed: Position | None = None
        self._watch = LossWatch(self, None, policy_of(self.config.nonfinite, session))
        optimizer = self.config.chosen()
        if optimizer is not None:
            session.set_optimizer(optimizer)
        compiled = session._programs.compiled
        add_pruning(self.callbacks, optimizer or (None if compiled is None else compiled.definition.optimizer))

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            return interop.foreign_attribute("a trainer", self, name, "'Trainer' object")

    def resume(self, checkpoint: Checkpoint, loader: Loader | None = None, *, exact: bool = False) -> None:
        """Let the next `train` continue from a checkpoint; `exact` refuses if bits could differ."""
        checkpoint.restore(self.session, self.callbacks, loader, exact=exact)
        self.history = checkpoint.history
        self._resumed = checkpoint.position

    def train(self, loader: Loader, epochs: int, first: int = 0, start: int = 0) -> TrainHistory:
        """Train for `epochs` epochs, starting at step `start` of epoch `first`; return the history.

        Ctrl-C, SIGTERM and SIGHUP in a run with checkpoints finish the current steps, save, and exit.
        """
        check_epochs(epochs)
        need_batches(loader)
        self._need_row_values(loader)
        loader = _with_own_position(loader)
        steps = self.feed.count(loader)
        begin = self._resumed or Position(first, start)
        count_epochs(self.session)
        if begin == Position() and self._resumed is None:
            self.session.restart_schedules()
        need_monitors(self.session, self._names())
        check_horizons(self.session, epochs, steps, begin.epoch)
        self._need_pauses(steps)
        self.feed.check_sizes(loader)
        if self.validation is not None and begin.epoch < epochs:  # checked before the first epoch
            self.session.prepare_to_evaluate(self.feed.named_table(self.validation))
        run = self._run = self._new_run(loader, epochs, begin)
        self._resumed = None
        self._watch = LossWatch(self, loader, self._watch.policy)
        # User-defined callbacks may change the data between epochs; built-in ones do not, so that it is validated once.
        self.feed.unchanged = DataCache() if self.callbacks.are_ours else None
        with finish_before_exit(run):
            try:
                self.callbacks.begin(run)
                if begin.epoch < epochs:
                    self.feed.prepare(loader)
                for epoch in range(begin.epoch, epochs):
                    if self._stops(run):
                        break
                    stats = self.train_epoch(loader, epoch, begin.step if epoch == begin.epoch else 0)
                    if stats.partial:
                        self.history.epochs.append(stats)
                        break
                    self._record_rows(loader, epoch)
                    self._watch.end_epoch(stats, last=epoch == epochs - 1)
                    self._end_epoch(run, stats)
            except BaseException as error:
                run.stop(f"{type(error).__name__}: {error}")
                run.stopped_by = run.asked  # the decision of this worker alone
                # A failing worker cannot verify that the states of the others are of the same step.
                restored = self._watch.restored if isinstance(error, NonFiniteError) else run.position
                if restored is not None and isinstance(error, NonFiniteError):
                    run.position = restored
                    if isinstance(loader, DataLoader):
                        self.feed.seek(loader, restored.epoch, restored.step)
                worth_keeping = isinstance(error, Exception) and restored is not None and not run.group
                self.callbacks.fail(run, error, save=worth_keeping and run.position != run.began)
                raise
            finally:
                self.history.stopped_by = run.stopped_by
                self._run = self.feed.unchanged = None
            try:
                self.callbacks.on_train_end()
            finally:  # the other workers wait for this one, even if its callbacks fail
                self.session.have_whole_weights()
                end_together(run)
        return self.history

    def _need_row_values(self, loader: Loader) -> None:
        sampler = loader.sampler if isinstance(loader, DataLoader) else None
        if isinstance(sampler, RowSampler) and not self.feed.step_options.per_row.capacity:
            raise UsageError(
                f"{type(sampler).__name__} reads the {sampler.by} of rows, which this session does not store: train "
                "with ws.fit(model, loader), or sampler= of ws.fit."
            )

    def _need_pauses(self, steps: int | None) -> None:
        pause = self.config.validate_every_steps
        if pause is not None and self.validation is None:
            raise UsageError(
                f"validate_every_steps={pause} evaluates validation data, and there is none: give validation=(x, y) or "
                "validation=0.1."
            )
        if pause is not None and steps is not None and pause > steps:
            raise OptionError(
                f"validate_every_steps={pause}: an epoch has {steps} steps, so none would be reached. Count epochs "
                f"instead: validate_every={max(1, round(pause / steps))}."
            )

    def _new_run(self, loader: Loader, epochs: int, position: Position) -> Run:
        return Run(
            self.session,
            epochs,
            self.feed.count(loader),
            self._names(),
            modes={prefix + name: mode for name, mode in self.session.metric_modes.items() for prefix in ("", "val_")},
            position=position,
            began=position,
            history=self.history,
            callbacks=self.callbacks,
            loader=loader,
            config=self.started_with,
            schedules=describe_schedules(self.session),
            numbers=self._so_far,
        )

    def _record_rows(self, loader: Loader, epoch: int) -> None:
        """Add the values of the epoch's rows to the history, if the session stores them."""
        if self.feed.step_options.per_row.capacity and isinstance(loader, DataLoader):
            values = self.session.row_values()
            self.history.per_row.epochs.append(RowEpoch(epoch, loader.order(epoch), values))

    def _end_epoch(self, run: Run, stats: EpochStats) -> None:
        if added := self.callbacks.epoch_numbers(stats.epoch):
            stats = replace(stats, logs={**stats.logs, **added})
        if self.history.epochs and self.history.epochs[-1].partial:
            self.history.epochs.pop()  # the complete epoch replaces it
        self.history.epochs.append(stats)
        observe(self.session, stats.logs, run.names)
        run.position, run.logs = Position(stats.epoch + 1), stats.logs
        log.info("epoch %d: avg_loss = %.4f (%d steps)", stats.epoch, stats.avg_loss, stats.steps)
        self.callbacks.on_epoch_end(stats.epoch, dict(stats.logs))
        self.callbacks.on_epoch(stats)
        agree(run)
        self.callbacks.on_safe_point()

    def train_epoch(self, loader: Loader, epoch: int, start: int = 0) -> EpochStats:
        """Train one epoch; the result is `partial` if a callback stopped it."""
        if self._run is None:
            loader = _with_own_position(loader)
        run = self._run or self._new_run(loader, epoch + 1, Position(epoch, start))
        at = run.position if (run.position.epoch, run.position.step) == (epoch, start) else Position(epoch, start)
        run.epoch, run.logs = epoch, {}
        self.callbacks.on_epoch_begin(epoch)
        skipped, in_memory = self.session.skipped_steps, arrays_of(loader) is not None
        begun = time.perf_counter()
        with self.session.span("train_epoch"):
            self._watch.keep(at)
            for part in self.feed.of_epoch(loader, epoch, start, self._every(), self._slice_ends):
                if in_memory and isinstance(loader, DataLoader):
                    self.feed.seek(loader, epoch, part.end)
                before, at = at, advance(at, part.losses, part.rows)
                self._watch.check_growth(at, part.losses)
                if not isfinite(at.loss_sum):
                    at = self._watch.judge(before, at, part.losses, part.rows)
                run.position = at
                self._report_steps(run, epoch, before.step, part.losses)
                agree(run)
                self.callbacks.on_safe_point()
                if self._validates_at(run, at):
                    self._validate_inside(run, at, skipped)
                if self._stops(run) and not self._at_end(run, at.step):
                    return self._stats(at, skipped, partial=True)
                self._watch.keep(at)
        if at.step == 0 and self._run is not None:
            raise InputError(
                f"epoch {epoch}: the data gave no batches, so nothing was trained. Give an iterable that starts "
                "again in every epoch: a list of batches, or an object whose __iter__ begins anew."
            )
        if at.step == 0:
            warnings.warn(f"epoch {epoch}: the loader gave no batches; nothing was trained.", stacklevel=2)
            return EpochStats(epoch, 0.0, 0)
        epochs = epoch + 1 if self._run is None else run.epochs
        held = self.validation if self.config.validates(epoch, epochs) else None
        speed = (at.step - start) / (time.perf_counter() - begun)
        return replace(self._stats(at, skipped, held=held), steps_per_second=speed)

    def _stops(self, run: Run) -> bool:
        """Does training end here?  Before `min_epochs` epochs only a signal ends it."""
        return bool(run.stopped_by) and (run.interrupted or run.position.epoch >= self.config.min_epochs)

    # -- validation inside an epoch --------------------------------------------------------------------------------

    @property
    def _pause(self) -> int | None:
        return None if self.validation is None else self.config.validate_every_steps

    @property
    def _slice_ends(self) -> int | None:
        """The number of steps whose multiples include every pause, validation and callback."""
        pauses = [*self.callbacks.pauses, *([] if self._pause is None else [self._pause])]
        return gcd(*pauses) if pauses else None

    def _validates_at(self, run: Run, at: Position) -> bool:
        pause = self._pause
        return pause is not None and at.step % pause == 0 and not self._at_end(run, at.step)

    def _validate_inside(self, run: Run, at: Position, skipped: int) -> None:
        stats = self._stats(at, skipped, partial=True, held=self.validation)
        self.history.validations.append(stats)
        run.logs = stats.logs
        self.callbacks.on_validation(at.epoch, at.step, dict(stats.logs))
        agree(run)
        self.callbacks.on_safe_point()
        run.logs = {}

    def steps(self, loader: Loader, epoch: int, start: int, every: int | None) -> Iterator[tuple[Any, Any]]:
        """The losses and row counts of the steps of an epoch, in slices of at most `every` steps."""
        for part in self.feed.of_epoch(_with_own_position(loader), epoch, start, every):
            yield part.losses, part.rows

    batch_at = delegate("feed", StepSource.batch_at)
    named_batch = delegate("feed", StepSource.named_batch)

    def _stats(self, at: Position, skipped: int, *, partial: bool = False, held: Table | None = None) -> EpochStats:
        average = at.loss_sum / at.rows if at.rows else nan
        logs = self._measure(held)
        if self._skips:
            logs[SKIPPED] = float(self.session.skipped_steps - skipped)
            if logs[SKIPPED] and self.session.loss_scale is None:  # a loss scale skips steps regularly
                log.warning("epoch %d: %d steps were skipped: their gradients were not finite", at.epoch, logs[SKIPPED])
        logs |= self._scale()
        rate = rate_used(self.session, at.epoch)
        return EpochStats(at.epoch, average, at.step, {"loss": average, **logs, **rate}, partial)

    # -- reports ---------------------------------------------------------------------------------------------------

    def _every(self) -> int | None:
        limits = [n for n in (self.callbacks.every, self.config.log_interval or None) if n]
        return self.callbacks.every if not self.config.log_interval else min(limits)

    def _report_steps(self, run: Run, epoch: int, first: int, losses: Any) -> None:
        """Report the steps of a slice, in order."""
        interval = self.config.log_interval
        for i in range(-first % interval, len(losses), interval) if interval else ():
            log.info("  epoch %d step %d: loss = %.4f", epoch, first + i, losses[i])
        if self.callbacks.watches_steps:
            for i, loss in enumerate(losses.tolist()):
                run.step = first + i
                self.callbacks.on_step(StepMetrics(epoch, first + i, loss))
        run.step = first + len(losses)
        if len(self.callbacks):
            self.callbacks.on_slice(len(losses), float(losses[-1]))

    @staticmethod
    def _at_end(run: Run, steps: int) -> bool:
        return run.steps_per_epoch is not None and steps >= run.steps_per_epoch

    def _measure(self, held: Table | None) -> dict[str, Value]:
        """The metrics of the epoch and of the validation data; arrays are converted to lists."""
        metrics = dict(self.session.metrics())
        if held is not None:
            measured = self.session.evaluate_together(self.feed.named_table(held))
            metrics.update({f"val_{name}": value for name, value in measured.items()})
        return {name: np.asarray(value).tolist() if np.ndim(value) else float(value) for name, value in metrics.items()}

    def _so_far(self) -> dict[str, Value]:
        """The metrics of the epoch so far, and the learning rates."""
        return {**self._measure(None), **rate_used(self.session, self.session.state.epoch)}

    def _names(self) -> tuple[str, ...]:
        names = ("loss", *self.session.metrics())
        held = () if self.validation is None else tuple(f"val_{name}" for name in names if name != GRAD_NORM)
        skipped = (SKIPPED,) if self._skips else ()
        return (*names, *held, *skipped, *self._scale(), *rate_used(self.session, 0))

    def _scale(self) -> dict[str, Value]:
        """The loss scale; empty without one."""
        scale = self.session.loss_scale
        return {} if scale is None else {LOSS_SCALE: scale}

    @property
    def _skips(self) -> bool:
        """Can a step be skipped?"""
        return self._watch.policy == "skip" or self.session.loss_scale is not None


def check_epochs(epochs: object) -> None:
    """Raise OptionError unless it is an integer of at least 0."""
    if not isinstance(epochs, int) or isinstance(epochs, bool) or epochs < 0:
        raise OptionError(f"epochs={epochs!r}: expected an integer, 0 or more.")


def _with_own_position(loader: Loader) -> Loader:
    """A copy of the loader, so that the user's keeps its position."""
    return copy(loader) if isinstance(loader, DataLoader) else loader
