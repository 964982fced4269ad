"""The metrics of the catalogue, and functions of one's own, through `fit`, its validation, and both `evaluate`s.

At a learning rate of 0 all of them see the scores that `predict` gives; batches are uneven, and there are two epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

import wholestep as ws
from tests.metrics.cases import (
    ace,
    average_precision,
    concordance,
    correlation,
    ece,
    mce,
    of_repeated,
    per_query,
    pr_curve,
    psnr,
    reciprocal_rank,
    roc_curve,
    sigmoid,
    softmax,
    ssim,
)
from tests.train.test_classification import OPTIONS, TABLE
from wholestep import metrics as M
from wholestep.errors import InputError, OptionError, ShapeError, UsageError

Array = np.ndarray[Any, Any]
Oracle = Callable[[Array, Array, Array | None], Any]
RNG = np.random.default_rng(8)
ROWS, HELD, CLASSES = 21, 13, 3
X, XV = RNG.normal(size=(ROWS, 4)).astype("f"), RNG.normal(size=(HELD, 4)).astype("f")


def weights(n: int) -> Array:
    return np.random.default_rng(n).integers(1, 4, n).astype("f")


def yes(n: int) -> Array:
    return np.random.default_rng(n).integers(0, 2, n).astype("int32")


def classes(n: int) -> Array:
    return np.random.default_rng(n).integers(0, CLASSES, n).astype("int32")


def numbers(n: int) -> Array:
    return np.random.default_rng(n).normal(size=(n, 2)).astype("f") + 2


def relevances(n: int) -> Array:
    return np.random.default_rng(n).integers(0, 3, (n, 5)).astype("f")


def pictures(n: int) -> Array:
    return np.random.default_rng(n).normal(size=(n, 12, 11)).astype("f")


def survival(n: int) -> Array:
    rng = np.random.default_rng(n)
    return np.stack([rng.integers(1, 9, n), rng.integers(0, 2, n)], 1).astype("f")


# -- functions of one's own --------------------------------------------------------------------------------------------


def hits(scores: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
    """True and False for each row."""
    return scores.argmax(-1) == labels


def gap(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
    """A value for each element."""
    return ws.abs(output - target)


def weighed(output: ws.Tensor, target: ws.Tensor, sample_weight: ws.Tensor) -> ws.Tensor:
    """One number that weighs rows itself."""
    return ((output - target).sum(-1) * sample_weight).sum() / sample_weight.sum()


def mean_gap(scores: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
    """A mean: its sum and its count add up over batches of any size."""
    return (scores.max(-1) - labels.astype(scores.dtype)).mean()


def median_error(p: Array, t: Array, sample_weight: Array | None = None) -> float:
    return float(np.median(np.abs(p - t)))


# -- the table ---------------------------------------------------------------------------------------------------------


def said(of: Callable[..., Any], **options: Any) -> Oracle:
    return lambda p, t, w: of(t, p > 0, sample_weight=w, **options)


def of_rows(of: Callable[..., Any], **options: Any) -> Oracle:
    return lambda p, t, w: of(t, p.argmax(-1), **options)


BINARY: dict[str, tuple[Any, Oracle]] = {
    "fbeta": (M.FBeta(beta=0.5), said(sk.fbeta_score, beta=0.5)),
    "balanced_accuracy": ("balanced_accuracy", said(sk.balanced_accuracy_score)),
    "mcc": ("mcc", said(sk.matthews_corrcoef)),
    "cohen_kappa": ("kappa", said(sk.cohen_kappa_score)),
    "iou": ("iou", said(sk.jaccard_score)),
    "dice": ("dice", said(sk.f1_score)),
    "ece": ("ece", lambda p, t, w: ece(sigmoid(p), t, w)),
    "brier": ("brier", lambda p, t, w: sk.brier_score_loss(t, sigmoid(p), sample_weight=w)),
    "mce": ("mce", lambda p, t, w: mce(sigmoid(p), t, w)),
    "ace": (M.AdaptiveCalibrationError(bins=1), lambda p, t, w: ace(sigmoid(p), t, w, 1)),
    "roc_curve": ("roc_curve", roc_curve),
    "pr_curve": ("pr_curve", pr_curve),
}
SEVERAL: dict[str, tuple[Any, Oracle]] = {
    "fbeta": (M.FBeta("macro", beta=2.0), of_rows(sk.fbeta_score, beta=2.0, average="macro", zero_division=0)),
    "balanced_accuracy": (M.BalancedAccuracy, of_rows(sk.balanced_accuracy_score)),
    "mcc": ("matthews_corrcoef", of_rows(sk.matthews_corrcoef)),
    "cohen_kappa": (M.CohenKappa(weights="quadratic"), of_rows(sk.cohen_kappa_score, weights="quadratic")),
    "iou": (M.IoU(None), of_rows(sk.jaccard_score, average=None, labels=range(CLASSES))),
    "ece": ("ece", lambda p, t, w: ece(softmax(p), t, w)),
    "brier": ("brier", lambda p, t, w: sk.brier_score_loss(t, softmax(p))),
    "hits": (hits, of_rows(sk.accuracy_score)),
    "mean_gap": (mean_gap, lambda p, t, w: (p.max(-1) - t).mean()),
    "kept": (M.OverEpoch(lambda p, t: sk.f1_score(t, p.argmax(1), average="macro"), ROWS, name="kept"), of_rows(
        sk.f1_score, average="macro", zero_division=0
    )),
}  # fmt: skip
NUMBERS: dict[str, tuple[Any, Oracle]] = {
    "mse": ("mse", lambda p, t, w: sk.mean_squared_error(t, p, sample_weight=w)),
    "rmse": ("rmse", lambda p, t, w: np.sqrt(sk.mean_squared_error(t, p, sample_weight=w))),
    "mae": ("mae", lambda p, t, w: sk.mean_absolute_error(t, p, sample_weight=w)),
    "r2": ("r2", lambda p, t, w: sk.r2_score(t, p, sample_weight=w)),
    "mape": ("mape", lambda p, t, w: sk.mean_absolute_percentage_error(t, p, sample_weight=w)),
    "explained_variance": (
        "explained_variance", lambda p, t, w: sk.explained_variance_score(t, p, sample_weight=w)
    ),
    "pearson": ("pearson", correlation),
    "spearman": ("spearman", of_repeated),
    "psnr": (M.PSNR(2.0), psnr),
    "gap": (gap, lambda p, t, w: np.average(np.abs(p - t).mean(1), weights=w)),
    "median_error": (M.OverEpoch(median_error), median_error),
}  # fmt: skip

LISTS: dict[str, tuple[Any, Oracle]] = {
    "ndcg": ("ndcg", lambda p, t, w: sk.ndcg_score(t, p, sample_weight=w)),
    "mrr": ("mrr", per_query(reciprocal_rank)),
    "hit_rate": (M.HitRate(2), per_query(lambda p, t: (t[np.argsort(-p)[:2]] > 0).any())),
    "retrieval_map": ("retrieval_map", per_query(average_precision)),
}
IMAGES: dict[str, tuple[Any, Oracle]] = {"psnr": (M.PSNR(2.0), psnr), "ssim": ("ssim", ssim)}
SURVIVAL: dict[str, tuple[Any, Oracle]] = {"concordance": ("c_index", concordance)}


@dataclass(frozen=True)
class Way:
    loss: str
    outputs: int
    targets: Callable[[int], Array]
    metrics: dict[str, tuple[Any, Oracle]]
    weighted: bool
    stream: bool = False
    shape: tuple[int, ...] = ()


WAYS = {
    "yes or no, weighted": Way("bce", 1, yes, BINARY, weighted=True),
    "classes, from a stream": Way("cross_entropy", CLASSES, classes, SEVERAL, weighted=False, stream=True),
    "ranked lists, weighted": Way("mse", 5, relevances, LISTS, weighted=True),
    "images": Way("mse", 132, pictures, IMAGES, weighted=True, shape=(12, 11)),
    "times, some censored": Way("cox", 1, survival, SURVIVAL, weighted=False),
    "numbers, weighted": Way("mse", 2, numbers, NUMBERS, weighted=True),
}


class Batches:
    """A stream: batches of 8, 8 and 5 rows, of which nobody knows how many there are."""

    def __init__(self, x: Array, y: Array) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        for first in range(0, len(self.x), 8):
            yield self.x[first : first + 8], self.y[first : first + 8]


class Net(ws.nn.Module):
    def __init__(self, outputs: int, shape: tuple[int, ...] = ()) -> None:
        self.layer = ws.nn.Linear(4, outputs)
        self.flat = outputs == 1
        self.shape = shape

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        out = self.layer(x)
        out = out.reshape((out.shape[0], *self.shape)) if self.shape else out
        return out[:, 0] if self.flat else out


@cache
def measured(name: str) -> tuple[dict[str, list[Any]], dict[str, Any], dict[str, Any], Any]:
    """What `fit` has logged, what `model.evaluate` says, what is expected of (training, validation) data."""
    way, model = WAYS[name], Net(WAYS[name].outputs, WAYS[name].shape)
    y, yv = way.targets(ROWS), way.targets(HELD)
    held = (XV, yv, weights(HELD)) if way.weighted else (XV, yv)
    data: Any = Batches(X, y) if way.stream else (X, y, weights(ROWS)) if way.weighted else (X, y)
    options = {"loss": way.loss, "metrics": [m for m, _ in way.metrics.values()]}
    history = ws.fit(
        model, data, validation=held, optimizer=ws.SGD(lr=0.0), epochs=2, batch_size=8, progress=False,
        device="reference", **options,
    )  # fmt: skip
    logged = {key: history[key] for key in history.names}
    evaluated = model.evaluate(held, batch_size=5, device="reference", **options)
    scores = [model.predict(a, device="reference").astype(np.float64) for a in (X, XV)]
    w = [weights(n).astype(np.float64) if way.weighted else None for n in (ROWS, HELD)]
    return logged, evaluated, way, list(zip(scores, (y, yv), w, strict=True))


def test_every_metric_goes_through_fit() -> None:
    """Here, or in the table of losses and shapes of scores."""
    said = [row.oracles for row in TABLE.values()]
    made = {OPTIONS[name]().kind if name in OPTIONS else name for oracles in said for name in oracles}
    here = {M.get(metric).kind for way in WAYS.values() for metric, _ in way.metrics.values()}
    assert sorted(set(M.METRICS) - made - here - {"loss"}) == [], (
        "add it to NUMBERS, or, if it reads scores, to BINARY and SEVERAL"
    )


CELLS = [(name, metric) for name, way in WAYS.items() for metric in way.metrics]


@pytest.mark.parametrize(("name", "metric"), CELLS)
def test_fit_validation_and_evaluate_are_scikit_learn(name: str, metric: str) -> None:
    logged, evaluated, way, ((p, t, w), held) = measured(name)
    oracle = way.metrics[metric][1]
    wanted, of_held = oracle(p, t, w), oracle(*held)
    for found in logged[metric]:  # the same in both epochs
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-7)
    for found in (*logged[f"val_{metric}"], evaluated[metric]):
        np.testing.assert_allclose(found, of_held, rtol=2e-5, atol=1e-7)


# -- functions on arrays, and what they are refused for --------------------------------------------------------------


def test_a_function_on_arrays_is_the_recorded_one() -> None:
    p, t, w = RNG.normal(size=(9, 2)), RNG.normal(size=(9, 2)), RNG.uniform(0.5, 2.0, 9)
    for cut in (9, 4):
        by_rows, one = M.get(gap), M.Function(weighed)
        for part in (slice(0, cut), slice(cut, 9)):
            if len(p[part]):
                by_rows.update(p[part], t[part], w[part])
        assert by_rows.compute() == pytest.approx(np.average(np.abs(p - t).mean(1), weights=w))
        one.update(p, t, w)
        assert one.compute() == pytest.approx(np.average((p - t).sum(1), weights=w))
    kept = M.OverEpoch(lambda p, t: stats.kendalltau(p, t).statistic, name="tau")
    kept.update(p[:4, 0], t[:4, 0])
    kept.update(p[4:, 0], t[4:, 0])
    assert kept.compute() == pytest.approx(stats.kendalltau(p[:, 0], t[:, 0]).statistic)


def test_a_function_says_what_is_better_of_it() -> None:
    def agreement(p: ws.Tensor, t: ws.Tensor) -> ws.Tensor:
        return p * t

    assert M.get(agreement).higher_is_better is None
    agreement.higher_is_better = True  # type: ignore[attr-defined]
    assert M.get(agreement).higher_is_better is True
    assert M.Function(agreement, better=False).higher_is_better is False
    y = numbers(ROWS)
    history = ws.fit(
        Net(2), (X, y), loss="mse", validation=(XV, numbers(HELD)), metrics=[agreement], epochs=3, batch_size=7,
        progress=False, device="reference", callbacks=ws.EarlyStopping("val_agreement", patience=1),
    )  # fmt: skip
    kept = history["val_agreement"]
    assert len(kept) == 3 or kept[-1] <= max(kept[:-1])  # it hoped for more


def test_metrics_by_output_as_keras_has_them() -> None:
    class Heads(ws.nn.Module):
        def __init__(self) -> None:
            self.kind, self.size = ws.nn.Linear(4, CLASSES), ws.nn.Linear(4, 2)

        def forward(self, x: ws.Tensor) -> dict[str, ws.Tensor]:
            return {"kind": self.kind(x), "size": self.size(x)}

    y = {"kind": classes(ROWS), "size": numbers(ROWS)}
    options = {"loss": {"kind": "cross_entropy", "size": "mse"}, "batch_size": 7, "device": "reference"}
    model = Heads()
    found = ws.fit(
        model, (X, y), metrics={"kind": ["accuracy", "mcc"], "size": "mae"}, optimizer=ws.SGD(lr=0.0), progress=False,
        **options,
    )  # fmt: skip
    scores = model.predict(X, device="reference")
    said = scores["kind"].argmax(-1)
    assert found["kind_accuracy"][0] == pytest.approx((said == y["kind"]).mean())
    assert found["kind_mcc"][0] == pytest.approx(sk.matthews_corrcoef(y["kind"], said))
    assert found["size_mae"][0] == pytest.approx(np.abs(scores["size"] - y["size"]).mean(), rel=1e-5)


def fit(metric: Any, y: Array | None = None, **options: Any) -> object:
    target = numbers(ROWS) if y is None else y
    data = options.pop("data", (X, target))
    return ws.fit(Net(2), data, loss="mse", metrics=metric, batch_size=7, progress=False, device="reference", **options)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a lambda": (
        lambda: fit(lambda p, t: p - t),
        UsageError,
        r"a metric needs a name, and <lambda> has none: ws\.metrics\.Function\(function, name='gap'\)",
    ),
    "a function of NumPy": (
        lambda: fit(median_error),
        UsageError,
        r"'median_error' was given tensors, as a loss is, and failed: .*\[ws\.metrics\.OverEpoch\(median_error\)\]",
    ),
    "the other way round": (
        lambda: fit([M.Function(sk.mean_squared_error)]),
        UsageError,
        r"ws\.metrics\.OverEpoch\(mean_squared_error\)",
    ),
    "a constant": (
        lambda: fit(M.Function(lambda p, t: 0.5, name="half")),
        UsageError,
        r"'half' returned 0\.5, which is no tensor",
    ),
    "a matrix of something else": (
        lambda: fit(M.Function(lambda p, t: p.sum(0), name="columns")),
        UsageError,
        r"'columns' gave float32\[2\]: expected one number, or a value for each row.*Reduce it: value\.mean\(\)",
    ),
    "one number of weighted rows": (
        lambda: fit(M.Function(lambda p, t: (p - t).mean(), name="bias"), data=(X, numbers(ROWS), weights(ROWS))),
        UsageError,
        r"weights, and the metric 'bias' gives one number without them.*bias\(prediction, target, sample_weight\)",
    ),
    "NumPy of weighted rows": (
        lambda: fit(M.OverEpoch(lambda p, t: 0.0, name="zero"), data=(X, numbers(ROWS), weights(ROWS))),
        UsageError,
        r"'zero' does not take them: give it a third argument, def zero\(predictions, targets, sample_weight\)",
    ),
    "rows of a stream": (
        lambda: fit("spearman", data=Batches(X, numbers(ROWS))),
        OptionError,
        r"spearman stores every row of an epoch, so it needs the number of rows: give it, capacity=len\(x\)",
    ),
    "too little room": (
        lambda: fit(M.Spearman(capacity=5)),
        InputError,
        r"spearman has room for 5 rows and received 21\. Make it larger: capacity=21",
    ),
    "a description": (
        lambda: M.Metric.from_config(M.get(gap).to_config()),
        UsageError,
        r"the metric 'gap' is a function, which a description cannot store; give the function itself",
    ),
    "beta": (lambda: M.FBeta(beta=-1), OptionError, "beta must be a number of at least 0; received -1"),
    "bins": (lambda: M.ECE(bins=0), OptionError, "bins must be an integer of at least 1; received 0"),
    "adaptive bins": (lambda: M.AdaptiveCalibrationError(bins=0), OptionError, "ace: bins must be an integer of at le"),
    "the length of a list": (lambda: M.NDCG(k=0), OptionError, "ndcg: k must be an integer of at least 1, or None"),
    "lists of one number": (
        lambda: M.MRR().update(np.ones(3), np.ones(3)),
        ShapeError,
        r"mrr ranks the items of each row: scores and relevances \(queries, items\).*received \(3,\)",
    ),
    "a range of pixels": (lambda: M.PSNR(0), OptionError, "psnr: data_range is the difference of .* above 0; rec"),
    "a window": (lambda: M.SSIM(window=0), OptionError, "ssim: window is an integer of at least 1, sigma is above 0"),
    "small images": (
        lambda: M.SSIM().update(np.ones((2, 8, 8)), np.ones((2, 8, 8))),
        ShapeError,
        r"ssim compares images .* at least 11 x 11 pixels; received \(2, 8, 8\)\. Give a smaller window",
    ),
    "times of three columns": (
        lambda: M.Concordance().update(np.ones(2), np.ones((2, 3))),
        ShapeError,
        r"concordance takes risks \(N,\) and targets \(N, 2\), time and event, or times \(N,\); received \(2,\)",
    ),
    "weights": (
        lambda: M.CohenKappa(weights="cubic"),
        OptionError,
        "weights is None, 'linear' or 'quadratic'; received 'cubic'",
    ),
    "several labels": (
        lambda: ws.fit(
            Net(2), (X, np.ones((ROWS, 2), "f")), loss="bce", metrics="mcc", batch_size=7, device="reference"
        ),
        OptionError,
        "mcc is of one classifier; there are 2 binary labels for each row",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()
