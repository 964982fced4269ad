"""The metrics as cases: a metric, data for it, and what scikit-learn (or a formula in float64) says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import metrics as sk

from wholestep import metrics as M

Array = np.ndarray[Any, Any]
Data = tuple[Array, Array, Array | None]  # prediction, target, weight
ROWS, CLASSES = 40, 4


@dataclass(frozen=True)
class Case:
    make: Callable[[], M.Metric]
    data: Callable[[np.random.Generator], Data]
    expected: Callable[..., Any]  # of (prediction, target, weight), in float64


def scores(rng: np.random.Generator) -> Data:
    return rng.normal(size=(ROWS, CLASSES)), rng.integers(0, CLASSES, ROWS).astype(np.int32), None


def weighted_scores(rng: np.random.Generator) -> Data:
    p, t, _ = scores(rng)
    return p, t, rng.uniform(0.1, 2.0, ROWS)


def some_scores(rng: np.random.Generator) -> Data:
    """Every third row is to be ignored."""
    p, t, _ = scores(rng)
    t[::3] = -100
    return p, t, None


def tokens(rng: np.random.Generator) -> Data:
    return rng.normal(size=(ROWS, 3, CLASSES)), rng.integers(0, CLASSES, (ROWS, 3)).astype(np.int32), None


def classes(rng: np.random.Generator) -> Data:
    p, t = rng.integers(0, CLASSES, (2, ROWS)).astype(np.int32)
    return p, t, None


def yes_or_no(rng: np.random.Generator) -> Data:
    t = rng.integers(0, 2, ROWS).astype(np.int32)
    return np.round(rng.normal(size=ROWS) + t, 1), t, None  # rounded: some scores are equal


def weighted_yes_or_no(rng: np.random.Generator) -> Data:
    p, t, _ = yes_or_no(rng)
    return p, t, rng.uniform(0.1, 2.0, ROWS)


def two_columns(rng: np.random.Generator) -> Data:
    return rng.normal(size=(ROWS, 2)), rng.integers(0, 2, ROWS).astype(np.int32), None


def probabilities(rng: np.random.Generator) -> Data:
    """Multiples of 1/64, which float32 holds exactly."""
    p = (rng.multinomial(64 - CLASSES, np.ones(CLASSES) / CLASSES, ROWS) + 1) / 64
    return p, rng.integers(0, CLASSES, ROWS).astype(np.int32), None


def numbers(rng: np.random.Generator) -> Data:
    t = rng.normal(size=ROWS)
    return t + 0.3 * rng.normal(size=ROWS), t, None


def far_numbers(rng: np.random.Generator) -> Data:
    """Targets whose spread is a millionth of their size: the difference of two sums of squares would be noise."""
    t = np.round(4096 * (1000 + 1e-3 * rng.normal(size=ROWS))) / 4096
    return t + np.round(4096 * 3e-4 * rng.normal(size=ROWS)) / 4096, t, None


def weighted_columns(rng: np.random.Generator) -> Data:
    t = rng.normal(size=(ROWS, 3))
    return t + 0.3 * rng.normal(size=(ROWS, 3)), t, rng.uniform(0.1, 2.0, ROWS)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


LABELS = list(range(CLASSES))


def of_classes(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A function of (true, predicted) on scores or classes."""

    def expected(p: Array, t: Array, w: Array | None) -> Any:
        return function(t, p.argmax(-1) if p.ndim > 1 else p, sample_weight=w, **options)

    return expected


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same on the rows that are not ignored."""
    return lambda p, t, w: function(p[t != -100], t[t != -100], w)


def log_loss(p: Array, t: Array, w: Array | None) -> float:
    return sk.log_loss(t.reshape(-1), softmax(p).reshape(-1, p.shape[-1]), labels=LABELS, sample_weight=w)


def precision_etc(cls: type[M.Metric], function: Callable[..., Any]) -> dict[str, Case]:
    out = {
        f"{cls.kind} {average}": Case(
            lambda average=average: cls(average=average),  # type: ignore[call-arg]
            weighted_scores if average == "weighted" else scores,
            of_classes(function, average=average, zero_division=0),
        )
        for average in ("macro", "micro", "weighted", None)
    }
    out[f"{cls.kind} binary"] = Case(
        lambda: cls(average="binary", threshold=0.25),  # type: ignore[call-arg]
        yes_or_no,
        lambda p, t, w: function(t, p > 0.25, zero_division=0),
    )
    out[f"{cls.kind} of classes"] = Case(
        lambda: cls(classes=CLASSES),  # type: ignore[call-arg]
        classes,
        of_classes(function, average="macro", zero_division=0),
    )
    return out


CASES: dict[str, Case] = {
    "accuracy": Case(M.Accuracy, scores, of_classes(sk.accuracy_score)),
    "accuracy weighted": Case(M.Accuracy, weighted_scores, of_classes(sk.accuracy_score)),
    "accuracy of classes": Case(M.Accuracy, classes, of_classes(sk.accuracy_score)),
    "accuracy of tokens": Case(M.Accuracy, tokens, lambda p, t, w: (p.argmax(-1) == t).mean()),
    "accuracy ignoring": Case(
        lambda: M.Accuracy(ignore_index=-100), some_scores, kept(of_classes(sk.accuracy_score))
    ),
    "accuracy yes or no": Case(
        lambda: M.Accuracy(threshold=0.25), yes_or_no, lambda p, t, w: sk.accuracy_score(t, p > 0.25)
    ),
    "top 2": Case(
        lambda: M.TopKAccuracy(2), scores, lambda p, t, w: sk.top_k_accuracy_score(t, p, k=2, labels=LABELS)
    ),
    "top 3 weighted": Case(
        lambda: M.TopKAccuracy(3),
        weighted_scores,
        lambda p, t, w: sk.top_k_accuracy_score(t, p, k=3, labels=LABELS, sample_weight=w),
    ),
    "top 2 ignoring": Case(
        lambda: M.TopKAccuracy(2, ignore_index=-100),
        some_scores,
        kept(lambda p, t, w: sk.top_k_accuracy_score(t, p, k=2, labels=LABELS)),
    ),
    "confusion": Case(M.ConfusionMatrix, scores, of_classes(sk.confusion_matrix, labels=LABELS)),
    "confusion weighted": Case(M.ConfusionMatrix, weighted_scores, of_classes(sk.confusion_matrix, labels=LABELS)),
    "confusion ignoring": Case(
        lambda: M.ConfusionMatrix(ignore_index=-100),
        some_scores,
        kept(of_classes(sk.confusion_matrix, labels=LABELS)),
    ),
    **precision_etc(M.Precision, sk.precision_score),
    **precision_etc(M.Recall, sk.recall_score),
    **precision_etc(M.F1, sk.f1_score),
    "log loss": Case(M.LogLoss, scores, log_loss),
    "log loss weighted": Case(M.LogLoss, weighted_scores, log_loss),
    "log loss ignoring": Case(lambda: M.LogLoss(ignore_index=-100), some_scores, kept(log_loss)),
    "log loss of probabilities": Case(
        lambda: M.LogLoss(from_logits=False),
        probabilities,
        lambda p, t, w: sk.log_loss(t, p, labels=LABELS),
    ),
    "log loss yes or no": Case(M.LogLoss, yes_or_no, lambda p, t, w: sk.log_loss(t, sigmoid(p))),
    "perplexity": Case(M.Perplexity, tokens, lambda p, t, w: np.exp(log_loss(p, t, w))),
    "roc auc": Case(lambda: M.RocAuc(ROWS), yes_or_no, lambda p, t, w: sk.roc_auc_score(t, p)),
    "roc auc weighted": Case(
        lambda: M.RocAuc(ROWS), weighted_yes_or_no, lambda p, t, w: sk.roc_auc_score(t, p, sample_weight=w)
    ),
    "roc auc of two columns": Case(
        lambda: M.RocAuc(ROWS), two_columns, lambda p, t, w: sk.roc_auc_score(t, softmax(p)[:, 1])
    ),
    "roc auc of classes": Case(
        lambda: M.RocAuc(ROWS), scores, lambda p, t, w: sk.roc_auc_score(t, softmax(p), multi_class="ovr")
    ),
    "average precision": Case(
        lambda: M.AveragePrecision(ROWS), yes_or_no, lambda p, t, w: sk.average_precision_score(t, p)
    ),
    "average precision of classes": Case(
        lambda: M.AveragePrecision(ROWS, from_logits=False),
        weighted_scores,
        lambda p, t, w: sk.average_precision_score(np.eye(CLASSES)[t], p, sample_weight=w),
    ),
    "mse": Case(M.MSE, numbers, lambda p, t, w: sk.mean_squared_error(t, p)),
    "mse weighted": Case(
        M.MSE, weighted_columns, lambda p, t, w: sk.mean_squared_error(t, p, sample_weight=w)
    ),
    "rmse": Case(M.RMSE, numbers, lambda p, t, w: sk.root_mean_squared_error(t, p)),
    "mae": Case(M.MAE, numbers, lambda p, t, w: sk.mean_absolute_error(t, p)),
    "mae weighted": Case(
        M.MAE, weighted_columns, lambda p, t, w: sk.mean_absolute_error(t, p, sample_weight=w)
    ),
    "r2": Case(M.R2, numbers, lambda p, t, w: sk.r2_score(t, p)),
    "r2 far from 0": Case(M.R2, far_numbers, lambda p, t, w: sk.r2_score(t, p)),
    "r2 weighted": Case(M.R2, weighted_columns, lambda p, t, w: sk.r2_score(t, p, sample_weight=w)),
}  # fmt: skip


# Recall and F1 count what precision counts: inside the step one case of each shows that they do.
IN_STEP = [n for n in CASES if not n.startswith(("recall", "f1")) or n in ("recall weighted", "f1 binary")]


def case_data(name: str, dtype: str = "float64") -> Data:
    """The data of a case, its floats exactly representable in float32."""
    p, t, w = CASES[name].data(np.random.default_rng(len(name)))
    return _typed(p, dtype), _typed(t, dtype), None if w is None else _typed(w, dtype)


def _typed(array: Array, dtype: str) -> Array:
    return array.astype(np.float32).astype(dtype) if array.dtype.kind == "f" else array


def expected(name: str) -> Any:
    return CASES[name].expected(*case_data(name))
