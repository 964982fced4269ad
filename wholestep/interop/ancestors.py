"""Aliases under the names of this library's ancestors (Luminal, Meganeura, ML Odyssey), so that programs for them run.

Each is another name of something here, or a few lines over it; nothing else in the package uses them.  They are also
available in the packages where users look for them: `ws.ExecutionPlan`, `ws.callbacks.MetricCallback`,
`ws.schedules.SGDR`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# tensorlogic-train: accumulates gradients of micro-batches in arrays
from wholestep.accumulation import AccumulationConfig, AccumulationStats, GradientAccumulator, GradientBuffer
from wholestep.callbacks.base import Callback
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.errors import AccumulationError, AccumulatorFull, NoGradients, ShapeMismatch
from wholestep.nn.module.module import Module

# Luminal: optimizers as nodes of a user's own graph
from wholestep.optim import Optimizer
from wholestep.optim.core.on_graph import AdamOptimizer, SGDGraph, SGDUpdate, sgd, sgd_on_graph
from wholestep.schedules import Planned, Schedule, TorchSchedule
from wholestep.schedules.cycles import WarmRestarts
from wholestep.train.experiment import Experiment
from wholestep.train.history import TrainHistory

# fmt: off
__all__ = [
    "AccumulationConfig", "AccumulationError", "AccumulationStats", "AccumulatorFull", "AdamOptimizer",
    "BasicTrainingLoop", "ExecutionPlan", "GradientAccumulator", "GradientBuffer", "History", "MetricCallback",
    "NoGradients", "SGDGraph", "SGDR", "SGDUpdate", "ShapeMismatch", "sgd", "sgd_on_graph",
]
# fmt: on

# Meganeura
ExecutionPlan = Plan
History = TrainHistory


class MetricCallback(Callback):
    """`Callback` under this library's ancestor's name: define `on_step`, `on_epoch` or both."""


# ML Odyssey
SGDR = WarmRestarts


class BasicTrainingLoop:
    """A model with its optimizer, metrics and callbacks; `fit` trains it.

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
        """Add a callback for the next `fit`."""
        self.callbacks.append(callback)

    def fit(self, train_data: object, val_data: object = None, epochs: int = 1, **options: Any) -> TrainHistory:
        """Train, and validate after every epoch if there is validation data; takes the options of `ws.fit`."""
        defaults = {"optimizer": self.optimizer, "schedule": self.scheduler, "metrics": self.metrics, "loss": self.loss}
        run = {"callbacks": self.callbacks, "validation": val_data, "epochs": epochs, **options}
        return Experiment(model=self.model, data=train_data, **defaults, **run).fit()
