"""Callbacks: what watches training, writes about it, and ends it."""

from wholestep.callbacks.base import (
    Callback,
    CallbackList,
    EpochStats,
    LossHistory,
    MetricCallback,
    Position,
    Run,
    StepMetrics,
)
from wholestep.callbacks.checkpoint import ModelCheckpoint
from wholestep.callbacks.loggers import CSVLogger, JSONLinesLogger, TensorBoardLogger
from wholestep.callbacks.observers import ConsoleObserver, GradientStatistics, Observer, Profiler
from wholestep.callbacks.progress import Progress
from wholestep.callbacks.rates import LearningRateScheduler
from wholestep.callbacks.stopping import EarlyStopping, StepBudget, TimeBudget

# fmt: off
__all__ = [
    "Callback", "CallbackList", "ConsoleObserver", "CSVLogger", "EarlyStopping", "EpochStats", "GradientStatistics",
    "JSONLinesLogger", "LearningRateScheduler", "LossHistory", "MetricCallback", "ModelCheckpoint", "Observer",
    "Position", "Profiler", "Progress", "Run", "StepBudget", "StepMetrics", "TensorBoardLogger", "TimeBudget",
]
