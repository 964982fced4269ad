"""`ws.cross_validate`: k-fold cross-validation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from wholestep.callbacks.progress import short
from wholestep.data.splits import folds as folds_of
from wholestep.errors import UnknownNameError, UsageError
from wholestep.nn.module.module import Module
from wholestep.train.experiment import Experiment
from wholestep.train.fitting import check_settings, takes_settings
from wholestep.train.history import TrainHistory, align_right
from wholestep.train.replicas.run import train_together

FOLDER = "fold-{}"


@dataclass(frozen=True)
class CrossValidation:
    """The results of all folds: `result.mean("val_accuracy")`, `result["val_loss"]`, `result.models[0]`."""

    models: tuple[Module, ...]
    histories: tuple[TrainHistory, ...]
    held: tuple[Any, ...] = field(default=(), repr=False)  # the rows that each fold validated

    def __getitem__(self, name: str) -> list[float]:
        """The value of a number in the last epoch of each fold."""
        last_epochs = [history.last for history in self.histories]
        if name not in last_epochs[0]:
            raise UnknownNameError(
                f"the folds have no {name!r}; they have: {', '.join(last_epochs[0]) or 'no epochs'}."
            )
        return [float(last[name]) for last in last_epochs]

    def mean(self, name: str = "val_loss") -> float:
        """The mean of a number over the folds."""
        return float(np.mean(self[name]))

    def std(self, name: str = "val_loss") -> float:
        """The sample standard deviation of a number over the folds."""
        return float(np.std(self[name], ddof=1))

    def predict(self, x: Any, interval: float | None = None) -> Any:
        """The mean of the predictions of all folds' models; with `interval=0.9` a `ws.PredictionInterval` around it.

        The interval of a number contains the target in `interval` of the cases, by CV+, with as many folds as rows by
        the jackknife+ (Barber et al., arXiv:1905.02928): its ends are quantiles of the predictions of a fold's model,
        minus and plus each residual of the rows that it has not seen.  For rows drawn as the data was, the coverage is
        at least 2 interval - 1, typically about `interval`.

        Example: `ws.cross_validate(model, (x, y), loss="mse", folds=10).predict(x_new, interval=0.9).low`.
        """
        if interval is None:
            return np.mean([np.asarray(model.predict(x)) for model in self.models], axis=0)
        from wholestep.train.tuning.intervals import cv_plus  # imported here because few runs need it

        return cv_plus(self.models, self.held, x, interval)

    def __len__(self) -> int:
        return len(self.histories)

    def __str__(self) -> str:
        names = [n for n in self.histories[0].scalars if n.startswith("val_")]
        rows = [["fold", *names]]
        rows += [[str(i), *(short(n, self[n][i]) for n in names)] for i in range(len(self))]
        rows += [["mean", *(short(n, self.mean(n)) for n in names)], ["std", *(short(n, self.std(n)) for n in names)]]
        return align_right(rows)


def train_folds(experiment: Experiment, k: int, stratify: Any = False, groups: Any = None) -> CrossValidation:
    """Train an experiment once for each of k folds; each fold has a separate folder of checkpoints."""
    if experiment.validation is not None:
        raise UsageError("folds hold out their own rows, each once; leave validation= out.")
    pairs = folds_of(
        experiment.data, k, experiment.data_seed, shuffle=experiment.shuffle, stratify=stratify, groups=groups
    )
    runs = [replace(experiment, data=train, validation=held) for train, held in pairs]
    trained = train_together(runs, [{"fold": i} for i in range(len(runs))], FOLDER)
    for each in trained:
        if each.error is not None:
            raise each.error
    held = tuple(run.validation for run in runs)
    return CrossValidation(tuple(r.model for r in trained), tuple(r.history for r in trained), held)


@takes_settings
def cross_validate(
    model: Module,
    data: object,
    *,
    loss: Any,
    folds: int = 5,
    stratify: Any = False,
    groups: Any = None,
    **settings: Any,
) -> CrossValidation:
    """Train a copy of a model for each of `folds` parts on all other parts, and evaluate it on that part.

    Every copy starts with the current weights of the model; the model itself is not trained.  `stratify` and `groups`
    are those of `ws.data.folds`; `shuffle=False` validates each part by the rows before it.

    Args: those of `ws.Experiment`.

    Example::

        found = ws.cross_validate(model, (x, y), loss="cross_entropy", metrics=["accuracy"], folds=5, stratify=True)
        print(found.mean("val_accuracy"), found.std("val_accuracy"))
    """
    experiment_settings = check_settings("cross_validate", settings)
    return train_folds(Experiment(model=model, data=data, loss=loss, **experiment_settings), folds, stratify, groups)
