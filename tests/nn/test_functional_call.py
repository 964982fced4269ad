"""A module with other tensors in the place of its parameters; slices along symbolic dimensions; torch is the judge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = RNG.normal(size=(6, 1)).astype(np.float32)


def test_maml_of_a_module_is_torchs() -> None:
    """One inner step by the first half of a batch, the loss of the second half after it, trained through both."""
    net = ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.Tanh(), ws.nn.Linear(4, 1))
    start = {name: RNG.normal(size=a.shape).astype(np.float32) for name, a in net.state_dict().items()}
    net.load_state_dict(start)

    @ws.step(inputs={"x": ws.Spec((6, 3)), "y": ws.Spec((6, 1))})
    def meta(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> Any:
        inner = ws.losses.mse_loss(net(x[:3]), y[:3])
        own = net.traced(g)
        fast = {name: own[name] - 0.1 * slope for name, slope in ws.gradients(inner, own).items()}
        loss = ws.losses.mse_loss(ws.nn.functional_call(net, fast, x[3:]), y[3:])
        plain = ws.losses.mse_loss(net(x[3:]), y[3:])  # the module itself is as before
        ws.SGD(lr=0.1).update(g, own, ws.gradients(loss, own))
        return {"loss": loss, "plain": plain}

    session = ws.build_session(meta, device="reference", options=quick())
    twin = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    twin.load_state_dict({name: torch.tensor(a) for name, a in start.items()})
    x, y = torch.tensor(X), torch.tensor(Y)
    for _ in range(3):
        result = session.step(x=X, y=Y)
        own = dict(twin.named_parameters())
        inner = torch.nn.functional.mse_loss(twin(x[:3]), y[:3])
        slopes = torch.autograd.grad(inner, list(own.values()), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(own.items(), slopes, strict=True)}
        loss = torch.nn.functional.mse_loss(torch.func.functional_call(twin, fast, x[3:]), y[3:])
        assert result.loss == pytest.approx(loss.item(), rel=1e-5)
        assert float(result.plain) == pytest.approx(torch.nn.functional.mse_loss(twin(x[3:]), y[3:]).item(), rel=1e-5)
        for p, g in zip(own.values(), torch.autograd.grad(loss, list(own.values())), strict=True):
            p.data -= 0.1 * g
    for name, array in net.state_dict().items():
        np.testing.assert_allclose(array, dict(twin.named_parameters())[name].detach().numpy(), rtol=1e-4, atol=1e-6)


def test_what_a_functional_call_cannot_do_is_told() -> None:
    net, g = ws.nn.Linear(3, 1), ws.Graph()
    x = g.input("x", ("batch", 3))
    with pytest.raises(ws.errors.UnknownNameError, match="the module has no parameter 'weights'; it has: weight, bias"):
        ws.nn.functional_call(net, {"weights": x}, x)
    with pytest.raises(ws.errors.ShapeError, match=r"'weight' is float32\[1, 3\]; received float32"):
        ws.nn.functional_call(net, {"weight": x}, x)
    with pytest.raises(
        ws.errors.UsageError, match="functional_call: 'weight' is a tensor of the graph; received ndarray"
    ):
        ws.nn.functional_call(net, {"weight": X}, x)  # type: ignore[dict-item]
    with pytest.raises(
        ws.errors.UsageError, match=r"records a module on tensors, in a @ws.step or a graph; received none"
    ):
        ws.nn.functional_call(net, {}, X)


# -- slices ------------------------------------------------------------------------------------------------------

SLICES = {
    "the first": lambda x: x[:, :1],
    "the last": lambda x: x[:, -1:],
    "all but the first": lambda x: x[:, 1:],
    "all but the last": lambda x: x[:, :-1],
    "whole": lambda x: x[:, : x.shape[1]],
}


def test_slices_along_a_symbolic_dimension_are_numpys() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", "time", 2))
    table = g.parameter("table", (8, 2), init=np.arange(16, dtype=np.float32).reshape(8, 2))
    outputs = {name: cut(x) for name, cut in SLICES.items()}
    rows, length = x + table[: x.shape[1]], x.shape[1]
    wide = (table.T)[:, :length]
    g.set_outputs({"loss": (rows * rows).mean(), "rows": rows, "wide": wide, **outputs})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), capacity={"batch": 2, "time": 8}, options=quick())
    for time in (1, 2, 5, 8):
        session.set("table", np.arange(16, dtype=np.float32).reshape(8, 2))
        given = RNG.normal(size=(2, time, 2)).astype(np.float32)
        result = session.step(x=given)
        before = np.arange(16, dtype=np.float32).reshape(8, 2)
        np.testing.assert_allclose(result["rows"], given + before[:time], rtol=1e-6)
        np.testing.assert_allclose(result["wide"], before.T[:, :time], rtol=1e-6)
        for name, cut in SLICES.items():
            np.testing.assert_array_equal(result[name], cut(given), err_msg=f"{name} of {time}")
        slope = 2 * (given + before[:time]).sum(0) / given.size
        np.testing.assert_allclose(session.get("table")[:time], before[:time] - 0.1 * slope, rtol=1e-5)
        np.testing.assert_array_equal(session.get("table")[time:], before[time:])


def test_slices_that_may_not_exist_are_refused() -> None:
    g = ws.Graph()
    x, table = g.input("x", ("batch", "time", 2)), g.parameter("table", (8, 2))
    with pytest.raises(ws.errors.ShapeError, match=r"\[:2\] may be out of range .*\[:1\], \[-1:\], \[1:\]"):
        x[:, :2]
    with pytest.raises(
        ws.errors.ShapeError, match=r"with a step of 1. For others use a gather: x\[ws.arange\(time\) \+ 3"
    ):
        table[1 : x.shape[1]]


def test_positions_by_arange_train_as_torch_does() -> None:
    class Placed(ws.nn.Module):
        def __init__(self) -> None:
            self.words, self.places = ws.nn.Embedding(5, 3), ws.nn.Embedding(8, 3)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return self.words(x) + self.places(ws.arange(x.shape[1]))

    model, words = Placed(), RNG.integers(0, 5, (4, 6)).astype(np.int32)
    start = model.state_dict()
    aim = RNG.normal(size=(4, 6, 3)).astype(np.float32)
    given: dict[str, Any] = {"optimizer": ws.SGD(lr=1.0), "batch_size": 4, "progress": False, "shuffle": False}
    history = ws.fit(model, (words, aim), loss="mse", epochs=2, device="reference", **given)
    tables = [torch.tensor(start[name], requires_grad=True) for name in ("words.weight", "places.weight")]
    for epoch in range(2):
        loss = torch.nn.functional.mse_loss(tables[0][torch.tensor(words).long()] + tables[1][:6], torch.tensor(aim))
        assert history["loss"][epoch] == pytest.approx(loss.item(), rel=1e-5)
        for p, g in zip(tables, torch.autograd.grad(loss, tables), strict=True):
            p.data -= g
