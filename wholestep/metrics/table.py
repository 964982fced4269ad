"""The table of metrics, by name and alias."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UnknownNameError, UsageError
from wholestep.lazy import interop
from wholestep.metrics.accuracy import Accuracy, TopKAccuracy
from wholestep.metrics.agreement import MCC, BalancedAccuracy, CohenKappa
from wholestep.metrics.base import Metric
from wholestep.metrics.confusion import F1, ConfusionMatrix, Dice, FBeta, IoU, Precision, Recall
from wholestep.metrics.correlation import R2, ExplainedVariance, Pearson, Spearman
from wholestep.metrics.functions import Function
from wholestep.metrics.images import PSNR, SSIM
from wholestep.metrics.likelihood import ECE, MCE, AdaptiveCalibrationError, Brier, LogLoss, Perplexity
from wholestep.metrics.means import MAE, MAPE, MSE, RMSE, LossTracker
from wholestep.metrics.ranking import AveragePrecision, PrecisionRecallCurve, RocAuc, RocCurve
from wholestep.metrics.retrieval import MRR, NDCG, HitRate, RetrievalMAP
from wholestep.metrics.survival import Concordance

METRICS: dict[str, type[Metric]] = {
    cls.kind: cls
    for cls in (
        Accuracy,
        TopKAccuracy,
        ConfusionMatrix,
        Precision,
        Recall,
        F1,
        FBeta,
        BalancedAccuracy,
        MCC,
        CohenKappa,
        IoU,
        Dice,
        LogLoss,
        Perplexity,
        Brier,
        ECE,
        MCE,
        AdaptiveCalibrationError,
        RocAuc,
        AveragePrecision,
        RocCurve,
        PrecisionRecallCurve,
        NDCG,
        MRR,
        HitRate,
        RetrievalMAP,
        PSNR,
        SSIM,
        Concordance,
        MSE,
        RMSE,
        MAE,
        MAPE,
        R2,
        ExplainedVariance,
        Pearson,
        Spearman,
        LossTracker,
    )
}
ALIASES = {
    "acc": "accuracy",
    "top_k": "top_k_accuracy",
    "confusion": "confusion_matrix",
    "f1_score": "f1",
    "f_beta": "fbeta",
    "matthews": "mcc",
    "matthews_corrcoef": "mcc",
    "kappa": "cohen_kappa",
    "jaccard": "iou",
    "mean_iou": "iou",
    "calibration_error": "ece",
    "adaptive_calibration_error": "ace",
    "brier_score": "brier",
    "concordance_index": "concordance",
    "c_index": "concordance",
    "auc": "roc_auc",
    "ap": "average_precision",
    "precision_recall_curve": "pr_curve",
    "mean_squared_error": "mse",
    "mean_absolute_error": "mae",
    "mean_absolute_percentage_error": "mape",
    "r2_score": "r2",
    "pearsonr": "pearson",
    "spearmanr": "spearman",
    "loss_tracker": "loss",
}


def metric_class(name: object) -> type[Metric]:
    """The class of a metric by its name or alias."""
    key = str(name).lower()
    cls = METRICS.get(ALIASES.get(key, key))
    if cls is None:
        synonym = interop.METRIC_SYNONYMS.get(key)
        close = [synonym] if synonym else get_close_matches(key, [*METRICS, *ALIASES], 3, 0.5)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        names = [part for part in key.replace(",", " ").split() if ALIASES.get(part, part) in METRICS]
        hint = f"Several are a list: metrics={names}. " if len(names) > 1 else hint
        fail(UnknownNameError, f"there is no metric {name!r}. {hint}There are: {', '.join(METRICS)}.")
    return cls


MetricLike = str | Metric | type[Metric] | Mapping[str, Any] | Callable[..., Any]


def get(metric: MetricLike) -> Metric:
    """A metric from a name, a class, a `to_config()`, or a function of predictions and targets (`ws.metrics.Function`);
    a metric is returned unchanged.

    Example: `ws.metrics.get("accuracy")`.
    """
    if isinstance(metric, Metric):
        return metric
    if isinstance(metric, str):
        return metric_class(metric)()
    if isinstance(metric, Mapping):
        return Metric.from_config(metric)
    if isinstance(metric, type) and issubclass(metric, Metric):
        return metric()
    if isinstance(metric, type) or not callable(metric):
        on_arrays = " It counts on arrays: call its update and compute after predict." if _counts(metric) else ""
        fail(
            UsageError,
            "a metric is a name, a ws.metrics.Metric or its to_config(), or a function of predictions and targets; "
            f"received {metric!r}.{on_arrays}",
        )
    return Function(metric)


def _counts(metric: object) -> bool:
    """Does an object have the methods of a metric on arrays, such as `MeanAveragePrecision`?"""
    return hasattr(metric, "update") and hasattr(metric, "compute")


def is_one(metrics: object) -> bool:
    """Is an argument one metric rather than a list of metrics?"""
    return isinstance(metrics, str | Metric | Mapping) or callable(metrics)


def get_all(metrics: MetricLike | Iterable[MetricLike]) -> tuple[Metric, ...]:
    """Metrics from names, configurations or metrics; two of the same name are an error.

    Example: `ws.metrics.get_all(["accuracy", ws.metrics.TopKAccuracy(k=3)])`.
    """
    items: Any = [metrics] if is_one(metrics) else metrics
    chosen = tuple(get(m) for m in items)
    names = [m.name for m in chosen]
    for name in names:
        if names.count(name) > 1:
            fail(OptionError, f"two metrics are called {name!r}; give one of them another name: name='{name}_2'.")
    return chosen
