"""Predictions as probabilities and classes, of any number of rows in constant memory; sessions and copies end well."""

from __future__ import annotations

import copy
import gc
import resource
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
KIND = (X[:, 0] > 0).astype(np.int32) + (X[:, 1] > 0.5)
GIVEN: dict[str, Any] = {
    "batch_size": 8,
    "progress": False,
    "device": "reference",
    "options": quick(),
    "optimizer": ws.SGD(lr=0.5),
}


def trained(loss: Any, y: Any, outputs: int) -> ws.nn.Module:
    model = ws.nn.Linear(3, outputs)
    ws.fit(model, (X, y), loss=loss, epochs=2, **GIVEN)
    return model


def soft(scores: np.ndarray) -> np.ndarray:
    return torch.softmax(torch.tensor(scores), -1).numpy()


def logistic(scores: np.ndarray) -> np.ndarray:
    return torch.sigmoid(torch.tensor(scores)).numpy()


YES = (KIND > 0).astype(np.float32)
MANY = np.stack([YES, 1 - YES], 1)
FORMS: dict[str, tuple[Any, Any, int, Any, Any]] = {
    "classes": ("cross_entropy", KIND, 3, soft, lambda s: s.argmax(1)),
    "yes or no": ("bce", YES, 1, logistic, lambda s: (s > 0).astype(int)),
    "labels": ("bce", MANY, 2, logistic, lambda s: (s > 0).astype(int)),
    "focal": (ws.losses.Loss("focal", gamma=1.0), KIND, 3, soft, lambda s: s.argmax(1)),
}


@pytest.mark.parametrize("form", FORMS)
def test_probabilities_and_classes_follow_from_the_loss(form: str) -> None:
    loss, y, outputs, probable, chosen = FORMS[form]
    model = trained(loss, y, outputs)
    scores = model.predict(X)
    np.testing.assert_allclose(model.predict(X, probabilities=True, batch_size=5), probable(scores), rtol=1e-5)
    np.testing.assert_array_equal(model.predict_classes(X, batch_size=5), chosen(scores))
    twin = copy.deepcopy(model)
    np.testing.assert_array_equal(twin.predict_classes(X), model.predict_classes(X))


def test_a_model_that_met_no_loss_is_told_what_its_scores_are(tmp_path: Path) -> None:
    model = trained("cross_entropy", KIND, 3)
    model.save(tmp_path / "model.safetensors")
    loaded = ws.nn.Linear(3, 3)
    loaded.load(tmp_path / "model.safetensors")
    with pytest.raises(
        ws.errors.UsageError, match=r"what the scores .* Say it: probabilities='softmax' \(one of several"
    ):
        loaded.predict(X, probabilities=True)
    with pytest.raises(ws.errors.UsageError, match="Say it: scores='softmax'"):
        loaded.predict_classes(X)
    np.testing.assert_array_equal(loaded.predict_classes(X, scores="softmax"), model.predict_classes(X))
    np.testing.assert_allclose(loaded.predict(X, probabilities="sigmoid"), logistic(model.predict(X)), rtol=1e-5)
    with pytest.raises(ws.errors.OptionError, match=r"probabilities='tanh': expected 'softmax'"):
        loaded.predict(X, probabilities="tanh")
    loaded.evaluate(X, KIND, loss="cross_entropy")
    np.testing.assert_allclose(loaded.predict(X, probabilities=True).sum(1), 1.0, rtol=1e-6)
    hinge = trained("hinge", KIND, 3)
    with pytest.raises(ws.errors.UsageError, match="a hinge, takes scores that are no logits"):
        hinge.predict(X, probabilities=True)
    np.testing.assert_array_equal(hinge.predict_classes(X), hinge.predict(X).argmax(1))


class Two(ws.nn.Module):
    def __init__(self) -> None:
        self.kind, self.size = ws.nn.Linear(3, 3), ws.nn.Linear(3, 1)

    def forward(self, x: ws.Tensor) -> Any:
        return {"kind": self.kind(x), "size": self.size(x)}


def test_of_several_outputs_those_that_are_scores_change() -> None:
    model = Two()
    ws.fit(model, (X, {"kind": KIND, "size": X[:, :1]}), loss={"kind": "cross_entropy", "size": "mse"}, **GIVEN)
    plain, found = model.predict(X), model.predict(X, probabilities=True)
    np.testing.assert_allclose(found["kind"], soft(plain["kind"]), rtol=1e-5)
    np.testing.assert_array_equal(found["size"], plain["size"])
    np.testing.assert_array_equal(model.predict_classes(X)["kind"], plain["kind"].argmax(1))


def test_a_frame_gives_its_labels_back() -> None:
    frame = ws.data.as_frame({"a": X[:, 0], "b": X[:, 1], "kind": np.array(["cat", "dog", "eel"])[KIND]})
    model = ws.models.Tabular()
    ws.fit(model, (frame, "kind"), loss="cross_entropy", epochs=1, **{**GIVEN, "optimizer": None})
    assert set(model.predict_classes(frame)) <= {"cat", "dog", "eel"}
    np.testing.assert_allclose(model.predict(frame, probabilities=True).sum(1), 1.0, rtol=1e-5)


# -- memory ------------------------------------------------------------------------------------------------------


