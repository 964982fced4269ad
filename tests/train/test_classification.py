"""Loss x output form x target form x metric: every cell is scikit-learn's number, or an error that says what to write.

Each row of the table trains a tiny network for an epoch of uneven batches at a learning rate of 0, so that all ways of
measuring see the same scores: `fit` on its data and on its validation data, `session.evaluate`, `model.evaluate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

import wholestep as ws
from wholestep import losses as L
from wholestep import metrics as M
from wholestep.errors import (
    DTypeError,
    InputError,
    OptionError,
    ShapeError,
    TrainingWarning,
    UsageError,
    WholestepError,
)

Array = np.ndarray[Any, Any]
ROWS, HELD, FEATURES, BATCH = 29, 17, 4, 8  # batches of 8, 8, 8, 5 rows
RNG = np.random.default_rng(5)
X = RNG.normal(size=(ROWS, FEATURES)).astype(np.float32)
XV = RNG.normal(size=(HELD, FEATURES)).astype(np.float32)
W = RNG.uniform(0.2, 2.0, ROWS).astype(np.float32)
WV = RNG.uniform(0.2, 2.0, HELD).astype(np.float32)


class Grab(ws.Callback):
    trained: ws.Session

    def on_train_begin(self) -> None:
        assert self.run is not None
        self.trained = self.run.session


# -- targets -----------------------------------------------------------------------------------------------------


def yes(*shape: int, dtype: str = "int32", signs: bool = False) -> Callable[[int], Array]:
    def make(n: int) -> Array:
        drawn = np.random.default_rng(n).integers(0, 2, (n, *shape))
        return (2 * drawn - 1 if signs else drawn).astype(dtype)

    return make


def classes(*shape: int, of: int = 3, dtype: str = "int64", ignored: int | None = None) -> Callable[[int], Array]:
    def make(n: int) -> Array:
        drawn = np.random.default_rng(n).integers(0, of, (n, *shape)).astype(dtype)
        if ignored is not None:
            drawn.reshape(-1)[::4] = ignored
        return drawn

    return make


def one_hot(*shape: int, of: int = 3, axis: int = -1) -> Callable[[int], Array]:
    return lambda n: np.moveaxis(np.eye(of, dtype=np.float32)[classes(*shape, of=of)(n)], -1, axis)


def soft(n: int) -> Array:
    return np.random.default_rng(n).dirichlet(np.ones(3), n).astype(np.float32)


# -- what scikit-learn says --------------------------------------------------------------------------------------

Oracle = Callable[[Array, Array, Array | None], Any]  # of scores, targets, weights: each (rows, ...), in float64


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def binary(limit: float = 0.0, cut: float = 0.5, probable: bool = True) -> dict[str, Oracle]:
    """Of one score for each target: all of them in one line."""

    def flat(of: Callable[..., Any], **options: Any) -> Oracle:
        def expected(p: Array, t: Array, w: Array | None) -> Any:
            each = None if w is None else np.repeat(w, p[0].size)
            return of((t > cut).reshape(-1), p.reshape(-1), sample_weight=each, **options)

        return expected

    def said(of: Callable[..., Any], **options: Any) -> Oracle:
        return flat(lambda t, p, **rest: of(t, p > limit, **rest, **options))

    out = {
        "accuracy": said(sk.accuracy_score),
        "precision": said(sk.precision_score, zero_division=0),
        "recall": said(sk.recall_score),
        "f1": said(sk.f1_score),
        "f1 macro": said(sk.f1_score, average="macro"),
        "f1 each": said(sk.f1_score, average=None),
        "confusion_matrix": said(sk.confusion_matrix),
        "roc_auc": flat(sk.roc_auc_score),
        "average_precision": flat(sk.average_precision_score),
    }
    if probable:
        out["log_loss"] = flat(lambda t, p, **rest: sk.log_loss(t, sigmoid(p), **rest))
    return out


def labels() -> dict[str, Oracle]:
    """Of several labels for each row."""

    def said(of: Callable[..., Any], **options: Any) -> Oracle:
        return lambda p, t, w: of(t, p > 0, sample_weight=w, **options)

    return {
        "accuracy": lambda p, t, w: np.average((p > 0) == t, weights=w, axis=0).mean(),
        "exact": said(sk.accuracy_score),
        "precision": said(sk.precision_score, average="macro", zero_division=0),
        "recall": said(sk.recall_score, average="macro", zero_division=0),
        "f1": said(sk.f1_score, average="macro", zero_division=0),
        "f1 micro": said(sk.f1_score, average="micro"),
        "f1 weighted": said(sk.f1_score, average="weighted", zero_division=0),
        "f1 each": said(sk.f1_score, average=None, zero_division=0),
        "confusion_matrix": said(sk.multilabel_confusion_matrix),
        "log_loss": lambda p, t, w: np.mean([sk.log_loss(a, sigmoid(b), sample_weight=w) for a, b in zip(t.T, p.T)]),
        "roc_auc": lambda p, t, w: sk.roc_auc_score(t, p, sample_weight=w),
        "average_precision": lambda p, t, w: sk.average_precision_score(t, p, sample_weight=w),
    }


def multi(of: int = 3, axis: int = -1, ignored: int | None = None, probable: bool = True) -> dict[str, Oracle]:
    """Of classes: rows of scores in one line."""
    names = list(range(of))

    def rows(call: Callable[..., Any]) -> Oracle:
        def expected(p: Array, t: Array, w: Array | None) -> Any:
            scores = np.moveaxis(p, axis, -1)
            true = t if t.dtype.kind != "f" else np.moveaxis(t, axis, -1).argmax(-1)
            true, scores = true.reshape(-1), scores.reshape(-1, of)
            each = None if w is None else np.repeat(w, len(true) // len(w))
            kept = np.ones(len(true), bool) if ignored is None else true != ignored
            return call(true[kept], scores[kept], sample_weight=None if each is None else each[kept])

        return expected

    def said(call: Callable[..., Any], **options: Any) -> Oracle:
        return rows(lambda t, p, **rest: call(t, p.argmax(-1), **rest, **options))

    out = {
        "accuracy": said(sk.accuracy_score),
        "precision": said(sk.precision_score, average="macro", zero_division=0),
        "recall": said(sk.recall_score, average="macro", zero_division=0),
        "f1": said(sk.f1_score, average="macro", zero_division=0),
        "f1 micro": said(sk.f1_score, average="micro"),
        "f1 each": said(sk.f1_score, average=None, zero_division=0, labels=names),
        "confusion_matrix": said(sk.confusion_matrix, labels=names),
    }
    if of > 2:
        out["top_2"] = rows(lambda t, p, **rest: sk.top_k_accuracy_score(t, p, k=2, labels=names, **rest))
    if probable:
        auc = {} if of == 2 else {"multi_class": "ovr", "labels": names}
        likely = (lambda p: softmax(p)[:, 1]) if of == 2 else softmax
        out |= {
            "log_loss": rows(lambda t, p, **rest: sk.log_loss(t, softmax(p), labels=names, **rest)),
            "perplexity": rows(lambda t, p, **rest: np.exp(sk.log_loss(t, softmax(p), labels=names, **rest))),
            "roc_auc": rows(lambda t, p, **rest: sk.roc_auc_score(t, likely(p), **auc, **rest)),
            "average_precision": rows(
                lambda t, p, **rest: sk.average_precision_score(t if of == 2 else np.eye(of)[t], likely(p), **rest)
            ),
        }
    return out


def soft_log_loss(p: Array, t: Array, w: Array | None) -> float:
    return float(np.average(-(t * np.log(softmax(p))).sum(-1), weights=w))


OPTIONS: dict[str, Callable[..., M.Metric]] = {
    "exact": partial(M.Accuracy, exact=True),
    "f1 macro": partial(M.F1, "macro"),
    "f1 micro": partial(M.F1, "micro"),
    "f1 weighted": partial(M.F1, "weighted"),
    "f1 each": partial(M.F1, None),
    "top_2": partial(M.TopKAccuracy, 2),
    "above 0.3": partial(M.Accuracy, 0.3),
    "of classes": partial(M.Accuracy, axis=-1),
}


# -- the table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    loss: Any
    outputs: tuple[int, ...]  # the axes after the batch
    targets: Callable[[int], Array]
    oracles: dict[str, Oracle]
    weighted: bool = False


def above(p: Array, t: Array, w: Array | None) -> float:
    return float(np.average((p.reshape(-1) > 0.3) == t.reshape(-1), weights=w))


TABLE: dict[str, Row] = {
    # yes or no
    "bce (N,) int (N,)": Row("bce", (), yes(), binary() | {"above 0.3": above}),
    "bce (N,) bool (N,)": Row("bce", (), yes(dtype="bool"), binary()),
    "bce (N,) float (N,1)": Row("bce", (), yes(1, dtype="float32"), binary()),
    "bce (N,1) float (N,1)": Row("bce", (1,), yes(1, dtype="float32"), binary() | {"above 0.3": above}),
    "bce (N,1) int (N,) weighted": Row("bce", (1,), yes(dtype="int64"), binary(), True),
    "bce (N,1) bool (N,1)": Row("bce", (1,), yes(1, dtype="bool"), binary()),
    "bce (N,1,2,3) uint8 masks": Row("bce", (1, 2, 3), yes(1, 2, 3, dtype="uint8"), binary(), True),
    "focal (N,1) int (N,)": Row("focal", (1,), yes(), binary()),
    "dice (N,1) float (N,1)": Row("dice", (1,), yes(1, dtype="float32"), binary()),
    "hinge (N,1) signs (N,)": Row("hinge", (1,), yes(signs=True), binary(cut=0, probable=False), True),
    # several labels
    "bce (N,3) float weighted": Row("bce", (3,), yes(3, dtype="float32"), labels(), True),
    "bce (N,3) int": Row("bce", (3,), yes(3), labels()),
    "bce (N,3) bool": Row("bce", (3,), yes(3, dtype="bool"), labels()),
    "focal (N,3) int": Row("focal", (3,), yes(3, dtype="int16"), labels()),
    # classes
    "cross entropy (N,3) int64 weighted": Row("cross_entropy", (3,), classes(), multi(), True),
    "cross entropy (N,3) uint8 (N,1)": Row("cross_entropy", (3,), classes(1, dtype="uint8"), multi()),
    "cross entropy (N,2) int8": Row("cross_entropy", (2,), classes(of=2, dtype="int8"), multi(2)),
    "cross entropy (N,3) one-hot": Row("cross_entropy", (3,), one_hot(), multi()),
    "cross entropy (N,3) soft weighted": Row(
        "cross_entropy", (3,), soft, {"accuracy": multi()["accuracy"], "log_loss": soft_log_loss}, True
    ),
    "cross entropy (N,3,5) (N,5) weighted": Row("cross_entropy", (3, 5), classes(5), multi(axis=1), True),
    "cross entropy (N,5,3) (N,5)": Row("cross_entropy", (5, 3), classes(5, dtype="int32"), multi()),
    "cross entropy (N,3,2,4) (N,2,4) ignoring": Row(
        L.Loss("cross_entropy", ignore_index=-100, label_smoothing=0.1, class_weight=[0.0, 1.0, 2.0]),
        (3, 2, 4),
        classes(2, 4, ignored=-100),
        multi(axis=1, ignored=-100),
        True,
    ),
    "cross entropy (N,3,5) one-hot on axis 1": Row(
        L.Loss("cross_entropy", axis=1), (3, 5), one_hot(5, axis=1), multi(axis=1)
    ),
    "cross entropy (N,3,3) (N,3) on axis 1": Row(L.Loss("cross_entropy", axis=1), (3, 3), classes(3), multi(axis=1)),
    "cross entropy (N,3,3) (N,3) on the last": Row(L.Loss("cross_entropy", axis=-1), (3, 3), classes(3), multi()),
    "focal (N,3,4) (N,4)": Row("focal", (3, 4), classes(4), multi(axis=1)),
    "hinge (N,3) int": Row("hinge", (3,), classes(), multi(probable=False)),
    "dice (N,3) int": Row("dice", (3,), classes(), multi()),
    "kl (N,3) one-hot": Row("kl_div", (3,), one_hot(), multi()),
    "bce (N,3) one-hot, read as classes": Row("bce", (3,), one_hot(), {"of classes": multi()["accuracy"]}),
}  # fmt: skip


ALONE = ("bce (N,1) float (N,1)", "bce (N,3) float weighted", "cross entropy (N,3,5) (N,5) weighted")


def groups() -> dict[str, list[str]]:
    """Rows that one network with an output for each measures together, which saves most of the time; some alone."""
    rest = {w: [n for n, row in TABLE.items() if row.weighted is w and n not in ALONE] for w in (False, True)}
    cut = [names[i : i + 7] for names in rest.values() for i in range(0, len(names), 7)]
    return {" / ".join(names): names for names in [*([n] for n in ALONE), *cut]}


class Heads(ws.nn.Module):
    """Scores of any shape: of one row alone, or of several by name."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.shapes = shapes
        self.body = [ws.nn.Linear(FEATURES, int(np.prod(shape, initial=1))) for shape in shapes.values()]

    def forward(self, x: ws.Tensor) -> ws.Tensor | dict[str, ws.Tensor]:
        made = {
            name: layer(x).reshape(x.shape[0], *shape)
            for layer, (name, shape) in zip(self.body, self.shapes.items(), strict=True)
        }
        return made if len(made) > 1 else made["labels"]


