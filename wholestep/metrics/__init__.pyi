# What the package exports, and from where: the one list of it.  Type checkers read it as it is; `lazy.py` makes the
# package's names of it.  The order is that of docs/api.md.

# classes
from wholestep.metrics.accuracy import Accuracy as Accuracy, TopKAccuracy as TopKAccuracy
from wholestep.metrics.confusion import (
    ConfusionMatrix as ConfusionMatrix, Precision as Precision, Recall as Recall, F1 as F1,
)
from wholestep.metrics.likelihood import LogLoss as LogLoss, Perplexity as Perplexity
from wholestep.metrics.ranking import RocAuc as RocAuc, AveragePrecision as AveragePrecision

# numbers
from wholestep.metrics.means import MSE as MSE, RMSE as RMSE, MAE as MAE
from wholestep.metrics.r2 import R2 as R2

# the loss itself
from wholestep.metrics.means import LossTracker as LossTracker

# by name
from wholestep.metrics.table import METRICS as METRICS, get as get, get_all as get_all
from wholestep.metrics.base import Metric as Metric
