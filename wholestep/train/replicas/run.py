"""Replicas: runs of one experiment with different seeds, settings or rows, one per core.

Steps of small networks gain little from several cores, because of the barriers between threads.  Each replica therefore
trains on one thread, without barriers and with its states in the caches of one core.  Its bits are those of the same
run alone, because bits do not depend on the number of threads.  All replicas share one plan, and each has a state.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from contextvars import copy_context
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.list import CallbackList
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.data.splits import Holdout
from wholestep.errors import NonFiniteError, OptionError, UsageError
from wholestep.nn.layers.table_encoding import encoding_of, keep_encoding
from wholestep.nn.module.module import MEANINGS, Module
from wholestep.options import read_launch, thread_count
from wholestep.session.building.plans import share_plans
from wholestep.train.checkpoint.folder import REPLICA
from wholestep.train.data.frames import split_holdout
from wholestep.train.evaluation import remember_loss
from wholestep.train.experiment import Experiment, locked_and_resumed, prepare_run
from wholestep.train.history import TrainHistory
from wholestep.train.replicas.history import LEAVE_OUT, Replica, ReplicaHistory, settings_text
from wholestep.train.run_limits import dev_run_of
from wholestep.train.signals import handle_signals

log = logging.getLogger("wholestep")
FIXED = ("model", "data", "checkpoint", "resume", "progress", "replicas", "sweep", "callbacks", "workers")
FOLDER = REPLICA + "{}"


def fit_replicas(run: Experiment, config: Mapping[str, Any] | None = None) -> ReplicaHistory:
    """Train every replica of a run; the model gets the weights of the best one."""
    settings = replica_settings(run)
    model = run.model
    if not isinstance(model, Module):
        raise UsageError("replicas= and sweep= train copies of a ws.nn.Module; a @ws.step function cannot be copied.")
    if run.workers is not None or run.within is not None:
        raise UsageError(
            "replicas run in one process, for a number of epochs each: leave out workers= and within=, or start a job "
            "for each replica."
        )
    if isinstance(run.validation, float | Holdout):  # the same validation rows for all, so that they can be compared
        data, held = split_holdout(run.data, run.validation, run.data_seed, run.shuffle)
        run = replace(run, data=data, validation=held)
    single = replace(run, replicas=1, sweep=None)
    runs = [single.having(changed) for changed in settings]
    history = ReplicaHistory.of(train_together(runs, settings, FOLDER, config))
    whole = [r for r in history.replicas if not len(r.settings.get(LEAVE_OUT, ()))]
    _adopt(model, ReplicaHistory.of(whole or history.replicas).best.model)
    remember_loss(model, None if run.loss_weights else run.loss, run.metrics)
    return history


def replica_settings(run: Experiment) -> list[dict[str, Any]]:
    """The settings that each replica changes: all combinations of the sweep, with the seeds of `replicas`."""
    sweep = {name: list(values) for name, values in (run.sweep or {}).items()}
    if not isinstance(run.replicas, int) or isinstance(run.replicas, bool) or run.replicas < 1:
        raise OptionError(f"replicas={run.replicas!r}: expected an integer of at least 1.")
    for name, values in sweep.items():
        if name in FIXED:
            raise UsageError(f"sweep= cannot change {name!r}: it is the same for all replicas, or differs by itself.")
        if not values:
            raise OptionError(f"sweep={{{name!r}: []}}: there are no values to try; give at least one.")
    if run.replicas > 1:
        if "seed" in sweep:
            raise UsageError("replicas= and sweep={'seed': ...} both give the seeds; leave one of them out.")
        sweep["seed"] = list(range(run.data_seed, run.data_seed + run.replicas))
    return [dict(zip(sweep, values, strict=True)) for values in product(*sweep.values())]


def folders_of(run: Experiment, folder: Path) -> list[Path]:
    """The folders of the replicas of a run; [] for a single run."""
    single = run.replicas == 1 and run.sweep is None
    return [] if single else [folder / FOLDER.format(i) for i in range(len(replica_settings(run)))]


def train_together(
    runs: Sequence[Experiment],
    settings: Sequence[Mapping[str, Any]],
    folder: str,
    config: Mapping[str, Any] | None = None,
) -> list[Replica]:
    """Train a copy of the model for each run, in a separate folder; runs with the same step share one plan."""
    first = runs[0]
    if any(c.writes for c in CallbackList(first.callbacks)) or first.observer is not None:
        raise UsageError(
            "callbacks that write files, and an observer, are for one run: give checkpoint=, where each run has a "
            "folder of its own, and write the numbers afterwards: history.to_csv('runs.csv')."
        )
    budget = thread_count(first.threads, default_threads(), MAX_THREADS)
    apart = _may_run_apart(first) and len(runs) * 2 > budget > 1
    replicas = _Replicas(len(runs), first.progress is not False)
    jobs = [
        _Job(i, _own_run(run, folder.format(i), 1 if apart else run.threads), own, dict(config or {}))
        for i, (run, own) in enumerate(zip(runs, settings, strict=True))
    ]
    with share_plans():
        done = replicas.train_apart(jobs, budget) if apart else [replicas.train(job, job.run.fit) for job in jobs]
    if all(each.error is not None for each in done):
        assert done[0].error is not None
        raise done[0].error
    return done


def _may_run_apart(run: Experiment) -> bool:
    """Can replicas train concurrently?  Only on a CPU, where programs share no mutable data."""
    single = run.workers is None and run.shards is None and run.within is None and read_launch() is None
    return single and run.device.partition("/")[0] == "cpu"


def _own_run(run: Experiment, name: str, threads: int | None) -> Experiment:
    """A run over a copy of the model, in a folder of its own."""
    changes: dict[str, Any] = {"model": deepcopy(run.model), "threads": threads, "progress": False}
    if run.checkpoint is not None:
        changes["checkpoint"] = Path(run.checkpoint) / name
    if run.resume not in (None, True, False):
        changes["resume"] = Path(run.resume) / name  # type: ignore[arg-type]
    return dev_run_of(replace(run, callbacks=deepcopy(CallbackList(run.callbacks).callbacks), **changes))


@dataclass(frozen=True)
class _Job:
    index: int
    run: Experiment
    settings: Mapping[str, Any]
    config: Mapping[str, Any]


class _StopTogether(Callback):
    """Stops a replica when a signal, or the failure of another replica, stops all of them."""

    def __init__(self, replicas: _Replicas) -> None:
        self.replicas = replicas

    def on_slice(self, steps: int, loss: float) -> None:
        assert self.run is not None
        if self.replicas.signal is not None:
            self.run.receive(*self.replicas.signal)
        elif self.replicas.stopped_by:
            self.run.stop(self.replicas.stopped_by)


@dataclass
class _Replicas:
    """Replicas in training: built one after the other, trained concurrently, stopped together."""

    count: int
    shows_progress: bool
    building: Lock = field(default_factory=Lock)
    done: int = 0
    stopped_by: str = ""
    signal: tuple[int, str] | None = None

    def receive(self, signal: int, name: str) -> None:
        """Let every replica finish its current steps, save, and end."""
        self.signal = (signal, name)

    def train_apart(self, jobs: Sequence[_Job], threads: int) -> list[Replica]:
        """Train up to `threads` replicas at a time, each on a thread."""
        signals = handle_signals(self) if jobs[0].run.checkpoint is not None else nullcontext()
        with signals, ThreadPoolExecutor(min(threads, len(jobs)), "replica") as pool:
            futures = [
                pool.submit(copy_context().run, self.train, job, partial(self.fit_apart, job.run)) for job in jobs
            ]
            try:
                wait(futures, return_when=FIRST_EXCEPTION)
            finally:  # after an error or Ctrl-C; otherwise all are done
                self.stopped_by = "another replica failed, or Ctrl-C"
                pool.shutdown(wait=False, cancel_futures=True)
        return [future.result() for future in futures if not future.cancelled()]

    def fit_apart(self, run: Experiment, *, config: Mapping[str, Any]) -> TrainHistory:
        """Train one run on this thread, concurrently with others."""
        with self.building:
            trainer, loader = prepare_run(run, config)
            if trainer.validation is not None:
                trainer.session.prepare_to_evaluate(trainer.feed.named_table(trainer.validation))
        trainer.callbacks.append(_StopTogether(self))
        try:
            with locked_and_resumed(run, trainer, loader):
                return trainer.train(loader, run.epochs)
        finally:
            trainer.session.close()

    def train(self, job: _Job, fit: Callable[..., TrainHistory]) -> Replica:
        """Train one replica; a non-finite loss ends only this replica."""
        error = None
        try:
            history = fit(config={**job.config, "replica": settings_text(job.settings)})
        except NonFiniteError as failure:  # one rate of a sweep may be too large
            log.warning("replica %d (%s): %s", job.index, settings_text(job.settings), failure)
            history, error = TrainHistory(stopped_by=f"{type(failure).__name__}: {failure}"), failure
        assert isinstance(job.run.model, Module)
        folder = None if job.run.checkpoint is None else Path(job.run.checkpoint)
        replica = Replica(job.index, job.settings, job.run.model, history, folder, error)
        self.done += 1
        if self.shows_progress:
            sys.stderr.write(f"{self.done}/{self.count}: {replica}\n")
        return replica


def _adopt(model: Module, best: Module) -> None:
    """Copy the weights of the best replica to a model, and what training recorded about its inputs and outputs."""
    if (encoding := encoding_of(best)) is not None and encoding_of(model) is None:
        keep_encoding(model, encoding)
    model.load_state_dict(best.state_dict())
    if MEANINGS in best.__dict__:
        model.__dict__[MEANINGS] = best.__dict__[MEANINGS]
