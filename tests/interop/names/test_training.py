"""The habits of a loop: Keras' and torch's words for data, optimizers, callbacks and the history."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
GIVEN: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 8, "progress": False, "device": "reference"}


def model() -> ws.nn.Module:
    return ws.nn.Linear(in_features=3, out_features=2)


def test_batches_are_unpacked() -> None:
    for xb, yb in ws.DataLoader(X, Y, batch_size=8, shuffle=False):
        assert (xb.shape, yb.shape) == ((8, 3), (8,))
    for xb, yb, wb in ws.DataLoader((X, Y, np.ones(24, np.float32)), batch_size=8, num_workers=0, pin_memory=True):
        assert xb.shape[0] == yb.shape[0] == wb.shape[0] == 8
    for (xb,) in ws.DataLoader(dataset=X, batch_size=8):
        assert xb.shape == (8, 3)


def test_a_run_in_keras_words() -> None:
    stop = ws.EarlyStopping("val_loss", patience=5, restore_best_weights=True, verbose=1)
    assert stop.restore_best
    found = ws.fit(
        model(), x=X, y=Y, validation_split=0.25, verbose=0, optimizer="adam", callbacks=[stop], epochs=2,
        loss="cross_entropy", batch_size=8, device="reference", seed=0,
    )  # fmt: skip
    assert found.history["val_loss"] == found["val_loss"]
    assert len(found.history["loss"]) == 2
    same = ws.fit(
        model(), (X[:18], Y[:18]), validation=(X[18:], Y[18:]), optimizer=ws.Adam(learning_rate=1e-3, beta_1=0.9),
        epochs=2, callbacks=[ws.EarlyStopping(patience=5)], seed=0, **GIVEN,
    )  # fmt: skip
    assert same.history["loss"] == found.history["loss"]
    assert same.history["val_loss"] == found.history["val_loss"]


@pytest.mark.parametrize("name", ["sgd", "Adam", "adamw", "rmsprop", "adagrad", "nadam", "adadelta", "lion", "rprop"])
def test_optimizers_have_names(name: str) -> None:
    assert type(ws.optim.get(name)).__name__.lower() == name.lower()


def test_a_session_takes_a_name_too() -> None:
    inputs, targets = ws.Spec(("batch", 3)), ws.Spec(("batch",), "int32")
    session = ws.build_session(
        model(), inputs=inputs, targets=targets, loss=ws.nn.CrossEntropyLoss(), optimizer="sgd", batch_size=8,
        device="reference",
    )  # fmt: skip
    session.set_optimizer("adam")
    assert session.optimizer.beta1 == 0.9
    assert ws.Adam(lr=0.1, fused=True, foreach=None) == ws.Adam(lr=0.1)
    with pytest.raises(UsageError, match=r"Adam has no argument 'clipnorm': gradients are clipped by ws\.fit"):
        ws.Adam(clipnorm=1.0)
    with pytest.raises(UsageError, match=r"optimizer= is the class ws\.SGD; give an instance"):
        ws.fit(model(), (X, Y), optimizer=ws.SGD, **GIVEN)
