"""Callbacks: what watches training, writes about it, and ends it."""

from wholestep.callbacks.base import (
    Callback,
    CallbackList,
    EpochStats,
    LossHistory,
    MetricCallback,
    Run,
    StepMetrics,
)
from wholestep.callbacks.loggers import CSVLogger, JSONLinesLogger, TensorBoardLogger
from wholestep.callbacks.progress import Progress
from wholestep.callbacks.stopping import EarlyStopping, StepBudget, TimeBudget

__all__ = [
    "CSVLogger", "Callback", "CallbackList", "EarlyStopping", "EpochStats", "JSONLinesLogger", "LossHistory",
    "MetricCallback", "Progress", "Run", "StepBudget", "StepMetrics", "TensorBoardLogger", "TimeBudget",
]  # fmt: skip
