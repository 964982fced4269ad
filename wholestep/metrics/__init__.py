"""Metrics: sums that are kept inside the compiled step or on arrays, exact whatever the batches.

Every metric has both forms.  On arrays: `update`, `compute`, `reset`, `merge`.  Inside a step: `record` declares states
and their updates, `result` makes the number from them (`ws.build_session(..., metrics=["accuracy"])` does both).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.lazy import postponed

if TYPE_CHECKING:
    from wholestep.metrics.accuracy import Accuracy, TopKAccuracy
    from wholestep.metrics.base import Metric
    from wholestep.metrics.confusion import F1, ConfusionMatrix, Precision, Recall
    from wholestep.metrics.likelihood import LogLoss, Perplexity
    from wholestep.metrics.means import MAE, MSE, RMSE, LossTracker
    from wholestep.metrics.r2 import R2
    from wholestep.metrics.ranking import AveragePrecision, RocAuc
    from wholestep.metrics.table import METRICS, get, get_all

_HOMES = {
    "accuracy": ["Accuracy", "TopKAccuracy"],
    "base": ["Metric"],
    "confusion": ["F1", "ConfusionMatrix", "Precision", "Recall"],
    "likelihood": ["LogLoss", "Perplexity"],
    "means": ["MAE", "MSE", "RMSE", "LossTracker"],
    "r2": ["R2"],
    "ranking": ["AveragePrecision", "RocAuc"],
    "table": ["METRICS", "get", "get_all"],
}
if not TYPE_CHECKING:  # a checker sees the imports above
    __getattr__ = postponed(__name__, _HOMES)

# fmt: off
__all__ = [
    # classes
    "Accuracy", "TopKAccuracy", "ConfusionMatrix", "Precision", "Recall", "F1", "LogLoss", "Perplexity", "RocAuc",
    "AveragePrecision",
    # numbers
    "MSE", "RMSE", "MAE", "R2",
    # the loss itself
    "LossTracker",
    # by name
    "METRICS", "Metric", "get", "get_all",
]
