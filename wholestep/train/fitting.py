"""`ws.fit`: a model, data, a loss; everything else has a default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wholestep import losses
from wholestep.callbacks.base import Callback
from wholestep.callbacks.checkpoint import ModelCheckpoint
from wholestep.callbacks.progress import Progress
from wholestep.compiler.frontend.step import Spec
from wholestep.data.loader import DataLoader
from wholestep.data.sources import Stream
from wholestep.data.table import Array, Batch, Table, as_table, batches_of, split
from wholestep.errors import InputError, OptionError, UsageError
from wholestep.nn.module import Module
from wholestep.optim import AdamW, Optimizer
from wholestep.options import CompileOptions
from wholestep.schedules import Planned
from wholestep.session import Session, build_session
from wholestep.train.checkpoint import Checkpoint, load_checkpoint
from wholestep.train.history import TrainHistory
from wholestep.train.stored import checkpoints_in
from wholestep.train.trainer import TrainConfig, Trainer

INDEXED = ("cross_entropy", "focal")  # losses whose targets may be class numbers


def fit(
    model: Module,
    data: object,
    *,
    validation: object = None,
    loss: Any,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    metrics: Any = (),
    epochs: int = 1,
    batch_size: int = 32,
    accumulate: int = 1,
    clip_norm: float | None = None,
    shuffle: bool = True,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    callbacks: Iterable[Callback] | Callback = (),
    checkpoint: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | bool | None = None,
    exact: bool = False,
    progress: bool = True,
    options: CompileOptions | None = None,
) -> TrainHistory:
    """Train a model on data and return what happened in each epoch.

    Args:
        data: `(x, y)` or `(x, y, sample_weight)` of arrays or dicts of arrays, a `DataLoader`, a data set with `len`
            and `[i]`, or an iterable of batches.
        validation: data of the same kind, measured after every epoch; or a fraction of `data` to hold out.
        loss: a name such as "cross_entropy", a `ws.losses.Loss`, a function of (output, target), or a dict by output.
        optimizer: AdamW with lr 1e-3 when None.
        schedule: of the learning rate, e.g. `ws.schedules.cosine(warmup=100)`, which spans the run.
        metrics: names or objects, e.g. `["accuracy"]`.
        batch_size: rows of a step; a `DataLoader` has its own.
        checkpoint: a folder to keep the run in: the last two and the best epoch, and every minute inside an epoch.
            Ctrl-C and SIGTERM then finish the steps at hand, save, and exit.
        resume: a run's folder (or one checkpoint of it) to go on from; True: from `checkpoint`, where it holds any.
            `epochs` counts those already done.
        exact: refuse to resume where the result could differ in bits from that of an uninterrupted run.
        progress: show a bar in a terminal, lines elsewhere.

    Example::

        history = ws.fit(model, (x, y), validation=0.1, loss="cross_entropy", metrics=["accuracy"], epochs=5)
    """
    trainer, loader = trainer_for(
        model,
        data,
        validation=validation,
        loss=loss,
        optimizer=optimizer,
        schedule=schedule,
        metrics=metrics,
        epochs=epochs,
        batch_size=batch_size,
        accumulate=accumulate,
        clip_norm=clip_norm,
        shuffle=shuffle,
        seed=seed,
        device=device,
        threads=threads,
        callbacks=callbacks,
        options=options,
    )
    return run(trainer, loader, epochs, checkpoint=checkpoint, resume=resume, exact=exact, progress=progress)


def run(
    trainer: Trainer,
    loader: DataLoader,
    epochs: int,
    *,
    checkpoint: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | bool | None = None,
    exact: bool = False,
    progress: bool = True,
) -> TrainHistory:
    """Train, with a progress bar and checkpoints where they are asked for, from where a run stopped."""
    if progress:
        trainer.callbacks.callbacks.insert(0, Progress())
    if checkpoint is not None:
        trainer.callbacks.append(kept_in(checkpoint, trainer.validation))
    stored = resumed_from(resume, checkpoint)
    if stored is not None:
        trainer.resume(stored, loader, exact=exact)
    return trainer.train(loader, epochs)


def trainer_for(
    model: Module,
    data: object,
    *,
    validation: object = None,
    loss: Any,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    metrics: Any = (),
    epochs: int = 1,
    batch_size: int = 32,
    accumulate: int = 1,
    clip_norm: float | None = None,
    shuffle: bool = True,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    callbacks: Iterable[Callback] | Callback = (),
    options: CompileOptions | None = None,
) -> tuple[Trainer, DataLoader]:
    """Everything that `fit` does before the first step: the data, the session, the trainer."""
    if not isinstance(model, Module):
        raise UsageError(f"fit trains a ws.nn.Module; received {type(model).__name__}. For a graph use ws.Trainer.")
    loader, held = prepared(data, validation, batch_size * accumulate, shuffle, seed)
    described = Described(model, sample_of(loader), loss)
    described.check()
    chosen = optimizer or AdamW()
    session = build_session(
        model,
        inputs=described.inputs(),
        targets=described.targets(),
        loss=loss,
        optimizer=chosen,
        schedule=resolved(schedule, loader, epochs),
        metrics=with_room(metrics, held),
        batch_size=loader.batch_size // accumulate,
        accumulate=accumulate,
        clip_norm=clip_norm,
        seed=seed,
        device=device,
        threads=threads,
        options=options,
    )
    described.check_classes(session, loader)
    trainer = Trainer(session, TrainConfig(log_interval=0), callbacks, held)
    trainer.started_with = {
        "loss": str(loss),
        "optimizer": chosen.to_config(),
        "schedule": None if schedule is None else str(schedule),
        "epochs": epochs,
        "batch_size": loader.batch_size,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "seed": seed,
    }
    return trainer, loader


# -- checkpoints -------------------------------------------------------------------------------------------------

SECONDS = 60.0  # between two checkpoints of a long epoch


def kept_in(folder: str | PathLike[str], held: Table | None) -> ModelCheckpoint:
    """What `checkpoint=` means."""
    return ModelCheckpoint(folder, "loss" if held is None else "val_loss", last=2, seconds=SECONDS)


def resumed_from(resume: str | PathLike[str] | bool | None, folder: str | PathLike[str] | None) -> Checkpoint | None:
    """The checkpoint to go on from, if any."""
    if resume is None or resume is False:
        return None
    if resume is not True:
        return load_checkpoint(resume)
    if folder is None:
        raise UsageError("resume=True goes on from the folder that checkpoint= names; give it, or resume='runs/name'.")
    return load_checkpoint(folder) if Path(folder).is_dir() and checkpoints_in(folder) else None


# -- data --------------------------------------------------------------------------------------------------------


def prepared(
    data: object, validation: object, batch_size: int, shuffle: bool, seed: int
) -> tuple[DataLoader, Table | None]:
    """A loader of the training data, and the validation data as a table."""
    held: Table | None
    if isinstance(validation, float):
        if isinstance(data, DataLoader) and data.arrays() is not None:
            raise UsageError("a fraction for validation cuts arrays; split them before the DataLoader: ws.data.split.")
        data, held = split(data, validation, seed)
    else:
        held = None if validation is None else table_of(validation)
    loader = data if isinstance(data, DataLoader) else DataLoader(data, None, batch_size, shuffle=shuffle, seed=seed)
    if isinstance(loader.source, Table) and loader.batch_size > len(loader.source):
        raise OptionError(
            f"batch_size={loader.batch_size} is more than the {len(loader.source)} rows of the data; choose at most "
            f"{len(loader.source)}."
        )
    return loader, held


def table_of(data: object) -> Table:
    """Data that is measured, as one table."""
    if not isinstance(data, DataLoader):
        return as_table(data)
    if isinstance(data.source, Table):
        return data.source
    parts = list(data)
    if not parts:
        raise InputError("the validation data is empty: it gave no batches.")
    named = [as_table(p) for p in parts]
    return Table(
        {n: np.concatenate([t.inputs[n] for t in named]) for n in named[0].inputs},
        {n: np.concatenate([t.targets[n] for t in named]) for n in named[0].targets},
    )


def sample_of(loader: DataLoader) -> Batch:
    """A first batch, to see what the data looks like."""
    if isinstance(loader.source, Table):
        return next(batches_of(loader.source, loader.batch_size))
    if isinstance(loader.source, Stream):
        first = next(islice(iter(loader.source), 1), None)
        loader.reset()
        if first is None:
            raise InputError("the data is empty: it gave no batches. Training needs at least one example.")
        return first
    return loader.source.take(np.arange(min(loader.batch_size, len(loader.source))))


def resolved(schedule: Any, loader: DataLoader, epochs: int) -> Any:
    """Schedules that span the run, with its length."""
    if isinstance(schedule, Mapping):
        return {name: resolved(s, loader, epochs) for name, s in schedule.items()}
    if not isinstance(schedule, Planned):
        return schedule
    try:
        return schedule.over(epochs * len(loader))
    except UsageError:
        raise UsageError(
            f"{schedule.name}: how long the run is cannot be known from an iterable; give steps=."
        ) from None


def with_room(metrics: Any, held: Table | None) -> Any:
    """Metrics that keep every score get room for the larger of the data sets."""
    from wholestep.metrics import Metric, get_all

    if not metrics:
        return ()
    found = get_all(metrics)
    return [m.with_capacity(len(held)) if held is not None and isinstance(m, Metric) else m for m in found]


# -- what the data looks like ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Described:
    """A model and a batch of its data, from which the inputs of a session follow."""

    model: Module
    batch: Batch
    loss: Any

    def inputs(self) -> Spec | dict[str, Spec]:
        given = self.batch.inputs
        if isinstance(given, Mapping):
            return {name: self._spec(a) for name, a in given.items()}
        return self._spec(given)

    def targets(self) -> dict[str, Spec]:
        given = self.batch.targets
        named = given if isinstance(given, Mapping) else {} if given is None else {"labels": given}
        weight = {} if self.batch.weights is None else {"sample_weight": Spec(("batch",), self._dtype)}
        return {**{name: self._spec(a) for name, a in named.items()}, **weight}

    @property
    def _dtype(self) -> Any:
        kinds = [p.dtype for p in self.model.parameters().values()]
        return kinds[0] if kinds else "float32"

    def _spec(self, array: Array) -> Spec:
        shape = ("batch", *array.shape[1:])
        if array.dtype.kind == "f":
            return Spec(shape, self._dtype)
        return Spec(shape, "int32" if array.dtype.kind in "iu" else array.dtype.name)

    @property
    def _takes_classes(self) -> bool:
        name = getattr(self.loss, "kind", self.loss)
        return isinstance(name, str) and losses.Loss(name).kind in INDEXED

    def check(self) -> None:
        """What new users get wrong, said before anything is compiled."""
        x, y = self.batch.inputs, self.batch.targets
        if y is None and not callable(self.loss):
            raise UsageError("there are no targets: data is (x, y). For a model without targets give loss= a function.")
        if isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim >= 3:
            raise InputError(
                "the inputs are uint8 images; a network takes floats around 0..1: x.astype('float32') / 255, or "
                "DataLoader(..., transform=ws.data.Scale(1 / 255))."
            )
        if isinstance(x, np.ndarray) and x.dtype.kind == "f" and not np.isfinite(x).all():
            raise InputError("the inputs hold NaN or infinity; drop those rows or replace them: np.nan_to_num(x).")
        if isinstance(y, np.ndarray) and self._takes_classes:
            _check_labels(y)

    def check_classes(self, session: Session, loader: DataLoader) -> None:
        """Class numbers must be below the number of scores."""
        y = loader.source.targets.get("labels") if isinstance(loader.source, Table) else None
        outputs = {name: session.plan.buffers[id].type for name, id in session.plan.outputs}
        if y is None or "output" not in outputs or not self._takes_classes or y.dtype.kind not in "iu":
            return
        scores = outputs["output"].shape[-1]
        if isinstance(scores, int) and y.size and int(y.max()) >= scores:
            raise InputError(
                f"the labels go up to {int(y.max())}, which needs {int(y.max()) + 1} classes; the model has {scores} "
                "outputs. Make its last layer larger, or number the classes from 0."
            )


def _check_labels(y: Array) -> None:
    if y.dtype.kind == "f" and y.ndim == 1:
        raise InputError("the labels are floats; classes are whole numbers: y.astype('int32'). Else use loss='mse'.")
    if y.dtype.kind in "iub" and y.ndim == 2 and y.shape[1] > 1 and (y.sum(axis=1) == 1).all() and y.max() <= 1:
        raise InputError(
            "the labels are one-hot integers; give class numbers, y.argmax(axis=1), or probabilities as floats, "
            "y.astype('float32')."
        )
