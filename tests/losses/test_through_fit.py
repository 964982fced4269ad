"""Losses of probabilities, of distances and of sequences, as people use them: by name, through fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import losses as L

RNG = np.random.default_rng(3)
X = RNG.normal(size=(48, 6)).astype(np.float32)
CLASSES = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0)


def fit(model: ws.nn.Module, y: np.ndarray, loss: Any, x: np.ndarray = X, epochs: int = 6, **options: Any) -> Any:
    device = {"device": "reference", "optimizer": ws.Adam(lr=3e-2), "batch_size": 16}
    history = ws.fit(model, (x, y), loss=loss, epochs=epochs, **device, **options)
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    return history


def test_a_model_that_ends_in_log_softmax_learns_by_nll_and_its_accuracy_is_known() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(6, 3), ws.nn.Lambda(ws.log_softmax))
    history = fit(model, CLASSES, "nll", metrics=["accuracy"])
    found = model.predict(X, device="reference")
    assert history["accuracy"][-1] > history["accuracy"][0]
    assert model.evaluate(X, CLASSES, loss="nll", metrics=["accuracy"], device="reference")[
        "accuracy"
    ] == pytest.approx(np.mean(found.argmax(1) == CLASSES))


def test_a_model_that_ends_in_a_sigmoid_says_yes_above_one_half() -> None:
    model, y = ws.nn.Sequential(ws.nn.Linear(6, 1), ws.nn.Sigmoid()), (X[:, :1] > 0).astype(np.int32)
    fit(model, y, "bce_of_probabilities", metrics=["accuracy"])
    measured = model.evaluate(X, y, loss="bce_of_probabilities", metrics=["accuracy"], device="reference")
    assert measured["accuracy"] == pytest.approx(np.mean((model.predict(X, device="reference") > 0.5) == y))
    with pytest.raises(
        ws.errors.OptionError, match=r"takes the prediction for probabilities. Write ws.metrics.LogLoss"
    ):
        fit(model, y, "bce_of_probabilities", metrics=["log_loss"])


class Listener(ws.nn.Module):
    def __init__(self) -> None:
        self.hear, self.write = ws.nn.GRU(3, 8, batch_first=True), ws.nn.Linear(8, 4)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.write(self.hear(x)[0])


def test_ctc_finds_labels_whose_places_it_is_not_told() -> None:
    labels = RNG.integers(1, 4, (32, 2)).astype(np.int32)
    sound = np.repeat(np.eye(4, dtype=np.float32)[labels][:, :, 1:], 4, axis=1)  # each label sounds for four steps
    model = Listener()
    fit(model, labels, "ctc", x=sound, epochs=25)
    heard = model.predict(sound, device="reference").argmax(-1)
    spelled = [[c for i, c in enumerate(row) if c and (i == 0 or row[i - 1] != c)] for row in heard.tolist()]
    differ = labels[:, 0] != labels[:, 1]
    right = [spelled[i] == labels[i].tolist() for i in np.flatnonzero(differ)]
    assert np.mean(right) > 0.9


def test_triplets_are_found_in_the_batch_and_pairs_are_told() -> None:
    fit(ws.nn.Linear(6, 4), CLASSES, L.Loss("triplet", margin=0.5))
    distance = ws.nn.Sequential(ws.nn.Linear(6, 4), ws.nn.Lambda(lambda e: ws.sqrt((e * e).sum(-1) + 1e-6)))
    fit(distance, (CLASSES > 0).astype(np.int32), "contrastive")


def test_losses_of_teachers_times_and_angles_learn() -> None:
    teacher = X @ RNG.normal(size=(6, 3)).astype(np.float32)
    fit(ws.nn.Linear(6, 3), 3 * teacher, L.Loss("distillation", temperature=3.0), metrics=["accuracy"], epochs=12)
    fit(ws.nn.Linear(6, 3), teacher, "feature_distillation")
    fit(ws.nn.Linear(6, 3), CLASSES, "poly1", metrics=["accuracy", "log_loss"], epochs=12)
    fit(ws.nn.Linear(6, 1), X[:, :1] + 0.1 * X[:, 1:2], L.Loss("expectile", expectile=0.8))
    fit(ws.nn.Linear(6, 4), CLASSES, L.Loss("supervised_contrastive", temperature=0.2), epochs=20)
    faces = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.CosineLinear(8, 3))
    history = fit(faces, CLASSES, L.Loss("arcface", margin=0.1, scale=8.0), metrics=["accuracy"], epochs=20)
    assert history["accuracy"][-1] > 0.8
    times = np.stack([np.exp(-2 * X[:, 0]), RNG.integers(0, 4, len(X)) > 0], 1).astype(np.float32)
    options = {"optimizer": ws.Adam(lr=3e-2), "batch_size": 16, "device": "reference", "progress": False}
    history = ws.fit(ws.nn.Linear(6, 1), (X, times), loss="cox", metrics=["concordance"], epochs=20, **options)
    assert history["concordance"][-1] > 0.9


def test_labels_that_do_not_fit_into_their_time_are_infinite_or_nothing() -> None:
    g = ws.Graph()
    p, labels = g.input("p", (2, 3, 4)), np.array([[1, 1, 0], [2, 2, 2]], np.int32)
    g.set_outputs({"inf": L.ctc_loss(p, labels, reduction="none"), "zero": L.ctc_loss(p, labels, zero_infinity=True)})
    out = ws.build_inference_session(g, device="reference").step(p=RNG.normal(size=(2, 3, 4)).astype(np.float32))
    assert np.isfinite(out["inf"][0])
    assert np.isinf(out["inf"][1])
    assert out["zero"] == pytest.approx(out["inf"][0] / 2 / 2)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda p, t: L.ctc_loss(p, t), r"takes scores \(rows, time, classes\) and labels"),
        (lambda p, t: L.ctc_loss(p.reshape(4, 3, 1), t.reshape(4, 1), blank=1), "blank must be one of the 1 classes"),
        (lambda p, t: L.nll_loss(p, p), "nll_loss needs class indices"),
        (lambda p, t: L.nll_loss(p, t, class_weight=np.ones(2)), r"each class, shape \(3,\); received \(2,\)"),
        (lambda p, t: L.triplet_loss(p, p[:, 0]), r"For triplets of your own use ws.losses.triplet_margin_loss"),
        (lambda p, t: L.supervised_contrastive_loss(p, p[:, 0]), r"takes embeddings \(rows, features\) and integers"),
        (lambda p, t: L.feature_distillation_loss(p[:, 0], p[:, 0]), r"compares a vector of each row, \(rows, feat"),
        (lambda p, t: L.distillation_loss(p, p, temperature=0.0), "temperature must be above 0; received 0.0"),
        (lambda p, t: L.expectile_loss(p, p, expectile=1.0), "expectile must be between 0 and 1; received 1.0"),
        (lambda p, t: L.poly1_loss(p, t, epsilon=-2.0), "epsilon must be at least -1; received -2.0"),
        (lambda p, t: L.arcface_loss(p, t, margin=4.0), "margin must be between 0 and pi; received 4.0"),
        (lambda p, t: L.cox_loss(p[:, 0], p), r"targets \(rows, 2\), time and event .*received \(4,\) and \(4, 3\)"),
        (lambda p, t: L.cox_loss(p[:, 0], p[:, :2].astype("int32")), r"times are floats; received int32. Cast them"),
        (lambda p, t: L.triplet_margin_loss(p, p, p, p=3), "p is 1 or 2; received 3"),
        (lambda p, t: L.tversky_loss(p, t, alpha=-1.0), "alpha must be at least 0; received -1.0"),
    ],
)  # fmt: skip
def test_errors_teach(call: Any, text: str) -> None:
    g = ws.Graph()
    with pytest.raises(ws.errors.WholestepError, match=text):
        call(g.input("p", (4, 3)), g.input("t", (4,), "int32"))


def test_probabilities_where_their_logarithms_belong_are_warned_about() -> None:
    g = ws.Graph()
    with pytest.warns(ws.errors.TrainingWarning, match="write ws.log_softmax in place of softmax"):
        L.nll_loss(ws.softmax(g.input("p", (4, 3))), g.input("t", (4,), "int32"))
