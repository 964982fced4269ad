"""`Experiment`: the arguments of a run as a record.  `ws.fit`, loops and the command line are built on it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.checkpoint import ModelCheckpoint
from wholestep.callbacks.deadline import Deadline, as_seconds
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.observers import Observer
from wholestep.callbacks.progress import LiveChart, Progress
from wholestep.compiler.frontend.step import Step
from wholestep.data.loader import DataLoader
from wholestep.data.loader_workers import end_processes
from wholestep.data.order import Sampler
from wholestep.data.sequences.packing import PackedTable
from wholestep.data.sources import Stream
from wholestep.data.table import Table, with_row_numbers
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.nn.layers.table_encoding import encoding_metadata
from wholestep.nn.module.freezing import refuse_all_frozen
from wholestep.nn.module.module import Module
from wholestep.notebook import notebook_display
from wholestep.optim import AdamW, Optimizer
from wholestep.options import CompileOptions, read_launch
from wholestep.privacy.settings import Privacy
from wholestep.schedules.base import Schedule
from wholestep.schedules.run_length import Planned
from wholestep.session import Session, build_session
from wholestep.session.building.arguments import need_workers, shared_arguments
from wholestep.steps.loss_scale import LossScale
from wholestep.steps.options import RowValues, as_measures, as_row_values, modes_of
from wholestep.steps.states import seed_or_default
from wholestep.train.checkpoint import Checkpoint, load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.checkpoint.lock import need_free
from wholestep.train.config import TrainConfig, need_integer
from wholestep.train.custom_step import build_step, config_for, refuse_step_arguments
from wholestep.train.data.class_weights import with_class_weight
from wholestep.train.data.data_spec import DataSpec
from wholestep.train.data.loaders import batch_capacity, rows_to_measure, sample_of, with_room
from wholestep.train.evaluation import remember_loss
from wholestep.train.history import TrainHistory
from wholestep.train.learning_rates import optimizer_of, resolve_schedule
from wholestep.train.lint.lint import log_findings
from wholestep.train.lint.rules import LintedRun
from wholestep.train.row_sampling import private_run, sampled_run
from wholestep.train.run_limits import dev_run_of, limited_data
from wholestep.train.step_source import need_batches, updates_of
from wholestep.train.trainer import Trainer, check_epochs
from wholestep.train.worker_sync import as_launched, begin_together, locked_folders

if TYPE_CHECKING:
    from wholestep.data.augment import Augmentations
    from wholestep.data.tables.encoder import Encoder
    from wholestep.distributed.workers import Workers

MOST_EPOCHS = 1 << 30  # epochs of a run with a deadline, which ends earlier
SECONDS = 60.0  # the time between two checkpoints within an epoch
LOOP = ("nonfinite", "validate_every", "validate_every_steps", "min_epochs")  # fields that `TrainConfig` has too
BY_NAME = "loss_weights"  # a mapping that may be None before one of its values is set
UNNOTED = ("data", "checkpoint", "resume", "exact", "progress")  # fields that do not affect the numbers of a run


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The arguments of `ws.fit` as a record: a model, its data, how it is trained; and `test`, data for `wholestep
    evaluate`.

    A script for `wholestep train` has a function that returns one.

    Args:
        model: a `ws.nn.Module`; or a `@ws.step` function, which has its own loss and optimizers.  Data for it is a dict
            by its inputs, or `(x, y)` for the first and the second; every number that it returns is logged.
        data: `(x, y)` or `(x, y, sample_weight)` of arrays or dicts of arrays, a `DataLoader`, a data set with `len`
            and `[i]`, or an iterable of batches.  Several inputs are a dict by the names of `forward`'s arguments, or a
            tuple in their order, `((a, b), y)`.  x may be a frame of pandas or Polars, an Arrow table or the result of
            `ws.data.read_frame`; y is then a column of it, by name, or one of its own.
        validation: data of the same kind, measured after every epoch; or a fraction of `data` to hold out: rows drawn
            by the seed, or the last ones where `shuffle=False`; or `ws.data.Holdout`: by class, or whole groups.
        validate_every: epochs between two validations; the last epoch always has one.
        validate_every_steps: also validate within an epoch, each time after this many steps: `history.validations`.
        loss: a name such as "cross_entropy", a `ws.losses.Loss`, a function of (output, target), or a dict by output.
            The parts of a loss (of each output; of a function that returns a dict) are added up and logged:
            `history["<part>_loss"]`.
        class_weight: the weight of each class in the loss: a dict `{0: 1.0, 1: 5.0}`, a number for each class,
            or "balanced", by how often each occurs.
        loss_weights: factors of the parts by name: `{"kl": 0.1}`.  Runtime scalars: a schedule may have
            them, `schedule={"loss_weights.kl": ...}`.
        optimizer: e.g. `ws.Adam(lr=1e-3)`, or "adam" with its defaults.  None is that of a schedule under torch's
            names, else AdamW with lr 1e-3.  Each call starts with a new one, including moments and schedule;
            `resume=` restores them.
        schedule: the schedule of the learning rate, e.g. `ws.schedules.cosine(warmup=100)`, which spans the run.  Those
            under torch's names count epochs, the others what their `unit` says; a plateau observes val_loss (loss
            without validation) after every epoch.
        metrics: names, objects or functions of predictions and targets, e.g. `["accuracy", my_function]`; or a dict of
            such lists by output.
        augment: changes of the inputs in training steps, compiled into them and keyed by (seed, epoch, row): one or
            several such as `[ws.data.RandomAffine(degrees=10), ws.data.MixUp(0.2)]`; or a dict of them by input.
        encoder: how the columns of a frame become numbers, fitted to the training rows and stored with the model, whose
            `predict` applies it. `ws.models.Tabular` has one by default.
        within: the time of the whole call, with compilation: seconds, or "60s", "5m", "1h".  It trains as many epochs
            as fit; a schedule over the run, `ws.schedules.cosine(...)`, spans the time, and with validation data the
            best weights are kept.
        min_epochs: epochs that run even if a callback asks to stop.
        batch_size: rows of a batch; the last one has the remaining rows, which are all rows if there are fewer.  A
            `DataLoader` and an iterable of batches have their own.
        drop_last: leave out a last batch that is not full.  With fewer rows than `batch_size` no batch is left, which
            is an error.
        limit_batches: the most batches of an epoch; a float such as 0.1 is a fraction of them.
        limit_validation: the most batches of the validation data, or a share of them.
        overfit_batches: train on this many batches alone, the same in every epoch, and validate on them.
        fast_dev_run: True, or a number of batches: train and validate one epoch of this many, as a test that everything
            runs.  No checkpoint and no log is written.
        accumulate: batches per update, which equals an update over all their rows at once; the last update of an epoch
            takes the remaining batches.  It means the same for arrays, data sets, loaders and iterables.
        per_micro_batch: for a loss that is not separable, accept the mean of the batches' losses.
        clip_norm: scale all gradients to at most this global norm.
        clip_value: clip every element of the gradients to [-clip_value, clip_value], before `clip_norm`.
        gradient_norm: log `grad_norm`, the mean over an epoch's steps of the global norm of gradients, before
            `clip_norm`, with which it is logged anyway.
        per_row: record the "loss" and the "gradient_norm" of every row in every epoch: `history.per_row`, and
            `history.suspects(20)`, the rows that pulled most on the weights.
        privacy: train with differential privacy: `ws.Privacy(epsilon=3, delta=1e-5, clip=1.0)`.  Gradients are clipped
            per row, noise is added, and batches are random draws of `batch_size` rows on average; the history has the
            `epsilon` spent.  Losses and metrics of the training data are not protected.
        sampler: which rows an epoch visits, and in which order, e.g. `ws.data.Balanced(y)`; replaces `shuffle`.
            `ws.data.Hard()`, `ws.data.Importance()` and `ws.data.SelfPaced()` read the losses or gradient norms of the
            rows in the epochs before.
        leave_out: rows of the training data without weight in the loss and the metrics: everything else is as in a run
            with them (a batch norm still measures them).  `sweep={"leave_out": [[], [3, 17]]}` trains with and without
            some rows, and `history.without([3, 17])` is the influence of these.
        nonfinite: "raise" ends a run whose loss is not finite and names the step, the operation, its layer and line;
            "skip" skips and counts such steps; "ignore" trains on, and allows NaN and infinity in the data as well, for
            a model that replaces them.
        precision: "float32", "bfloat16" or "float16", on a GPU "tf32" too, as for `ws.build_session`; None: float32, of
            which convolutions on a GPU read 10 bits of the mantissa, as in PyTorch by default.
        loss_scale: the loss scaling of float16, `ws.LossScale()` unless given; history and progress show the scale.
        memory: the most bytes that a step may use, "5.5GB", or a fraction of its peak without a limit, 0.7, as for
            `ws.build_session`.
        seed: the seed of the initial weights, the order of rows, the rows held out, dropout and other random values.
            None: that of `ws.manual_seed`, 0 unless it was called; networks trained one after the other then start
            differently.
        device: the device of the steps, as for `ws.build_session`.
        shards: compute each step as this many workers would, in this process and with the same bits; `(2, 3)`
            as those of `ws.Workers(data=2, model=3)`.
        shard: "optimizer": each of the shards, or workers, holds a part of the optimizer's state.
        workers: the processes that make each step together, `ws.Workers(4)`; `wholestep launch -n 4` starts them.
        observer: receives the activations of every layer, e.g. `ws.ConsoleObserver(every=100)`; the steps are
            unchanged.
        replicas: the number of runs with the seeds seed, seed + 1, ...; the result is a `ReplicaHistory`.  Small steps
            run one replica per core, each to the bits of its run alone, and the step is compiled once.  The model gets
            the weights of the best replica, by val_loss (loss without validation) of its last epoch.
        sweep: values of settings, `{"optimizer.lr": [1e-4, 1e-3], "seed": range(8)}`: a replica for every combination.
            Any setting of an experiment may be swept; runtime scalars and seeds share one compiled step.
        checkpoint: a folder for checkpoints: of the last two epochs and the best one, and every minute inside an epoch.
            Ctrl-C, SIGTERM and SIGHUP (a closed terminal) then finish the current steps, save, and exit.  Only one run
            at a time writes to a folder.
        resume: a run's folder (or one checkpoint of it) to resume from; True: from `checkpoint`, if it has any.
            `epochs` includes those already done.
        exact: refuse to resume if the result could differ in bits from that of an uninterrupted run.
        silence: codes of `ws.lint` that are not logged at the start, e.g. `("WS301",)`.
        progress: True shows a bar in a terminal, curves in a notebook, lines elsewhere; "bar", "lines" or "epochs" (one
            line each) say which; False is silent.

    Example::

        def build(hidden: int = 128) -> ws.Experiment:
            x, y = ws.datasets.digits()
            model = ws.nn.Sequential(ws.nn.Linear(64, hidden), ws.nn.ReLU(), ws.nn.Linear(hidden, 10))
            return ws.Experiment(model=model, data=(x, y), validation=0.1, loss="cross_entropy", epochs=5)
    """

    model: Module | Step
    data: Any
    loss: Any = None
    loss_weights: Mapping[str, float] | None = None
    class_weight: Any = None
    validation: Any = None
    validate_every: int = 1
    validate_every_steps: int | None = None
    test: Any = None
    optimizer: Optimizer | str | None = None
    schedule: Any = None
    metrics: Any = ()
    augment: Any = None
    encoder: Encoder | None = None
    epochs: int = 1
    within: float | str | None = None
    min_epochs: int = 0
    batch_size: int = 32
    drop_last: bool = False
    limit_batches: int | float | None = None
    limit_validation: int | float | None = None
    overfit_batches: int | None = None
    fast_dev_run: bool | int = False
    accumulate: int = 1
    per_micro_batch: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    gradient_norm: bool = False
    per_row: Sequence[str] = ()
    privacy: Privacy | None = None
    nonfinite: str = "raise"
    precision: str | None = None
    loss_scale: LossScale | None = None
    memory: int | float | str | None = None
    shuffle: bool = True
    sampler: Sampler | None = None
    leave_out: Sequence[int] | None = None
    seed: int | None = None
    device: str = "cpu"
    threads: int | None = None
    shards: int | tuple[int, int] | None = None
    shard: str | None = None
    workers: Workers | None = None
    callbacks: Iterable[Callback] | Callback = ()
    observer: Observer | None = None
    replicas: int = 1
    sweep: Mapping[str, Iterable[Any]] | None = None
    checkpoint: str | PathLike[str] | None = None
    resume: str | PathLike[str] | bool | None = None
    exact: bool = False
    silence: Iterable[str] = ()
    progress: bool | str = True
    options: CompileOptions | None = None

    def __post_init__(self) -> None:
        need_workers(self.workers)
        if not isinstance(self.model, Step):  # a step has its own loss and optimizer
            object.__setattr__(self, "optimizer", optimizer_of(self.schedule, self.optimizer) or AdamW())

    @property
    def data_seed(self) -> int:
        """The seed of the order of rows and of the choice of validation rows."""
        return seed_or_default(self.seed)

    def having(self, settings: Mapping[str, Any]) -> Experiment:
        """A copy with other settings: `experiment.having({"optimizer.lr": 3e-4, "epochs": 5})`."""
        changed: Any = self
        for name, value in settings.items():
            changed = _replace_field(changed, name.split("."), value, name)
        assert isinstance(changed, Experiment)
        return changed

    def fit(self, *, config: Mapping[str, Any] | None = None, **settings: Any) -> TrainHistory:
        """Train as `ws.fit` does, with some settings changed; checkpoints store `config` with the other arguments.

        Example: `experiment.fit(epochs=10, checkpoint="runs/digits", resume=True)`.
        """
        began = time.monotonic()
        run = as_launched(dev_run_of(self.having(settings)))
        if run.workers is not None and run.workers.engine == "ray":
            from wholestep.distributed.launch.ray import fit_on_ray  # imported here because it needs Ray

            return fit_on_ray(run, config)
        if run.replicas != 1 or run.sweep is not None:
            from wholestep.train.replicas.run import fit_replicas  # imported here because most runs are single

            return fit_replicas(run, config)
        launch = read_launch()
        if run.checkpoint is not None and (launch is None or launch.rank == 0):
            need_free(Path(run.checkpoint))  # checked before anything is compiled
        run, deadline = _with_deadline(run, began)
        trainer, loader = prepare_run(run, config)
        if deadline is not None:
            from wholestep.session.inspect.estimate import step_seconds  # imported here because few runs need it

            session = trainer.session
            deadline.watch(trainer, step_seconds(session.plan, session.target, session.threads))
        with end_processes(loader), locked_and_resumed(run, trainer, loader):
            return trainer.train(loader, run.epochs)

    def _stored_checkpoint(self) -> Checkpoint | None:
        """The checkpoint to resume from, if any."""
        if self.resume is None or self.resume is False:
            return None
        if self.resume is not True:
            return load_checkpoint(self.resume)
        if self.checkpoint is None:
            raise UsageError(
                "resume=True resumes from the folder that checkpoint= names; give it, or resume='runs/name'."
            )
        there = Path(self.checkpoint).is_dir() and checkpoints_in(self.checkpoint)
        return load_checkpoint(self.checkpoint) if there else None

    def trainer(self) -> tuple[Trainer, DataLoader]:
        """The trainer and its data before the first step."""
        _need_trainable(self)
        check_epochs(self.epochs)
        loader, held = limited_data(self)
        need_batches(loader)
        if isinstance(self.model, Step):
            session, names = build_step(self, self.model, loader, held)
            return self._trainer(session, loader, held, config_for(self._config, names)), loader
        run, loader = sampled_run(self, loader)
        if self.privacy is not None:
            run, loader = private_run(run, loader)
        if self.augment:
            loader, held = _with_row_numbers(loader, held)
        session = run._over_module(self.model, loader, held)
        return run._trainer(session, loader, held, self._config), loader

    def _trainer(self, session: Session, loader: DataLoader, held: Table | None, config: TrainConfig) -> Trainer:
        trainer = Trainer(session, config, self.callbacks, held)
        trainer.started_with = self._notes(loader)
        return trainer

    def _over_module(self, model: Module, loader: DataLoader, held: Table | None) -> Session:
        """A session over a module with its loss and optimizer, after all checks of the data."""
        described = DataSpec(model, sample_of(loader), self.loss, takes_nan=self.nonfinite == "ignore")
        described.check(loader)
        described = with_class_weight(described, self.class_weight, loader)
        session = self._session(described, loader, held)
        graph = session._programs.need("the linter").definition.graph.to_ir()
        log_findings(LintedRun(self, loader, held, graph, described.table_losses()), self.silence)
        session.set_observer(self.observer)
        remember_loss(model, None if self.loss_weights else self.loss, self.metrics)
        session.reset_optimizer()  # states of an earlier run's optimizer are in the model's state
        if isinstance(loader.source, Table):
            described.check_classes(session, loader.source)
        if isinstance(loader.source, PackedTable):
            session._programs.notes = (loader.source.note,)
        if held is not None:
            described.check_held(held, session)
        return session

    @property
    def _config(self) -> TrainConfig:
        options = {f.name: getattr(self, f.name) for f in fields(TrainConfig) if f.name in LOOP}
        return TrainConfig(log_interval=0, **options)

    def _session(self, described: DataSpec, loader: DataLoader, held: Table | None) -> Session:
        need_integer("accumulate", self.accumulate, 1)
        updates = updates_of(loader, self.accumulate)
        arguments = shared_arguments(
            self,
            schedule=resolve_schedule(self.schedule, self.epochs, updates, modes_of(as_measures(self.metrics))),
            metrics=with_room(self.metrics, rows_to_measure(loader, held)),
            augment=_augmentations(self),
            batch_size=batch_capacity(loader, described.batch.rows, exact=self.per_micro_batch),
            per_row=_row_values(self.per_row, loader),
            gradient_norm=self.gradient_norm or self.clip_norm is not None,
            nonfinite="skip" if self.nonfinite == "skip" else "ignore",  # the trainer examines the losses it reads
        )
        return described.build(build_session, **arguments)

    def _notes(self, loader: DataLoader) -> dict[str, Any]:
        """The configuration that checkpoints store for readers."""
        plain = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), int | float | str)}
        return {
            **{name: value for name, value in plain.items() if name not in UNNOTED},
            "seed": self.data_seed,
            "loss": str(self.loss),
            **({} if self.class_weight is None else {"class_weight": str(self.class_weight)}),
            "optimizer": self.optimizer.to_config() if isinstance(self.optimizer, Optimizer) else None,
            "schedule": None if self.schedule is None else str(self.schedule),
            **({} if self.privacy is None else {"privacy": str(self.privacy)}),
            "batch_size": loader.batch_size,
            **(encoding_metadata(self.model) if isinstance(self.model, Module) else {}),
        }


