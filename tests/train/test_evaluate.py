"""`model.evaluate`: NumPy in, numbers out, with nothing changed."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
Y = (X @ [1.0, -1.0, 0.5] > 0).astype(np.int32)


@pytest.fixture(scope="module")
def model() -> ws.nn.Module:
    made = ws.nn.Sequential(ws.nn.Linear(3, 8), ws.nn.Dropout(0.5), ws.nn.Linear(8, 2))
    ws.fit(made, (X, Y), loss="cross_entropy", epochs=2, batch_size=8, progress=False)
    return made


def by_hand(model: ws.nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    scores = model.predict(x).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    own = logs[np.arange(len(y)), y]
    return -own.mean(), (scores.argmax(axis=1) == y).mean(), roc_auc_score(y, scores[:, 1] - scores[:, 0])


@pytest.mark.parametrize("batch_size", [256, 16])  # all rows at once; three batches, the last one smaller
def test_loss_and_metrics_are_those_of_all_rows(model: ws.nn.Module, batch_size: int) -> None:
    before = model.state_dict()
    found = model.evaluate(X, Y, loss="cross_entropy", metrics=["accuracy", ws.metrics.RocAuc()], batch_size=batch_size)
    loss, accuracy, auc = by_hand(model, X, Y)
    assert list(found) == ["loss", "accuracy", "roc_auc"]
    assert found == pytest.approx({"loss": loss, "accuracy": accuracy, "roc_auc": auc}, rel=1e-5)
    assert all(type(v) is float for v in found.values())
    assert all(a.tobytes() == before[n].tobytes() for n, a in model.state_dict().items())


def test_fewer_rows_another_loss_and_whole_data(model: ws.nn.Module) -> None:
    loss, _, auc = by_hand(model, X[:7], Y[:7])
    smoothed = ws.losses.Loss("cross_entropy", label_smoothing=0.0)
    assert model.evaluate((X[:7], Y[:7]), loss=smoothed, metrics="roc_auc") == pytest.approx(
        {"loss": loss, "roc_auc": auc}, rel=1e-5
    )
    loader = ws.DataLoader(X[:7], Y[:7], 3)
    assert model.evaluate(loader, loss=ws.losses.cross_entropy)["loss"] == pytest.approx(loss, rel=1e-5)


def test_rows_are_weighed(model: ws.nn.Module) -> None:
    weight = np.zeros(40, np.float32)
    weight[:5] = 1.0
    found = model.evaluate(X, Y, loss="cross_entropy", sample_weight=weight)
    assert found["loss"] == pytest.approx(by_hand(model, X[:5], Y[:5])[0], rel=1e-5)


def test_it_sees_what_training_changed(model: ws.nn.Module) -> None:
    before = model.evaluate(X, Y, loss="cross_entropy")["loss"]
    ws.fit(model, (X, Y), loss="cross_entropy", optimizer=ws.SGD(lr=0.5), batch_size=8, progress=False)
    after = model.evaluate(X, Y, loss="cross_entropy")["loss"]
    assert after != before
    assert after == pytest.approx(by_hand(model, X, Y)[0], rel=1e-5)


def test_a_model_that_was_never_trained_and_its_session_is_kept() -> None:
    fresh = ws.nn.Linear(3, 2)
    found = fresh.evaluate(X, Y, loss="cross_entropy")
    assert found["loss"] == pytest.approx(by_hand(fresh, X, Y)[0], rel=1e-5)
    (kept,) = fresh.__dict__["_evaluators"].values()
    fresh.evaluate(X[:33], Y[:33], loss="cross_entropy")  # the same power of two
    assert list(fresh.__dict__["_evaluators"].values()) == [kept]


@pytest.mark.parametrize(
    ("evaluate", "text"),
    [
        (lambda m: m.evaluate(X, loss="cross_entropy"), "there are no targets"),
        (lambda m: m.evaluate(X, Y + 1, loss="cross_entropy"), "labels go up to 2, .*the model has 2 outputs"),
        (lambda m: m.evaluate(X * np.nan, Y, loss="cross_entropy"), "'x' holds nan"),
        (lambda m: m.evaluate(X[:, :2], Y, loss="cross_entropy"), r"takes 3 features .*; received \(batch, 2\)"),
        (lambda m: m.evaluate(X, Y, loss="cross_entropy", batch_size=0), "batch_size must be an integer of at least 1"),
        (lambda m: m.evaluate(X, Y, loss="cross_entropy", metrics=["acuracy"]), "no metric 'acuracy'"),
    ],
)
def test_mistakes(model: ws.nn.Module, evaluate, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        evaluate(model)


def test_a_loss_that_cannot_be_cut_is_averaged_by_rows_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each row against the mean of its batch: 40 rows in batches of 16 are 16, 16 and 8."""

    def spread(output: ws.Tensor, target: ws.Tensor) -> ws.Tensor:
        return ((output - output.mean(0) - target) ** 2).mean()

    model, aims = ws.nn.Linear(3, 2), np.zeros((40, 2), np.float32)
    history = ws.fit(model, (X, aims), validation=(X, aims), loss=spread, epochs=3, batch_size=16, progress=False)
    parts = np.split(model.predict(X).astype(np.float64), [16, 32])
    expected = sum(len(p) * ((p - p.mean(0)) ** 2).mean() for p in parts) / 40
    assert history["val_loss"][-1] == pytest.approx(expected, rel=1e-5)
    said = [r.message for r in caplog.records if "mean of the losses of batches, weighted by rows" in r.message]
    assert len(said) == 1
    assert "`expand`" in said[0]
    assert "Build with a batch_size that holds all rows." in said[0]


class Forecaster(ws.nn.Module):
    """Sequences with the batch first, read by a layer that has its steps first."""

    def __init__(self) -> None:
        self.lstm, self.head = ws.nn.LSTM(2, 4, batch_first=True), ws.nn.Linear(4, 1)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        outputs, _ = self.lstm(x)
        return self.head(outputs[:, -1])


def test_sequences_are_cut_into_batches(caplog: pytest.LogCaptureFixture) -> None:
    """Validation of more rows than a batch, and a step of two batches, are those of all rows at once."""
    x = RNG.normal(size=(20, 5, 2)).astype(np.float32)
    y = x.sum(axis=(1, 2))[:, None]
    one, two = Forecaster(), Forecaster()
    history = ws.fit(one, (x, y), validation=(x, y), loss="mse", batch_size=8, shuffle=False, seed=0, progress=False)
    assert history["val_loss"][0] == pytest.approx(((one.predict(x) - y) ** 2).mean(), rel=1e-5)
    ws.fit(two, (x, y), loss="mse", batch_size=4, accumulate=2, shuffle=False, seed=0, progress=False)
    for name, array in one.state_dict().items():
        np.testing.assert_allclose(two.state_dict()[name], array, rtol=1e-5, atol=1e-6)
    assert "by rows" not in caplog.text
