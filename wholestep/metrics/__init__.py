"""Metrics: sums that are kept inside the compiled step or on arrays, exact whatever the batches."""

from wholestep.metrics.accuracy import Accuracy, TopKAccuracy
from wholestep.metrics.base import Metric
from wholestep.metrics.table import METRICS, get, get_all

__all__ = ["METRICS", "Accuracy", "Metric", "TopKAccuracy", "get", "get_all"]