def prepare_run(run: Experiment, config: Mapping[str, Any] | None = None) -> tuple[Trainer, DataLoader]:
    """The trainer of a run with its progress and its checkpoints, which store `config` too."""
    trainer, loader = run.trainer()
    trainer.started_with = {**trainer.started_with, **(config or {})}
    if run.progress is not False:
        trainer.callbacks.callbacks.insert(0, _progress(run.progress))
    if run.checkpoint is not None:
        monitor = "loss" if trainer.validation is None else "val_loss"
        trainer.callbacks.append(ModelCheckpoint(run.checkpoint, monitor, last=2, seconds=SECONDS))
    return trainer, loader


@contextmanager
def locked_and_resumed(run: Experiment, trainer: Trainer, loader: DataLoader) -> Iterator[None]:
    """Hold the locks of a prepared run's folders, and restore its checkpoint if it resumes."""
    with locked_folders(trainer):
        stored = run._stored_checkpoint()
        if stored is not None:
            trainer.resume(stored, loader, exact=run.exact)
        begin_together(trainer, loader)
        yield


def _with_deadline(run: Experiment, began: float) -> tuple[Experiment, Deadline | None]:
    """A run with `within=`: as many epochs as fit, and a callback that ends it and sets the learning rate."""
    if run.within is None:
        return run, None
    seconds, schedule = as_seconds(run.within), run.schedule
    if run.epochs != 1 or run.workers is not None or run.resume:
        raise UsageError(
            "within= trains as many epochs as fit, in one process: leave out epochs=, workers= and resume=."
        )
    if schedule is not None and not isinstance(schedule, Planned):
        raise UsageError(
            f"within= needs a schedule over the run, such as ws.schedules.cosine(lr); {type(schedule).__name__} counts "
            "steps or epochs, whose number is not known."
        )
    deadline = Deadline(seconds, None if schedule is None else partial(_schedule_over, run, schedule), began)
    return replace(run, epochs=MOST_EPOCHS, schedule=None, callbacks=[*CallbackList(run.callbacks), deadline]), deadline


