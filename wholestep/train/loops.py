"""`BasicTrainingLoop`: fit and validate, with everything as an object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.nn.module import Module
from wholestep.optim import Optimizer
from wholestep.schedules import Planned, Schedule, TorchSchedule
from wholestep.train.experiment import Experiment
from wholestep.train.history import TrainHistory


class BasicTrainingLoop:
    """A model, how it is trained and who watches; `fit` runs it.

    Example::

        loop = ws.BasicTrainingLoop(model, ws.Adam(), metrics=["accuracy"])
        loop.add_callback(ws.CSVLogger("log.csv"))
        history = loop.fit((x, y), (xv, yv), epochs=5)
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | None = None,
        scheduler: Schedule | Planned | TorchSchedule | None = None,
        metrics: Any = (),
        callbacks: Iterable[Callback] = (),
        loss: Any = "cross_entropy",
    ) -> None:
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.metrics, self.loss = metrics, loss
        self.callbacks = list(callbacks)

    def add_callback(self, callback: Callback) -> None:
        """Add one that watches the next `fit`."""
        self.callbacks.append(callback)

    def fit(self, train_data: object, val_data: object = None, epochs: int = 1, **options: Any) -> TrainHistory:
        """Train, and validate after every epoch where there is validation data; options are those of `ws.fit`."""
        own = {"optimizer": self.optimizer, "schedule": self.scheduler, "metrics": self.metrics, "loss": self.loss}
        run = {"callbacks": self.callbacks, "validation": val_data, "epochs": epochs, **options}
        return Experiment(model=self.model, data=train_data, **own, **run).fit()
