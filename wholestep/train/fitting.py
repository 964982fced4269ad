"""`ws.fit`: a model, data, a loss; everything else has a default."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.checkpoint import ModelCheckpoint
from wholestep.callbacks.observers import Observer
from wholestep.callbacks.progress import Progress
from wholestep.data.loader import DataLoader
from wholestep.data.table import Table
from wholestep.errors import UsageError
from wholestep.nn.module import Module
from wholestep.optim import AdamW, Optimizer
from wholestep.options import CompileOptions
from wholestep.session import build_session
from wholestep.train.checkpoint import Checkpoint, load_checkpoint
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.described import Described
from wholestep.train.feeding import prepared, rows_to_measure, sample_of, with_room
from wholestep.train.history import TrainHistory
from wholestep.train.rates import optimizer_of, resolved
from wholestep.train.trainer import TrainConfig, Trainer, check_epochs, length


def fit(
    model: Module,
    data: object,
    *more: object,
    validation: object = None,
    loss: Any,
    optimizer: Optimizer | None = None,
    schedule: Any = None,
    metrics: Any = (),
    epochs: int = 1,
    batch_size: int = 32,
    accumulate: int = 1,
    clip_norm: float | None = None,
    nonfinite: str = "raise",
    shuffle: bool = True,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    callbacks: Iterable[Callback] | Callback = (),
    observer: Observer | None = None,
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
        validation: data of the same kind, measured after every epoch; or a fraction of `data` to hold out: rows drawn
            by the seed, or the last ones where `shuffle=False`.
        loss: a name such as "cross_entropy", a `ws.losses.Loss`, a function of (output, target), or a dict by output.
        optimizer: None is that of a schedule under torch's names, else AdamW with lr 1e-3.  Each call begins with a new
            one, its moments and schedule included; `resume=` goes on.
        schedule: of the learning rate, e.g. `ws.schedules.cosine(warmup=100)`, which spans the run.  Those under
            torch's names count epochs, the others what their `unit` says; a plateau observes val_loss (loss without
            validation) after every epoch.
        metrics: names or objects, e.g. `["accuracy"]`.
        batch_size: rows of a step; a `DataLoader` has its own.
        nonfinite: "raise" ends a run whose loss is not finite and says in which step and layer; "skip" leaves such
            steps out and counts them; "ignore" trains on.
        observer: sees the activations of every layer, e.g. `ws.ConsoleObserver(every=100)`; the steps are unchanged.
        checkpoint: a folder to keep the run in: the last two and the best epoch, and every minute inside an epoch.
            Ctrl-C and SIGTERM then finish the steps at hand, save, and exit.
        resume: a run's folder (or one checkpoint of it) to go on from; True: from `checkpoint`, where it holds any.
            `epochs` counts those already done.
        exact: refuse to resume where the result could differ in bits from that of an uninterrupted run.
        progress: show a bar in a terminal, lines elsewhere.

    Example::

        history = ws.fit(model, (x, y), validation=0.1, loss="cross_entropy", metrics=["accuracy"], epochs=5)
    """
    if more:
        raise UsageError(
            f"data is one argument: ws.fit(model, (x, y), loss=...); received {1 + len(more)} by position."
        )
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
        nonfinite=nonfinite,
        shuffle=shuffle,
        seed=seed,
        device=device,
        threads=threads,
        callbacks=callbacks,
        observer=observer,
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
    nonfinite: str = "raise",
    shuffle: bool = True,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    callbacks: Iterable[Callback] | Callback = (),
    observer: Observer | None = None,
    options: CompileOptions | None = None,
) -> tuple[Trainer, DataLoader]:
    """Everything that `fit` does before the first step: the data, the session, the trainer."""
    if not isinstance(model, Module):
        raise UsageError(f"fit trains a ws.nn.Module; received {type(model).__name__}. For a graph use ws.Trainer.")
    check_epochs(epochs)
    loader, held = prepared(data, validation, batch_size * accumulate, shuffle, seed)
    described = Described(model, sample_of(loader), loss)
    described.check(loader)
    chosen = optimizer_of(schedule, optimizer) or AdamW()
    session = described.build(
        build_session,
        optimizer=chosen,
        schedule=resolved(schedule, epochs, length(loader)),
        metrics=with_room(metrics, rows_to_measure(loader, held)),
        batch_size=loader.batch_size // accumulate,
        accumulate=accumulate,
        clip_norm=clip_norm,
        nonfinite="skip" if nonfinite == "skip" else "ignore",  # losses are looked at where they come back
        seed=seed,
        device=device,
        threads=threads,
        options=options,
    )
    session.set_observer(observer)
    session.reset_optimizer()  # it is a new one: what an earlier run left in the model's state is not its own
    if isinstance(loader.source, Table):
        described.check_classes(session, loader.source)
    if held is not None:
        described.check_held(held, session)
    trainer = Trainer(session, TrainConfig(log_interval=0, nonfinite=nonfinite), callbacks, held)
    trainer.started_with = {
        "loss": str(loss),
        "optimizer": chosen.to_config(),
        "schedule": None if schedule is None else str(schedule),
        "epochs": epochs,
        "batch_size": loader.batch_size,
        "accumulate": accumulate,
        "clip_norm": clip_norm,
        "nonfinite": nonfinite,
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
