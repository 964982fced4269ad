# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api/.
from wholestep.callbacks.base import Callback as Callback, LossHistory as LossHistory
from wholestep.callbacks.list import CallbackList as CallbackList
from wholestep.callbacks.run import (
    EpochStats as EpochStats, Position as Position, Run as Run, StepMetrics as StepMetrics,
)
from wholestep.callbacks.observers import (
    ConsoleObserver as ConsoleObserver, GradientStatistics as GradientStatistics, Observer as Observer,
    Profiler as Profiler,
)
from wholestep.callbacks.weights import Histogram as Histogram, WeightStatistics as WeightStatistics
from wholestep.callbacks.loggers import (
    CSVLogger as CSVLogger, JSONLinesLogger as JSONLinesLogger, TensorBoardLogger as TensorBoardLogger,
)
from wholestep.callbacks.telemetry import HTTPLogger as HTTPLogger
from wholestep.callbacks.trackers import (
    MLflowLogger as MLflowLogger, Tracker as Tracker, TrackioLogger as TrackioLogger, WandbLogger as WandbLogger,
)
from wholestep.callbacks.stopping import (
    EarlyStopping as EarlyStopping, PruneTrial as PruneTrial, StepBudget as StepBudget, TimeBudget as TimeBudget,
)
from wholestep.callbacks.loss_spikes import LossSpikes as LossSpikes, Spike as Spike
from wholestep.callbacks.privacy_ledger import PrivacyLedger as PrivacyLedger
from wholestep.callbacks.weights import Pruning as Pruning
from wholestep.callbacks.rates import LearningRateScheduler as LearningRateScheduler
from wholestep.callbacks.checkpoint import ModelCheckpoint as ModelCheckpoint
from wholestep.callbacks.progress import Progress as Progress
from wholestep.interop.ancestors import MetricCallback as MetricCallback
