"""Programs that are functionalized node by node: the same graph as by torch's own decomposition, and torch's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.interop.torch.aten import export
from wholestep.interop.torch.aten.functionalize import FunctionalProgram, functionalize


class Called(torch.nn.Module):
    """A function of the input and of a parameter."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.w = function, torch.nn.Parameter(torch.linspace(-1.0, 1.0, 12).reshape(3, 4))

    def forward(self, x: Any) -> Any:
        return self.function(x * 2.0, self.w)


class Images(torch.nn.Module):
    """Statistics that change, ops in place, a padded image, a dropped row."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(2, 4, 3, stride=2, padding=1), torch.nn.BatchNorm2d(4)
        self.last = torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        h = F.silu(self.norm(self.conv(F.pad(x, (1, 0, 2, 1)))), inplace=True)
        h += 1.0
        rows = h.new_empty(h.shape[0], 1, 1, 1).bernoulli_(0.5).div_(0.5)
        h = F.dropout(torch.flatten((h * rows).mean((2, 3)), 1), 0.1, self.training)
        return self.last(F.dropout(h, 0.2, self.training, inplace=True))


def written_slices(x: Any, w: Any) -> Any:
    y = x.new_zeros(3, 4)
    for i, rows in enumerate((slice(0, 1), slice(1, 3))):
        y[rows, 1:3] = float(i + 1)
    y[2] = w[0]
    return x @ y.T


def view_of_what_is_written(x: Any, w: Any) -> Any:
    y = x + w
    part, y_t = y[:, 1:], y.transpose(0, 1)
    y.mul_(3.0)
    return part.sum() + (y_t * w.T).sum() + y.sum()


def written_view(x: Any, w: Any) -> Any:
    y = x * w
    part = y[1:, ::2]
    part.add_(w[1:, ::2])
    return y * part.sum()


DIRECT: dict[str, Callable[..., Any]] = {
    "slices": written_slices,
    "a view of what is written": view_of_what_is_written,
    "a written view": written_view,
    "the last name of a value": lambda x, w: torch.flatten(x * w).clamp_(0.0, 1.0).sum(),
    "a result that nobody reads": lambda x, w: F.adaptive_max_pool2d((x * w)[None], 2),
    "chunks": lambda x, w: sum(part.relu() for part in (x * w).chunk(2, 1)),
    "dropout that is off": lambda x, w: F.dropout(x * w, 0.5, False) + F.dropout(x, 0.0, True),
}
# Torch views what was written again; here the written value is known.
OTHER_GRAPH = ("a written view", "the last name of a value")
BY_TORCH: dict[str, Callable[..., Any]] = {
    "complex numbers": lambda x, w: torch.view_as_real(torch.fft.rfft(x * w)),
    "an op without a row": lambda x, w: torch.hstack((x, w)),
    "a write to what may be a copy": lambda x, w: (lambda y: y.reshape(-1).mul_(2.0).sum() + y.sum())(x * w),
    "a region without gradients": lambda x, w: x * w + _without_gradient(w),
}


def _without_gradient(w: Any) -> Any:
    with torch.no_grad():
        return w * 2.0


def imported(
    module: Any, example: Any, monkeypatch: Any, by_torch: bool, batch: str | None = "batch"
) -> tuple[Any, list[Any]]:
    """An imported network, and what `functionalize` returned for each mode."""
    results: list[Any] = []

    def functional(program: Any) -> FunctionalProgram | None:
        results.append(None if by_torch else functionalize(program))
        return results[-1]

    monkeypatch.setattr(export, "functionalize", functional)
    return ws.from_torch(module, example, batch=batch), results


@pytest.mark.parametrize("name", [*DIRECT, *BY_TORCH])
def test_functions_have_the_graph_and_the_values_of_torch(name: str, monkeypatch: Any) -> None:
    function = {**DIRECT, **BY_TORCH}[name]
    module, x = Called(function), torch.linspace(-2.0, 1.0, 12).reshape(3, 4)
    net, results = imported(module, x, monkeypatch, by_torch=False, batch=None)
    graph = expand_gradients(net._program.graph)
    state = {"w": module.w.detach().numpy()}
    (value,) = interpret(graph, inputs={"x": x.numpy()}, state=state).outputs.values()
    np.testing.assert_allclose(value, module(x).detach().numpy(), 1e-5, 1e-6)
    assert all((result is not None) == (name in DIRECT) for result in results)
    other, _ = imported(module, x, monkeypatch, by_torch=True, batch=None)
    same = fingerprint(net._program.graph) == fingerprint(other._program.graph)
    assert same == (name not in OTHER_GRAPH)


def test_images_train_as_those_that_torch_decomposes(monkeypatch: Any) -> None:
    """Buffers change in both, in the same order, and the random keys are the same."""
    x, labels = torch.randn(6, 2, 9, 8, generator=torch.Generator().manual_seed(1)), np.arange(6) % 3
    losses, states = [], []
    module = Images()
    for by_torch in (False, True):
        net, results = imported(module, x, monkeypatch, by_torch)
        assert by_torch or None not in results
        session = ws.build_session(
            net, inputs=ws.Spec(("batch", 2, 9, 8)), targets=ws.Spec(("batch",), "int64"), loss="cross_entropy",
            optimizer=ws.SGD(lr=0.1), batch_size=6, device="reference", seed=0,
            options=ws.CompileOptions(cache=False, verify=False),
        )  # fmt: skip
        losses.append([float(session.step(x=x.numpy(), labels=labels)) for _ in range(3)])
        states.append(session.state_dict())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    for name, value in states[0].items():
        np.testing.assert_allclose(value, states[1][name], 1e-4, 1e-6, err_msg=name)
    assert states[0]["norm.num_batches_tracked"] == 3
