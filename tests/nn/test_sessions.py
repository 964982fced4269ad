"""Sessions over modules: one state, several entry points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(48, 6)).astype(np.float32), RNG.integers(0, 3, 48)
SPECS = {"inputs": ws.Spec(("batch", 6)), "targets": ws.Spec(("batch",), "int32")}


def mlp() -> ws.nn.Sequential:
    return ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.ReLU(), ws.nn.Linear(8, 3))


def test_a_session_trains_the_models_own_numbers_as_torch_does() -> None:
    model = mlp()
    twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    model.load_state_dict(twin.state_dict())
    session = ws.build_session(model, **SPECS, loss="cross_entropy", optimizer=ws.SGD(lr=0.1), batch_size=16)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for start in (0, 16, 32):
        rows = slice(start, start + 16)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(twin(torch.tensor(X[rows])), torch.tensor(Y[rows]))
        loss.backward()
        optimizer.step()
        assert float(session.step(x=X[rows], labels=Y[rows])) == pytest.approx(float(loss.detach()), rel=1e-5)
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(model.state_dict()[name], value.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model(X), twin(torch.tensor(X)).detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(session.predict(x=X[:16]), model(X[:16]), rtol=1e-6)


def test_metrics_and_schedules_come_with_it() -> None:
    session = ws.build_session(
        mlp(), **SPECS, loss="cross_entropy", optimizer=ws.Adam(), metrics=["accuracy"], batch_size=48
    )
    result = session.step(x=X, labels=Y)
    assert 0.0 <= result.metrics["accuracy"] <= 1.0


def test_frozen_parameters_stay() -> None:
    model = mlp().freeze("0.*")
    before = model.state_dict()
    session = ws.build_session(model, **SPECS, loss="cross_entropy", optimizer=ws.SGD(lr=0.5), batch_size=48)
    session.step(x=X, labels=Y)
    changed = {name for name, value in model.state_dict().items() if (value != before[name]).any()}
    assert changed == {"2.weight", "2.bias"}


def test_several_inputs_outputs_and_weights() -> None:
    class Two(ws.nn.Module):
        def __init__(self) -> None:
            self.left, self.right = ws.nn.Linear(6, 4), ws.nn.Linear(2, 4)
            self.kind, self.size = ws.nn.Linear(4, 3), ws.nn.Linear(4, 1)

        def forward(self, a: ws.Tensor, b: ws.Tensor) -> dict[str, ws.Tensor]:
            h = ws.relu(self.left(a) + self.right(b))
            return {"kind": self.kind(h), "size": self.size(h)}

    model = Two()
    session = ws.build_session(
        model,
        inputs={"a": ws.Spec(("batch", 6)), "b": ws.Spec(("batch", 2))},
        targets={
            "kind": ws.Spec(("batch",), "int32"),
            "size": ws.Spec(("batch", 1)),
            "sample_weight": ws.Spec(("batch",)),
        },
        loss={"kind": "cross_entropy", "size": "mse"},
        batch_size=48,
    )
    b, size, weight = X[:, :2], X[:, :1], np.ones(48, np.float32)
    weight[24:] = 0.0
    given = {"a": X, "b": b, "kind": Y, "size": size, "sample_weight": weight}
    out = model.predict(a=X[:24], b=b[:24])
    expected = torch.nn.functional.cross_entropy(torch.tensor(out["kind"]), torch.tensor(Y[:24]))
    expected = expected + torch.nn.functional.mse_loss(torch.tensor(out["size"]), torch.tensor(size[:24]))
    assert float(session.step(given)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"loss": "mse"}, "add inputs=ws.Spec"),
        ({"inputs": ws.Spec(("batch", 6))}, 'add loss="cross_entropy"'),
        ({"inputs": (32, 6), "loss": "mse"}, "needs a ws.Spec"),
        ({**SPECS, "loss": "crossentropy"}, "there is no loss 'crossentropy'. Did you mean 'cross_entropy'"),
        ({**SPECS, "loss": {"a": "mse"}}, r"loss\['a'\] needs an output and a target of that name"),
    ],
)
def test_errors_teach(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        ws.build_session(mlp(), **arguments, batch_size=4)


def test_a_graph_describes_itself() -> None:
    with pytest.raises(ws.errors.UsageError, match="describe a module"):
        ws.build_session(ws.Graph(), loss="mse")