@pytest.mark.parametrize("group", groups())
def test_every_metric_of_every_row_is_scikit_learn_everywhere(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc -O0")  # most of the time is gcc's
    names = groups()[group]
    rows = {"labels" if len(names) == 1 else f"row{i}": TABLE[name] for i, name in enumerate(names)}
    model, grab = Heads({key: row.outputs for key, row in rows.items()}), Grab()
    several, weighted = len(rows) > 1, TABLE[names[0]].weighted
    chosen: list[Any] = []
    for key, row in rows.items():
        made = [OPTIONS.get(m, M.METRICS.get(m))(name=f"{key} {m}") for m in row.oracles]  # type: ignore[misc]
        chosen += [(metric, key, key) for metric in made] if several else made
    loss = {key: row.loss for key, row in rows.items()} if several else rows["labels"].loss

    def targets(n: int) -> Any:
        made = {key: row.targets(n) for key, row in rows.items()}
        return made if several else made["labels"]

    def named(n: int) -> dict[str, Array]:
        """The first rows of the validation data as a session takes them."""
        y = targets(HELD)
        given = {"x": XV, **(y if several else {"labels": y}), **({"sample_weight": WV} if weighted else {})}
        return {key: a[:n] for key, a in given.items()}

    def expected(x: Array, n: int, w: Array, stop: int | None = None) -> dict[str, Any]:
        found, y = model.predict(x), targets(n)
        scores, true = (found, y) if several else ({"labels": found}, {"labels": y})
        each = w[:stop] if weighted else None
        return {
            f"{key} {m}": oracle(scores[key][:stop].astype(np.float64), true[key][:stop], each)
            for key, row in rows.items()
            for m, oracle in row.oracles.items()
        }

    history = ws.fit(
        model,
        (X, targets(ROWS), W) if weighted else (X, targets(ROWS)),
        validation=(XV, targets(HELD), WV) if weighted else (XV, targets(HELD)),
        loss=loss,
        metrics=chosen,
        optimizer=ws.SGD(lr=0.0),
        batch_size=BATCH,
        progress=False,
        callbacks=grab,
        threads=1,
    )
    trained, measured, few = expected(X, ROWS, W), expected(XV, HELD, WV), expected(XV, HELD, WV, stop=BATCH)
    grab.trained.reset_metrics()
    once = grab.trained.evaluate(named(BATCH)).metrics
    weight = {"sample_weight": WV} if weighted else {}
    whole = model.evaluate(XV, targets(HELD), loss=loss, metrics=chosen, batch_size=BATCH, **weight)
    for metric in trained:
        for where, found, wanted in (
            ("fit", history[metric][-1], trained[metric]),
            ("validation", history[f"val_{metric}"][-1], measured[metric]),
            ("model.evaluate", whole[metric], measured[metric]),
            ("session.evaluate", once[metric], few[metric]),
        ):
            text = f"{names[list(rows).index(metric.split()[0])]}: {metric} by {where}"
            np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6, err_msg=text)


