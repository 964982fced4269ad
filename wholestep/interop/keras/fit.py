"""Translates names and values of arguments of Keras' `fit` and Lightning's `Trainer` to arguments of `ws.fit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wholestep.data.splits import Holdout
from wholestep.errors import UsageError
from wholestep.interop.name_tables import EVERY, Only, Say


@dataclass(frozen=True)
class Word:
    """Our name for an argument of another library; `value` converts its value."""

    ours: str
    value: Callable[[Any], Any] = lambda value: value


def _last_rows(fraction: Any) -> Holdout:
    """Keras holds out the last rows, even if the data is shuffled afterwards."""
    return Holdout(fraction, shuffle=False)


def _progress(verbose: Any) -> bool | str:
    """The `progress=` for Keras' `verbose`: 0 is silent, 1 a bar, 2 a line per epoch; "auto" is our default."""
    progress_of: dict[Any, bool | str] = {0: False, 1: True, 2: "epochs", "auto": True}
    if verbose not in progress_of:
        raise UsageError(f"verbose={verbose!r}: expected 0 (silent), 1 (a bar) or 2 (a line per epoch).")
    return progress_of[verbose]


def _every(interval: Any) -> int:
    if isinstance(interval, float):
        raise UsageError(f"val_check_interval={interval}: give validate_every_steps= for parts of an epoch.")
    return int(interval)


FIT: Mapping[str, Word | Only | Say] = {
    # Keras
    "validation_data": Word("validation"),
    "validation_split": Word("validation", _last_rows),
    "validation_freq": Word("validate_every"),
    "validation_steps": Word("limit_validation"),
    "steps_per_epoch": Word("limit_batches"),
    "verbose": Word("progress", _progress),
    "sample_weight": Say("weights of rows are part of the data: ws.fit(model, (x, y, sample_weight), ...)"),
    "initial_epoch": Only((0,), "a run goes on from its checkpoint: ws.fit(..., checkpoint='runs/a', resume=True)"),
    "use_multiprocessing": Only((False,), "give the data as ws.DataLoader(data, num_workers=2)"),
    "clipnorm": Say("that is the norm of each gradient by itself, of ws.build_session(clip_each=...); clip_norm= here shortens all together"),
    "global_clipnorm": Word("clip_norm"),
    "clipvalue": Word("clip_value"),
    "jit_compile": Only((EVERY,), ""),
    "x": Say("data is the second argument: ws.fit(model, (x, y), ...)"),
    "y": Say("data is one argument: ws.fit(model, (x, y), ...)"),
    # Lightning
    "max_epochs": Word("epochs"),
    "limit_train_batches": Word("limit_batches"),
    "limit_val_batches": Word("limit_validation"),
    "check_val_every_n_epoch": Word("validate_every"),
    "val_check_interval": Word("validate_every_steps", _every),
    "accumulate_grad_batches": Word("accumulate"),
    "gradient_clip_val": Word("clip_norm"),
    "enable_progress_bar": Word("progress"),
    "max_steps": Say("give callbacks=ws.StepBudget(steps)"),
    "max_time": Say("give callbacks=ws.TimeBudget(seconds)"),
    "detect_anomaly": Only((False, True), "a loss that is not finite ends a run, and says where: nonfinite='raise'"),
    "accelerator": Only(("cpu", "auto"), "give device="),
    "devices": Only((1, "auto"), "one is used; threads= says how many cores"),
    "deterministic": Only((EVERY,), ""),  # it always is
    "logger": Say("give callbacks=[ws.CSVLogger('log.csv'), ws.TensorBoardLogger('runs/tb')]"),
    "train_dataloaders": Say("data is the second argument: ws.fit(model, data, ...)"),
    "val_dataloaders": Word("validation"),
    # for custom training loops
    "scheduler": Word("schedule"),
    "lr": Say("the learning rate is the optimizer's: optimizer=ws.AdamW(lr=...)"),
    "learning_rate": Say("the learning rate is the optimizer's: optimizer=ws.AdamW(lr=...)"),
    "num_epochs": Word("epochs"),
    "n_epochs": Word("epochs"),
    "val": Word("validation"),
    "weight_decay": Say("weight decay is the optimizer's: optimizer=ws.AdamW(weight_decay=...)"),
    "grad_clip": Word("clip_norm"),
    "max_grad_norm": Word("clip_norm"),
    "gradient_accumulation_steps": Word("accumulate"),
}  # fmt: skip


def translate_fit_arguments(
    function: str, parameters: Mapping[str, Any], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of `fit` under our names; unsupported ones are errors that say what to write."""
    out: dict[str, Any] = {}
    for name, value in arguments.items():
        row = None if name in parameters else FIT.get(name)
        if isinstance(row, Say):
            raise UsageError(f"ws.{function} has no argument {name!r}: {row.text}.")
        if isinstance(row, Only):
            if not any(a is EVERY or (type(a) is type(value) and a == value) for a in row.values):
                raise UsageError(f"ws.{function}: {name}={value!r} is not supported: {row.text}.")
            continue
        ours = row.ours if row is not None else name
        if ours in out or (row is not None and ours in arguments):
            raise UsageError(f"ws.{function}: {name}= is another name of {ours}=, and both were given.")
        out[ours] = value if row is None else row.value(value)
    return out
