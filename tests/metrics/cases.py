"""The metrics as cases: a metric, data for it, and what scikit-learn (or a formula in float64) says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats
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


def ece(p: Array, t: Array, w: Array | None, bins: int = 15) -> float:
    """Guo et al.: rows by the bins of how sure they are, right-closed."""
    if p.ndim == 1:
        p = np.stack([1 - p, p], 1)
    sure, right = p.max(1), p.argmax(1) == t
    w = np.ones(len(t)) if w is None else w
    place = np.digitize(sure, np.linspace(0, 1, bins + 1), right=True)
    parts = [(place == b) for b in np.unique(place)]
    gaps = [abs(np.average(right[i], weights=w[i]) - np.average(sure[i], weights=w[i])) * w[i].sum() for i in parts]
    return float(sum(gaps) / w.sum())


def roc_curve(p: Array, t: Array, w: Array | None) -> Array:
    return np.stack(sk.roc_curve(t, p, sample_weight=w))


def pr_curve(p: Array, t: Array, w: Array | None) -> Array:
    precision, recall, thresholds = sk.precision_recall_curve(t, p, sample_weight=w)
    return np.stack([precision, recall, np.append(thresholds, np.inf)])


def ends_repeated(curves: list[Array]) -> Array:
    longest = max(c.shape[1] for c in curves)
    return np.stack([c[:, np.minimum(np.arange(longest), c.shape[1] - 1)] for c in curves])


def correlation(p: Array, t: Array, w: Array | None) -> float:
    """NumPy's weighted covariance, column by column."""
    columns = zip(p.reshape(len(p), -1).T, t.reshape(len(t), -1).T, strict=True)
    found = []
    for a, b in columns:
        c = np.cov(a, b, aweights=w)
        found.append(c[0, 1] / np.sqrt(c[0, 0] * c[1, 1]))
    return float(np.mean(found))


def repeated(rng: np.random.Generator) -> Data:
    """Weights that are integers, so that a row may stand for several; some numbers are equal."""
    t = np.round(rng.normal(size=(ROWS, 2)), 1)
    return np.round(t + rng.normal(size=(ROWS, 2)), 1), t, rng.integers(1, 4, ROWS).astype(np.float64)


def of_repeated(p: Array, t: Array, w: Array | None) -> float:
    times = np.ones(len(p), int) if w is None else w.astype(int)
    p, t = np.repeat(p, times, 0).reshape(times.sum(), -1), np.repeat(t, times, 0).reshape(times.sum(), -1)
    return float(np.mean([stats.spearmanr(a, b).statistic for a, b in zip(p.T, t.T, strict=True)]))


def brier(p: Array, t: Array, w: Array | None) -> float:
    return sk.brier_score_loss(t.reshape(-1), p.reshape(-1, p.shape[-1]), sample_weight=w, labels=LABELS)


def mce(p: Array, t: Array, w: Array | None, bins: int = 15) -> float:
    """The largest gap of the bins that `ece` averages."""
    p = np.stack([1 - p, p], 1) if p.ndim == 1 else p
    sure, right, w = p.max(1), p.argmax(1) == t, np.ones(len(t)) if w is None else w
    place = np.digitize(sure, np.linspace(0, 1, bins + 1), right=True)
    inside = [place == b for b in np.unique(place)]
    return max(abs(np.average(right[i], weights=w[i]) - np.average(sure[i], weights=w[i])) for i in inside)


def ace(p: Array, t: Array, w: Array | None, bins: int = 5) -> float:
    """Nixon et al.: every class in bins of as many rows; a row of weight w is w rows."""
    times = np.ones(len(t), int) if w is None else w.astype(int)
    p, t = np.repeat(p, times, 0), np.repeat(t, times)
    gaps = []
    for column, yes in [(p, t == 1)] if p.ndim == 1 else [(p[:, c], t == c) for c in range(p.shape[1])]:
        parts = np.array_split(np.argsort(column, kind="stable"), bins)
        gaps += [len(i) / len(t) * abs(yes[i].mean() - column[i].mean()) for i in parts]
    return float(np.sum(gaps) / (1 if p.ndim == 1 else p.shape[1]))


def relevances(rng: np.random.Generator) -> Data:
    """Queries of 7 items, of graded relevance; nothing is relevant in the first one."""
    t = rng.integers(0, 4, (ROWS, 7)).astype(np.float64) * rng.integers(0, 2, (ROWS, 7))
    t[0] = 0
    return rng.normal(size=(ROWS, 7)), t, None


