"""`Experiment`: the arguments of `ws.fit` as a value, so that the command line can change them and run it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from os import PathLike
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.observers import Observer
from wholestep.data.loader import DataLoader
from wholestep.errors import UnknownNameError, UsageError
from wholestep.nn.module import Module
from wholestep.optim import AdamW, Optimizer
from wholestep.options import CompileOptions
from wholestep.train.fitting import run, trainer_for
from wholestep.train.history import TrainHistory
from wholestep.train.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A model, its data and how it is trained.  A script for `wholestep train` has a function that returns one.

    The fields are the arguments of `ws.fit`; `test` is data that `wholestep evaluate` measures.

    Example::

        def build(hidden: int = 128) -> ws.Experiment:
            x, y = ws.datasets.digits()
            model = ws.nn.Sequential(ws.nn.Linear(64, hidden), ws.nn.ReLU(), ws.nn.Linear(hidden, 10))
            return ws.Experiment(model=model, data=(x, y), validation=0.1, loss="cross_entropy", epochs=5)
    """

    model: Module
    data: Any
    loss: Any
    validation: Any = None
    test: Any = None
    optimizer: Optimizer = field(default_factory=AdamW)
    schedule: Any = None
    metrics: Any = ()
    epochs: int = 1
    batch_size: int = 32
    accumulate: int = 1
    clip_norm: float | None = None
    nonfinite: str = "raise"
    shuffle: bool = True
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None
    callbacks: Sequence[Callback] = ()
    observer: Observer | None = None
    options: CompileOptions | None = None

    def trainer(self) -> tuple[Trainer, DataLoader]:
        """A session and its trainer, and the data they train on, before the first step."""
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "data", "test")}
        return trainer_for(self.model, self.data, **given)

    def fit(
        self,
        *,
        checkpoint: str | PathLike[str] | None = None,
        resume: str | PathLike[str] | bool | None = None,
        exact: bool = False,
        progress: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> TrainHistory:
        """Train as `ws.fit` does; `config` is kept in checkpoints beside what `fit` was given."""
        trainer, loader = self.trainer()
        trainer.started_with = {**trainer.started_with, **(config or {})}
        return run(trainer, loader, self.epochs, checkpoint=checkpoint, resume=resume, exact=exact, progress=progress)

    def having(self, settings: Mapping[str, Any]) -> Experiment:
        """The same with other settings: `experiment.having({"optimizer.lr": 3e-4, "epochs": 5})`."""
        changed: Any = self
        for name, value in settings.items():
            changed = _replaced(changed, name.split("."), value, name)
        assert isinstance(changed, Experiment)
        return changed


def _replaced(owner: Any, path: list[str], value: Any, whole: str) -> Any:
    """A copy of a description with one field, at the end of a path of names, replaced."""
    if not is_dataclass(owner) or isinstance(owner, type):
        raise UsageError(f"{whole!r} cannot be set: {type(owner).__name__} {owner!r} has no fields to replace.")
    known = [f.name for f in fields(owner) if f.init]
    if path[0] not in known:
        close = get_close_matches(path[0], known, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownNameError(
            f"{whole!r} cannot be set: {type(owner).__name__} has no {path[0]!r}.{hint} It has: {', '.join(known)}."
        )
    inner = value if len(path) == 1 else _replaced(getattr(owner, path[0]), path[1:], value, whole)
    return replace(owner, **{path[0]: inner})