def _schedule_over(run: Experiment, schedule: Planned, steps: int) -> Schedule:
    """The schedule of a run of so many steps, and at least one after the warm-up."""
    rate = getattr(run.optimizer, "lr", None)
    planned = schedule.over(max(steps, schedule.warmup + 1))
    return planned if rate is None else planned.bound(float(rate))


def _with_row_numbers(loader: DataLoader, held: Table | None) -> tuple[DataLoader, Table | None]:
    """The data with the number of each row, which augmentations are keyed by; validation does not use it."""
    numbered = copy(loader)
    numbered.numbers_rows = True
    return numbered, None if held is None else with_row_numbers(held)


def _augmentations(run: Experiment) -> Augmentations | None:
    if not run.augment:
        return None
    from wholestep.data.augment import Augmentations  # imported here because few runs augment

    return Augmentations.of(run.augment, run.data_seed)


def _row_values(names: Sequence[str], loader: DataLoader) -> RowValues:
    """The values of rows, with room for those of an epoch."""
    wanted = as_row_values(names)
    if not wanted.names:
        return wanted
    if isinstance(loader.source, Stream):
        raise UsageError("per_row= needs data whose rows have numbers: arrays, frames, or a data set with len().")
    if isinstance(loader.source, PackedTable):
        raise UsageError("per_row= measures single rows, but a packed row contains several sequences. Leave it out.")
    return replace(wanted, capacity=loader.rows)