def weighted_relevances(rng: np.random.Generator) -> Data:
    p, t, _ = relevances(rng)
    return p, t, rng.uniform(0.1, 2.0, ROWS)


def per_query(value: Callable[[Array, Array], float]) -> Callable[..., float]:
    """The weighted mean of a value of each query."""
    return lambda p, t, w: float(np.average([value(a, b) for a, b in zip(p, t, strict=True)], weights=w))


def reciprocal_rank(p: Array, t: Array, k: int | None = None) -> float:
    ranked = t[np.argsort(-p)][:k]
    return 1.0 / (1 + int(np.argmax(ranked > 0))) if (ranked > 0).any() else 0.0


def average_precision(p: Array, t: Array, k: int | None = None) -> float:
    yes = t[np.argsort(-p)] > 0
    found = [yes[: i + 1].mean() for i in range(len(yes[:k])) if yes[i]]
    return float(np.sum(found) / min(yes.sum(), k or len(yes))) if yes.any() else 0.0


def pictures(rng: np.random.Generator) -> Data:
    t = rng.uniform(size=(ROWS, 2, 12, 13))
    return t + 0.1 * rng.normal(size=t.shape), t, rng.uniform(0.1, 2.0, ROWS)


def psnr(p: Array, t: Array, w: Array | None) -> float:
    return float(10 * np.log10(4 / np.average(((p - t) ** 2).reshape(len(p), -1).mean(1), weights=w)))


