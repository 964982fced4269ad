"""The table of metrics: every name that stands for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.metrics.accuracy import Accuracy, TopKAccuracy
from wholestep.metrics.base import Metric
from wholestep.metrics.confusion import F1, ConfusionMatrix, Precision, Recall
from wholestep.metrics.likelihood import LogLoss, Perplexity
from wholestep.metrics.means import MAE, MSE, RMSE, LossTracker
from wholestep.metrics.r2 import R2
from wholestep.metrics.ranking import AveragePrecision, RocAuc

METRICS: dict[str, type[Metric]] = {
    cls.kind: cls
    for cls in (
        Accuracy,
        TopKAccuracy,
        ConfusionMatrix,
        Precision,
        Recall,
        F1,
        LogLoss,
        Perplexity,
        RocAuc,
        AveragePrecision,
        MSE,
        RMSE,
        MAE,
        R2,
        LossTracker,
    )
}
ALIASES = {
    "acc": "accuracy",
    "top_k": "top_k_accuracy",
    "confusion": "confusion_matrix",
    "f1_score": "f1",
    "auc": "roc_auc",
    "ap": "average_precision",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "r2_score": "r2",
    "loss_tracker": "loss",
}


def metric_class(name: object) -> type[Metric]:
    """The class of a metric by its name or alias."""
    key = str(name).lower()
    cls = METRICS.get(ALIASES.get(key, key))
    if cls is None:
        close = get_close_matches(key, [*METRICS, *ALIASES], 3, 0.5)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        fail(UnknownNameError, f"there is no metric {name!r}. {hint}There are: {', '.join(METRICS)}.")
    return cls


_ONE = (str, Metric, type, Mapping)
MetricLike = str | Metric | type[Metric] | Mapping[str, Any]


def get(metric: MetricLike) -> Metric:
    """A metric from a name, a class, a description (`to_config`) or a metric, which is returned as it is.

    Example: `ws.metrics.get("accuracy")`.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        return metric_class(metric)()
    if isinstance(metric, Mapping):
        return Metric.from_config(metric)
    if not (isinstance(metric, type) and issubclass(metric, Metric)):
        fail(UsageError, f"a metric is a name, a ws.metrics.Metric or its to_config(); received {metric!r}.")
    return metric()


def get_all(metrics: MetricLike | Iterable[MetricLike]) -> tuple[Metric, ...]:
    """Metrics from names, descriptions or metrics; two of one name are an error.

    Example: `ws.metrics.get_all(["accuracy", ws.metrics.TopKAccuracy(k=3)])`.
    """
    chosen = tuple(get(m) for m in ([metrics] if isinstance(metrics, _ONE) else metrics))
    names = [m.name for m in chosen]
    for name in names:
        if names.count(name) > 1:
            fail(OptionError, f"two metrics are called {name!r}; give one of them another name: name='{name}_2'.")
    return chosen