# -- the cells that refuse ---------------------------------------------------------------------------------------

BCE_OF_PROBABILITIES = M.LogLoss(from_logits=False)
REFUSED: dict[str, tuple[Any, tuple[int, ...], Callable[[int], Array], list[Any], type[WholestepError], str]] = {
    "one class": ("cross_entropy", (1,), classes(), [], ShapeError, r"single class is always 1.*'bce'"),
    "one class (N,)": ("cross_entropy", (), yes(), [], DTypeError, r"For one binary target per score use loss='bce'"),
    "one class, axis 1": ("cross_entropy", (1, 5), classes(5), [], ShapeError, r"single class is always 1"),
    "one-hot ints": ("cross_entropy", (3,), lambda n: one_hot()(n).astype(int), [], InputError, r"y\.argmax\(axis=1\)"),
    "bools": ("cross_entropy", (2,), yes(dtype="bool"), [], InputError, r"booleans; .*y\.astype\('int32'\)"),
    "labels for classes": ("cross_entropy", (3,), yes(3), [], DTypeError, r"class indices: .*use loss='bce'"),
    "(N,3,3) and (N,3)": ("cross_entropy", (3, 3), classes(3), [], ShapeError, r"axis=1 or axis=-1"),
    "probabilities of three axes": ("cross_entropy", (3, 5), one_hot(5, axis=1), [], ShapeError, r"axis=1 or axis=-1"),
    "pairs": ("bce", (1,), yes(3, dtype="float32"), [], ShapeError, r"\(batch, 1\) and \(batch, 3\)\. Broadcasting"),
    "classes for bce": ("bce", (3,), classes(), [], InputError, r"received 2 in row \d+\. .*'cross_entropy'"),
    "hinge of 0 and 1": ("hinge", (1,), yes(), [], InputError, r"2 \* y - 1 makes them of 0 and 1"),
    "labels above the classes": ("hinge", (2,), classes(), [], InputError, r"labels go up to 2, which needs 3 classes"),
    "labels above the classes, axis 1": ("focal", (2, 5), classes(5), [], InputError, r"the model has 2 outputs"),
    "top k of yes or no": ("bce", (3,), yes(3), [M.TopKAccuracy(2)], ShapeError, r"For binary labels use 'acc"),
    "log loss of hinge": ("hinge", (3,), classes(), ["log_loss"], UsageError, r"the scores of this loss are no logits"),
    "log loss of probabilities": (
        "bce", (1,), yes(), [BCE_OF_PROBABILITIES], OptionError, r"the loss takes the prediction for raw scores"
    ),
    "ranked hinge": ("hinge", (3,), classes(), ["roc_auc"], UsageError, r"RocAuc\(from_logits=False\)"),
    "binary F1 of labels": ("bce", (3,), yes(3), [M.F1("binary")], OptionError, "one binary label; there are 3"),
    "binary F1 of classes": ("cross_entropy", (3,), classes(), [M.F1("binary")], OptionError, r"there are 3\. Choose"),
    "exact classes": ("cross_entropy", (3,), classes(), [M.Accuracy(exact=True)], OptionError, r"leave it out for cla"),
    "a threshold for classes": (
        "cross_entropy", (3,), classes(), [M.Accuracy(0.5)], ShapeError, r"loss takes scores of classes on axis 1"
    ),
    "a column of classes": ("bce", (1,), yes(), [M.Accuracy(axis=-1)], ShapeError, r"single column is not one score"),
    "own loss, own metric": (
        lambda p, t: (p - t.astype("float32").reshape(p.shape)).mean(), (1,), yes(), ["accuracy"], OptionError,
        r"threshold=0\.0 for logits",
    ),
    "own loss, labels or rows": (
        lambda p, t: ((p - t) ** 2).mean(), (3,), yes(3, dtype="float32"), ["f1"], ShapeError,
        r"axis=-1 for classes, threshold=0\.0 for binary labels",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_cell_says_what_to_write(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "gcc -O0")
    loss, outputs, make, metrics, kind, text = REFUSED[name]
    given = {"loss": loss, "metrics": metrics, "batch_size": BATCH}
    for call in (
        lambda: ws.fit(Heads({"labels": outputs}), (X, make(ROWS)), **given, progress=False),
        lambda: Heads({"labels": outputs}).evaluate(X, make(ROWS), **given),
    ):
        with pytest.raises(WholestepError, match=text) as raised:
            call()
        assert type(raised.value) is kind


# -- what the loss says, however it is called --------------------------------------------------------------------


def test_a_loss_inside_a_function_of_ones_own_tells_its_metrics() -> None:
    y = yes(1, dtype="float32")(ROWS)
    model = ws.nn.Linear(FEATURES, 1)
    history = ws.fit(
        model,
        (X, y),
        loss=lambda p, t: ws.losses.bce(p, t) + 1e-3 * (p * p).mean(),
        metrics=["accuracy"],
        optimizer=ws.SGD(lr=0.0),
        batch_size=BATCH,
        progress=False,
    )
    assert history["accuracy"][-1] == ((model.predict(X) > 0) == y).mean()


def test_probabilities_as_targets_have_no_order() -> None:
    y = np.random.default_rng(0).uniform(size=(ROWS, 1)).astype(np.float32)
    model = ws.nn.Linear(FEATURES, 1)
    text = r"needs binary targets, 0 and 1, or class indices; received others\. Convert them, \(y > 0\.5\)"
    with pytest.raises(InputError, match=text):
        model.evaluate(X, y, loss="bce", metrics=["accuracy", "roc_auc"], batch_size=BATCH)
    with pytest.raises(InputError, match=text):
        M.RocAuc().update(model.predict(X), y)


def test_two_losses_that_disagree_tell_nothing() -> None:
    g = ws.Graph()
    p, t = g.input("p", ("batch", 3)), g.input("t", ("batch", 3))
    both = ws.losses.bce(p, t) + ws.losses.cross_entropy(p, t)
    assert both.shape == ()
    with pytest.raises(ShapeError, match=r"may be probabilities of classes or binary labels"):
        M.Accuracy().record(g, p, t)


def test_half_is_no_threshold_of_raw_scores() -> None:
    g = ws.Graph()
    p, t = g.input("p", ("batch", 1)), g.input("t", ("batch", 1))
    ws.losses.bce(p, t)
    with pytest.warns(TrainingWarning, match=r"stands for a probability of 0\.62.*threshold=0\.0"):
        M.Accuracy(threshold=0.5).record(g, p, t)


def test_the_perplexity_of_a_loss_that_ignores_needs_no_second_option() -> None:  # audit d34
    y = classes(6, of=5, ignored=-100)(ROWS)
    model = Heads({"labels": (6, 5)})
    loss = L.Loss("cross_entropy", ignore_index=-100)
    found = model.evaluate(X, y, loss=loss, metrics=["perplexity", "accuracy"], batch_size=BATCH)
    np.testing.assert_allclose(np.log(found["perplexity"]), found["loss"], rtol=1e-5)
    kept = y != -100
    assert found["accuracy"] == pytest.approx((model.predict(X).argmax(-1) == y)[kept].mean())