def ssim(p: Array, t: Array, w: Array | None, size: int = 11, sigma: float = 1.5) -> float:
    """Wang et al., window by window."""
    line = np.exp(-((np.arange(size) - size // 2) ** 2) / (2 * sigma**2))
    g = np.outer(line, line) / line.sum() ** 2

    def windows(x: Array) -> Array:
        return np.lib.stride_tricks.sliding_window_view(x, (size, size), (-2, -1))

    def mean(x: Array) -> Array:
        return (windows(x) * g).sum((-2, -1))

    a, b = mean(p), mean(t)
    va, vb, ab = mean(p * p) - a * a, mean(t * t) - b * b, mean(p * t) - a * b
    value = (2 * a * b + 1e-4) * (2 * ab + 9e-4) / ((a * a + b * b + 1e-4) * (va + vb + 9e-4))
    return float(np.average(value.reshape(len(p), -1).mean(1), weights=w))


def survival(rng: np.random.Generator) -> Data:
    """Risks, some of them equal; times, some of them equal, of which a third is censored."""
    time, risk = np.round(rng.exponential(size=ROWS), 1), np.round(rng.normal(size=ROWS), 1)
    return risk, np.stack([time, rng.integers(0, 3, ROWS) > 0], 1).astype(float), rng.uniform(0.1, 2.0, ROWS)


def concordance(p: Array, t: Array, w: Array | None) -> float:
    """Harrell et al., pair by pair."""
    p, t, w = p.reshape(-1), t.reshape(len(p), -1), np.ones(len(p)) if w is None else w
    time, event = t[:, 0], t[:, 1] > 0 if t.shape[1] == 2 else np.ones(len(p), bool)
    good = pairs = 0.0
    for i in np.flatnonzero(event):
        for j in range(len(p)):
            if time[i] < time[j] or (time[i] == time[j] and not event[j]):
                pairs += w[i] * w[j]
                good += w[i] * w[j] * (1.0 if p[i] > p[j] else 0.5 if p[i] == p[j] else 0.0)
    return good / pairs


NUMBERS = (
    relevances,
    weighted_relevances,
    pictures,
    survival,
    numbers,
    far_numbers,
    weighted_columns,
    repeated,
)  # data of metrics that compare numbers


def images(rng: np.random.Generator) -> Data:
    """Scores with the classes on axis 1."""
    return rng.normal(size=(ROWS, CLASSES, 2, 3)), rng.integers(0, CLASSES, (ROWS, 2, 3)).astype(np.int32), None


def of_pixels(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return lambda p, t, w: function(t.reshape(-1), p.argmax(1).reshape(-1), **options)


def shares(rng: np.random.Generator) -> Data:
    """Probabilities of yes, multiples of 1/64, some of them on the edges of bins."""
    return rng.integers(0, 65, ROWS) / 64, rng.integers(0, 2, ROWS).astype(np.int32), rng.uniform(0.1, 2.0, ROWS)


def precision_etc(cls: Callable[..., Any], function: Callable[..., Any]) -> dict[str, Case]:
    kind = cls().kind
    out = {
        f"{kind} {average}": Case(
            lambda average=average: cls(average=average),
            weighted_scores if average == "weighted" else scores,
            of_classes(function, average=average, zero_division=0),
        )
        for average in ("macro", "micro", "weighted", None)
    }
    out[f"{kind} binary"] = Case(
        lambda: cls(average="binary", threshold=0.25),
        yes_or_no,
        lambda p, t, w: function(t, p > 0.25, zero_division=0),
    )
    if cls not in (M.Precision, M.Recall, M.F1):
        return out
    out[f"{kind} of classes"] = Case(
        lambda: cls(classes=CLASSES),
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
    **precision_etc(lambda **o: M.FBeta(beta=2.0, **o), partial(sk.fbeta_score, beta=2.0)),
    **precision_etc(M.IoU, sk.jaccard_score),
    "iou of images": Case(lambda: M.IoU("macro"), images, of_pixels(sk.jaccard_score, average="macro")),
    "dice of images": Case(lambda: M.Dice("macro"), images, of_pixels(sk.f1_score, average="macro")),
    "balanced accuracy": Case(M.BalancedAccuracy, scores, of_classes(sk.balanced_accuracy_score)),
    "balanced accuracy weighted": Case(
        lambda: M.BalancedAccuracy(adjusted=True),
        weighted_scores,
        of_classes(sk.balanced_accuracy_score, adjusted=True),
    ),
    "balanced accuracy yes or no": Case(
        lambda: M.BalancedAccuracy(threshold=0.25),
        yes_or_no,
        lambda p, t, w: sk.balanced_accuracy_score(t, p > 0.25),
    ),
    "mcc": Case(M.MCC, weighted_scores, of_classes(sk.matthews_corrcoef)),
    "mcc yes or no": Case(
        lambda: M.MCC(threshold=0.25), yes_or_no, lambda p, t, w: sk.matthews_corrcoef(t, p > 0.25)
    ),
    "mcc ignoring": Case(lambda: M.MCC(ignore_index=-100), some_scores, kept(of_classes(sk.matthews_corrcoef))),
    "kappa": Case(M.CohenKappa, weighted_scores, of_classes(sk.cohen_kappa_score, labels=LABELS)),
    "kappa linear": Case(
        lambda: M.CohenKappa(weights="linear"),
        scores,
        of_classes(sk.cohen_kappa_score, weights="linear", labels=LABELS),
    ),
    "kappa quadratic": Case(
        lambda: M.CohenKappa(CLASSES, weights="quadratic"),
        classes,
        of_classes(sk.cohen_kappa_score, weights="quadratic", labels=LABELS),
    ),
    "ece": Case(M.ECE, scores, lambda p, t, w: ece(softmax(p), t, w)),
    "ece weighted": Case(lambda: M.ECE(bins=5), weighted_scores, lambda p, t, w: ece(softmax(p), t, w, 5)),
    "ece ignoring": Case(
        lambda: M.ECE(ignore_index=-100), some_scores, kept(lambda p, t, w: ece(softmax(p), t, w))
    ),
    "ece of probabilities": Case(lambda: M.ECE(from_logits=False, bins=8), shares, partial(ece, bins=8)),
    "brier": Case(M.Brier, weighted_scores, lambda p, t, w: brier(softmax(p), t, w)),
    "brier of tokens": Case(M.Brier, tokens, lambda p, t, w: brier(softmax(p), t, w)),
    "brier ignoring": Case(
        lambda: M.Brier(ignore_index=-100), some_scores, kept(lambda p, t, w: brier(softmax(p), t, w))
    ),
    "brier of probabilities": Case(
        lambda: M.Brier(from_logits=False), shares, lambda p, t, w: sk.brier_score_loss(t, p, sample_weight=w)
    ),
    "mce": Case(lambda: M.MCE(bins=5), weighted_scores, lambda p, t, w: mce(softmax(p), t, w, 5)),
    "mce of probabilities": Case(lambda: M.MCE(from_logits=False, bins=8), shares, partial(mce, bins=8)),
    "ace": Case(lambda: M.AdaptiveCalibrationError(ROWS, bins=5), scores, lambda p, t, w: ace(softmax(p), t, w)),
    "ace ignoring": Case(
        lambda: M.AdaptiveCalibrationError(ROWS, ignore_index=-100, bins=2),
        some_scores,
        kept(lambda p, t, w: ace(softmax(p), t, w, 2)),
    ),
    "ace yes or no": Case(
        lambda: M.AdaptiveCalibrationError(ROWS, bins=4), yes_or_no, lambda p, t, w: ace(sigmoid(p), t, w, 4)
    ),
    "ndcg": Case(M.NDCG, weighted_relevances, lambda p, t, w: sk.ndcg_score(t, p, sample_weight=w)),
    "ndcg at 3": Case(lambda: M.NDCG(3), relevances, lambda p, t, w: sk.ndcg_score(t, p, k=3)),
    "mrr": Case(M.MRR, weighted_relevances, per_query(reciprocal_rank)),
    "mrr at 2": Case(lambda: M.MRR(2), relevances, per_query(partial(reciprocal_rank, k=2))),
    "hit rate": Case(lambda: M.HitRate(2), weighted_relevances, per_query(
        lambda p, t: (t[np.argsort(-p)[:2]] > 0).any()
    )),
    "retrieval map": Case(M.RetrievalMAP, weighted_relevances, per_query(
        lambda p, t: sk.average_precision_score(t > 0, p) if (t > 0).any() else 0.0
    )),
    "retrieval map at 3": Case(lambda: M.RetrievalMAP(3), relevances, per_query(partial(average_precision, k=3))),
    "psnr": Case(lambda: M.PSNR(2.0), pictures, psnr),
    "ssim": Case(M.SSIM, pictures, ssim),
    "ssim of small windows": Case(lambda: M.SSIM(window=5, sigma=1.0), pictures, partial(ssim, size=5, sigma=1.0)),
    "concordance": Case(lambda: M.Concordance(ROWS), survival, concordance),
    "concordance of numbers": Case(lambda: M.Concordance(ROWS), numbers, concordance),
    "roc curve": Case(lambda: M.RocCurve(ROWS), yes_or_no, roc_curve),
    "roc curve weighted": Case(lambda: M.RocCurve(ROWS), weighted_yes_or_no, roc_curve),
    "roc curve of classes": Case(
        lambda: M.RocCurve(ROWS, from_logits=False),
        scores,
        lambda p, t, w: ends_repeated([roc_curve(p[:, c], t == c, w) for c in range(CLASSES)]),
    ),
    "pr curve": Case(lambda: M.PrecisionRecallCurve(ROWS), weighted_yes_or_no, pr_curve),
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
    "mape": Case(M.MAPE, numbers, lambda p, t, w: sk.mean_absolute_percentage_error(t, p)),
    "mape weighted": Case(
        M.MAPE, weighted_columns, lambda p, t, w: sk.mean_absolute_percentage_error(t, p, sample_weight=w)
    ),
    "explained variance": Case(M.ExplainedVariance, numbers, lambda p, t, w: sk.explained_variance_score(t, p)),
    "explained variance far from 0": Case(
        M.ExplainedVariance, far_numbers, lambda p, t, w: sk.explained_variance_score(t, p)
    ),
    "explained variance weighted": Case(
        M.ExplainedVariance,
        weighted_columns,
        lambda p, t, w: sk.explained_variance_score(t, p, sample_weight=w),
    ),
    "pearson": Case(M.Pearson, numbers, lambda p, t, w: stats.pearsonr(p, t).statistic),
    "pearson far from 0": Case(M.Pearson, far_numbers, correlation),
    "pearson weighted": Case(M.Pearson, weighted_columns, correlation),
    "spearman": Case(lambda: M.Spearman(ROWS), numbers, of_repeated),
    "spearman weighted": Case(lambda: M.Spearman(ROWS), repeated, of_repeated),
    "r2": Case(M.R2, numbers, lambda p, t, w: sk.r2_score(t, p)),
    "r2 far from 0": Case(M.R2, far_numbers, lambda p, t, w: sk.r2_score(t, p)),
    "r2 weighted": Case(M.R2, weighted_columns, lambda p, t, w: sk.r2_score(t, p, sample_weight=w)),
}  # fmt: skip


# Recall and F1 count what precision counts: inside the step one case of each shows that they do.
SHOWN = ("recall weighted", "f1 binary", "fbeta binary", "iou of images")
IN_STEP = [n for n in CASES if not n.startswith(("recall", "f1", "fbeta", "iou", "dice")) or n in SHOWN]


def case_data(name: str, dtype: str = "float64") -> Data:
    """The data of a case, its floats exactly representable in float32."""
    p, t, w = CASES[name].data(np.random.default_rng(len(name)))
    return _typed(p, dtype), _typed(t, dtype), None if w is None else _typed(w, dtype)


def _typed(array: Array, dtype: str) -> Array:
    return array.astype(np.float32).astype(dtype) if array.dtype.kind == "f" else array


def expected(name: str) -> Any:
    return CASES[name].expected(*case_data(name))