def _progress(asked: bool | str) -> Progress:
    options: dict[bool | str, dict[str, Any]] = {
        True: {},
        "bar": {"bar": True},
        "lines": {"bar": False},
        "epochs": {"bar": False, "seconds": None},
    }
    if not isinstance(asked, bool | str) or asked not in options:
        raise OptionError(f"progress={asked!r}: expected True, False, 'bar', 'lines' or 'epochs'.")
    if asked is True and (display := notebook_display()) is not None:
        return LiveChart(display)
    return Progress(**options[asked])


def _need_trainable(run: Experiment) -> None:
    if isinstance(run.model, Step):
        refuse_step_arguments(run)
    elif not isinstance(run.model, Module):
        raise UsageError(
            f"fit trains a ws.nn.Module or a @ws.step function; received {type(run.model).__name__}. For a graph use "
            "ws.Trainer."
        )
    elif run.loss is None:
        raise UsageError(
            "loss= is missing: give what training minimises, e.g. loss='cross_entropy' for classes, 'bce' for binary "
            "targets, 'mse' for numbers, or a function of (output, target)."
        )
    else:
        refuse_all_frozen(run.model)


def _replace_field(owner: Any, path: list[str], value: Any, whole: str) -> Any:
    """A copy of a description with one field, at the end of a path of names, replaced."""
    if owner is None and whole == f"{BY_NAME}.{path[0]}":
        owner = {}
    if isinstance(owner, Mapping):
        inner = value if len(path) == 1 else _replace_field(owner.get(path[0]), path[1:], value, whole)
        return {**owner, path[0]: inner}
    if not is_dataclass(owner) or isinstance(owner, type):
        raise UsageError(f"{whole!r} cannot be set: {type(owner).__name__} {owner!r} has no fields to replace.")
    names = [f.name for f in fields(owner) if f.init]
    if path[0] not in names:
        close = get_close_matches(path[0], names, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"{whole!r} cannot be set: {type(owner).__name__} has no {path[0]!r}.{hint} It has: {', '.join(names)}."
        )
    inner = value if len(path) == 1 else _replace_field(getattr(owner, path[0]), path[1:], value, whole)
    return replace(owner, **{path[0]: inner})
