"""The LSTM language model against a torch twin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import ShapeError

VOCABULARY, WIDTH, TIME = 11, 20, 7


class Twin(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.decoder = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.lstm(self.encoder(tokens))[0])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("float64", 1e-9)])
def test_loss_and_every_gradient_equal_torch(dtype: str, tolerance: float) -> None:
    model, twin = ws.models.lstm_lm(VOCABULARY, width=WIDTH, layers=2, dtype=dtype), Twin().to(getattr(torch, dtype))
    g = ws.Graph()
    x, y = (g.input(name, ("batch", TIME), "int32") for name in ("x", "labels"))
    loss = ws.losses.cross_entropy(model(x), y)
    grads = ws.gradients(loss, model)
    g.set_outputs({"loss": loss, **{f"{name}.grad": d for name, d in grads.items()}})
    session = ws.build_inference_session(g, capacity={"batch": 6}, threads=2)
    for name, value in twin.state_dict().items():
        session.set(name, value.numpy())
    rng = np.random.default_rng(0)
    tokens, labels = (rng.integers(0, VOCABULARY, (5, TIME)).astype(np.int32) for _ in range(2))
    session.step(x=tokens, labels=labels)
    scores = twin(torch.tensor(tokens).long())
    want = torch.nn.functional.cross_entropy(scores.reshape(-1, VOCABULARY), torch.tensor(labels).reshape(-1).long())
    want.backward()
    assert session.get("loss") == pytest.approx(want.item(), rel=tolerance)
    largest = max(float(p.grad.abs().max()) for p in twin.parameters())
    for name, p in twin.named_parameters():
        scale = max(float(p.grad.abs().max()), 1e-4 * largest)
        assert np.abs(session.get(f"{name}.grad") - p.grad.numpy()).max() <= tolerance * scale, name


def test_it_learns_to_repeat() -> None:
    """The next token is the one before: a few steps are enough."""
    model = ws.models.lstm_lm(4, width=16, layers=1)
    spec = ws.Spec(("batch", 8), "int32")
    session = ws.build_session(
        model, inputs=spec, targets=spec, loss="cross_entropy", optimizer=ws.Adam(lr=0.05), batch_size=16
    )
    x = np.random.default_rng(0).integers(0, 4, (16, 1)).repeat(8, axis=1).astype(np.int32)
    losses = [float(session.step(x=x, labels=x)) for _ in range(40)]
    assert losses[0] > 1.2
    assert losses[-1] < 0.1


def test_tied_weights_are_one_array() -> None:
    model = ws.models.lstm_lm(5, width=8, layers=1, tied=True)
    assert model.decoder.weight is model.encoder.weight


def test_another_shape_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"lstm_lm takes tokens of shape \(batch, time\)"):
        ws.models.lstm_lm(5, width=8)(ws.Graph().input("x", ("batch",), "int32"))
