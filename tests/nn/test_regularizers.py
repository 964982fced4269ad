"""Regularisers of layers and terms of one's own are added to the loss, logged as its parts, and trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws

RNG = np.random.default_rng(2)
X, Y = RNG.normal(size=(16, 5)).astype(np.float32), RNG.normal(size=(16, 3)).astype(np.float32)


class Net(ws.nn.Module):
    """Every kind of term at once; the second layer runs twice, and its weights count once."""

    def __init__(self) -> None:
        self.first = ws.nn.Linear(5, 4, weight_regularizer=ws.nn.L2(0.03), activity_regularizer=ws.nn.L1(0.02))
        self.second = ws.nn.Linear(4, 4, weight_regularizer=lambda w: 0.05 * abs(w).sum())
        self.last = ws.nn.Linear(4, 3, weight_regularizer=ws.nn.L1L2(0.01, 0.02), activity_regularizer="l2")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        h = ws.tanh(self.first(x))
        h = self.second(self.second(h))
        ws.add_loss(0.1 * (h * h).mean(), "latent")
        return self.last(h)


class Torch(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = torch.nn.Linear(5, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)

    def parts(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        a = self.first(x)
        h = self.second(self.second(torch.tanh(a)))
        out, w = self.last(h), self.last.weight
        return {
            "data": ((out - y) ** 2).mean(),
            "regularization": 0.03 * (self.first.weight**2).sum() + 0.05 * self.second.weight.abs().sum()
            + 0.01 * w.abs().sum() + 0.02 * (w**2).sum(),
            "activity": (0.02 * a.abs().sum() + 0.01 * (out**2).sum()) / len(x),
            "latent": 0.1 * (h * h).mean(),
        }  # fmt: skip


def trained_by_torch(model: ws.nn.Module, epochs: int) -> tuple[Torch, list[dict[str, float]]]:
    theirs = Torch()
    theirs.load_state_dict({name: torch.tensor(a) for name, a in model.state_dict().items()})
    optimizer, logged = torch.optim.SGD(theirs.parameters(), lr=0.1), []
    for _ in range(epochs):
        parts = theirs.parts(torch.tensor(X), torch.tensor(Y))
        optimizer.zero_grad()
        sum(parts.values()).backward()  # type: ignore[union-attr]
        optimizer.step()
        logged.append({name: float(v.detach()) for name, v in parts.items()})
    return theirs, logged


@pytest.mark.parametrize("how", [{}, {"accumulate": 2, "batch_size": 8}], ids=["whole", "in micro-batches"])
def test_terms_are_trained_and_logged_as_parts_of_the_loss(how: dict[str, Any]) -> None:
    model = Net()
    theirs, logged = trained_by_torch(model, 3)
    history = ws.fit(
        model, (X, Y), loss="mse", epochs=3, optimizer=ws.SGD(lr=0.1), shuffle=False, device="reference",
        **{"batch_size": 16, **how},
    )  # fmt: skip
    for name in logged[0]:
        if not how:
            np.testing.assert_allclose(history[f"{name}_loss"], [row[name] for row in logged], rtol=1e-4)
    np.testing.assert_allclose(history["loss"], [sum(row.values()) for row in logged], rtol=1e-4)
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, theirs.state_dict()[name].numpy(), rtol=1e-3, atol=1e-5)


def test_rates_are_runtime_scalars() -> None:
    session = ws.build_session(
        Net(), inputs=ws.Spec(("batch", 5)), targets=ws.Spec(("batch", 3)), loss="mse", batch_size=16,
        device="reference", optimizer=ws.SGD(lr=0.0),
    )  # fmt: skip
    before = float(session.step(x=X, labels=Y).loss)
    weight = session.state_dict()["first.weight"]
    session.scalars["first.weight_regularizer.l2"] = 1.03
    assert float(session.step(x=X, labels=Y).loss) - before == pytest.approx(float((weight**2).sum()), rel=1e-4)


def test_prediction_is_unchanged_and_a_rate_of_zero_leaves_no_trace() -> None:
    plain = ws.nn.Linear(5, 3, weight_regularizer=ws.nn.L2(0.0))
    session = ws.build_session(
        plain, inputs=ws.Spec(("batch", 5)), targets=ws.Spec(("batch", 3)), loss="mse", batch_size=4, device="null"
    )
    with pytest.raises(ws.errors.UnknownNameError, match=r"there are: 'optimizer\.lr'"):
        session.scalars["weight_regularizer.l2"]
    found = plain.state_dict()
    np.testing.assert_allclose(plain.predict(X, device="reference"), X @ found["weight"].T + found["bias"], rtol=1e-5)


def own_step(read: bool) -> ws.Step:
    model = Net()

    @ws.step(inputs={"x": ws.Spec(("batch", 5)), "y": ws.Spec(("batch", 3))})
    def train(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> dict[str, ws.Tensor]:
        data = ws.losses.mse_loss(model(x), y)
        parts = ws.penalties(g) if read else {}
        loss = data + sum(parts.values()) if read else data
        weights = model.traced(g)
        ws.SGD(lr=0.1).update(g, weights, ws.gradients(loss, weights))
        return {"loss": loss, **parts}

    train.model = model  # type: ignore[attr-defined]
    return train


def test_a_step_of_ones_own_asks_for_them_and_may_not_forget() -> None:
    with pytest.raises(
        ws.errors.UsageError, match=r"add the penalties regularization, activity, latent, .* ws.penalties\(g\)"
    ):
        ws.build_session(own_step(read=False), batch_size=16, device="reference")
    train = own_step(read=True)
    theirs, logged = trained_by_torch(train.model, 1)  # type: ignore[attr-defined]
    out = ws.build_session(train, batch_size=16, device="reference").step(x=X, y=Y)
    assert out["latent"] == pytest.approx(logged[0]["latent"], rel=1e-5)
    for name, value in train.model.state_dict().items():  # type: ignore[attr-defined]
        np.testing.assert_allclose(value, theirs.state_dict()[name].numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.nn.Linear(2, 2, weight_regularizer=1e-4), "weight_regularizer is ws.nn.L2.*; received 0.0001"),
        (lambda: ws.nn.L2(-1.0), "a regulariser's l2 must be a number of at least 0; received -1.0"),
        (lambda: ws.add_loss(ws.Graph().input("x", (2,))), "one number, a float scalar; .* Reduce it: term.mean"),
        (lambda: fit_lstm(), "needs a tensor as output of LSTM"),
    ],
)
def test_errors_teach(make: Any, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()


def fit_lstm() -> None:
    layer = ws.nn.LSTM(3, 4)
    layer.activity_regularizer = ws.nn.L2()
    layer(ws.Graph().input("x", ("time", "batch", 3)))