def test_many_rows_need_the_memory_of_a_batch() -> None:
    """The data is 64 MB on a disk; predicting and evaluating it maps no more than some batches of it."""
    rows, width = 65_536, 256
    source = np.broadcast_to(RNG.normal(size=width), (rows, width))  # 512 MB as float64, were it ever whole
    model = ws.nn.Sequential(ws.nn.Linear(width, 64), ws.nn.ReLU(), ws.nn.Linear(64, 1))
    model.predict(source[:512], batch_size=256)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert model.predict(source, batch_size=256).shape == (rows, 1)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 40_000, f"{grown} kB"


class Rows:
    """A data set that is read row by row, and says which rows it still holds."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        self.asked += 1
        return X[i], KIND[i]


def test_data_that_is_read_row_by_row_is_measured_batch_by_batch() -> None:
    model = ws.nn.Linear(3, 3)
    asked: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy", "f1"]}
    whole = model.evaluate(X, KIND, **asked)
    for data in (Rows(), [(X[:7], KIND[:7]), (X[7:], KIND[7:])], ws.DataLoader(Rows(), batch_size=5)):
        found = model.evaluate(data, **asked)
        assert found == pytest.approx(whole, rel=1e-6), type(data).__name__
    weight = RNG.uniform(0.1, 2.0, 24).astype(np.float32)
    batches = [(X[:7], KIND[:7], weight[:7]), (X[7:], KIND[7:], weight[7:])]
    assert model.evaluate(batches, **asked) == pytest.approx(model.evaluate((X, KIND, weight), **asked), rel=1e-6)
    with pytest.raises(ws.errors.InputError, match="the data is empty: it has no batches"):
        model.evaluate(iter([]), **asked)


def test_rows_may_be_weighed_after_they_were_not() -> None:
    """Metrics of weighed rows add up floats, those of others whole numbers: a model takes both in turn."""
    model, weight = ws.nn.Linear(3, 3), RNG.uniform(0.1, 2.0, 24).astype(np.float32)
    for data in ((X, KIND), (X, KIND, weight), (X, KIND)):
        history = ws.fit(model, data, loss="cross_entropy", metrics=["accuracy"], validation=data, **GIVEN)
        right = model.predict_classes(X) == KIND
        expected = np.average(right, weights=None if len(data) == 2 else weight)
        assert history["val_accuracy"][-1] == pytest.approx(expected, rel=1e-6)


# -- ends --------------------------------------------------------------------------------------------------------


def test_a_session_can_be_closed() -> None:
    model = ws.nn.Linear(3, 3)
    given: dict[str, Any] = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch",), "int32")}
    with ws.build_session(model, **given, loss="cross_entropy", batch_size=8, options=quick()) as session:
        session.step(x=X[:8], labels=KIND[:8])
        after = session.get("weight")
        program = weakref.ref(session._programs.main.program)
    gc.collect()
    assert program() is None
    assert repr(session) == "<Session: closed>"
    np.testing.assert_array_equal(model.state_dict()["weight"], after)
    for use in (
        lambda: session.step(x=X[:8], labels=KIND[:8]),
        lambda: session.run(x=X, labels=KIND),
        lambda: session.predict(x=X),
        lambda: session.evaluate(x=X, labels=KIND),
        lambda: session.report(),
        lambda: session.plan,
        lambda: session.set_optimizer(ws.Adam()),
        lambda: ws.Trainer(session).train(ws.DataLoader(X, KIND, 8), 1),
    ):
        with pytest.raises(
            ws.errors.UsageError, match=r"this session is closed; build another one\. The model still works"
        ):
            use()
    session.close()
    assert model.predict(X).shape == (24, 3)


def test_copies_before_and_after_training_are_apart() -> None:
    fresh = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.BatchNorm1d(4), ws.nn.Linear(4, 3))
    before = copy.deepcopy(fresh)
    ws.fit(fresh, (X, KIND), loss="cross_entropy", **{**GIVEN, "optimizer": ws.optim.EMA(ws.SGD(lr=0.5))})
    after = copy.deepcopy(fresh)
    for name, array in fresh.state_dict().items():
        np.testing.assert_array_equal(after.state_dict()[name], array)
    scores = fresh.predict(X)
    np.testing.assert_array_equal(after.predict(X), scores)
    assert not np.array_equal(before.predict(X), scores)
    ws.fit(after, (X, KIND), loss="cross_entropy", **GIVEN)
    np.testing.assert_array_equal(fresh.predict(X), scores)
    assert not np.array_equal(after.predict(X), scores)


def test_a_summary_needs_no_argument_once_data_was_seen() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 3))
    with pytest.raises(
        ws.errors.UsageError, match=r'has not seen data yet; say .*model.summary\(ws.Spec\(\("batch", 3\)\)\)'
    ):
        model.summary()
    told = str(model.summary(ws.Spec(("batch", 3))))
    model.predict(X)
    assert str(model.summary()) == told
    image = ws.nn.Sequential(ws.nn.Conv2d(2, 4, 3), ws.nn.Flatten())
    with pytest.raises(ws.errors.UsageError, match=r'ws.Spec\(\("batch", 2, 28, 28\)\)'):
        image.summary()
    with pytest.raises(ws.errors.UsageError, match=r'ws.Spec\(\("batch", "time"\), "int32"\)'):
        ws.nn.Embedding(5, 2).summary()
    two = Two()
    ws.fit(two, (X, {"kind": KIND, "size": X[:, :1]}), loss={"kind": "cross_entropy", "size": "mse"}, **GIVEN)
    assert "kind Linear" in str(two.summary())
