"""Imported networks in runs: from the command line, resumed with every bit, evaluated; and what a mode lacks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app
from wholestep.interop.torch.aten import export

SCRIPT = """
import numpy as np
import torch
from torch import nn

import wholestep as ws


def build(width: int = 6) -> ws.Experiment:
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(24, 4)).astype(np.float32), np.arange(24) % 3
    module = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, 3))
    return ws.Experiment(
        model=ws.from_torch(module, x[:1]),
        data=(x, y), test=(x, y), loss="cross_entropy", metrics=["accuracy"], batch_size=8, epochs=2,
        optimizer=ws.AdamW(lr=0.01), device="reference",
    )
"""


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_an_imported_network_is_trained_resumed_and_evaluated_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(SCRIPT)
    _run("train", "own.py", "--epochs", "2", "--folder", "whole", "--set", "width=5", "--no-progress")
    _run("train", "own.py", "--epochs", "1", "--folder", "parts", "--set", "width=5", "--no-progress")
    _run("train", "--resume", "parts", "--epochs", "2", "--exact", "--no-progress")
    whole, parts = (ws.load_checkpoint(folder) for folder in ("whole", "parts"))
    assert parts.position.epoch == 2
    assert whole.arrays.keys() == parts.arrays.keys()
    assert {"0.weight", "1.running_var"} <= {name.removeprefix("model.") for name in parts.arrays}
    for name, value in whole.arrays.items():  # dropout went on with its draws, statistics with their counts
        np.testing.assert_array_equal(parts.arrays[name], value, err_msg=name)
    said = [_run("evaluate", folder) for folder in ("whole", "parts")]
    assert re.search(r"accuracy +[01]\.\d+", said[0])
    assert said[0].replace("whole", "parts") == said[1]


def test_a_network_that_was_read_from_a_file_goes_on_where_the_imported_one_stopped(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    x = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    ws.from_torch(module, x[:1]).save(tmp_path / "net.safetensors")

    def trained(net: Any, epochs: int, **given: Any) -> Any:
        ws.fit(
            net, (x, np.arange(12) % 3), loss="cross_entropy", optimizer="adam", batch_size=4, epochs=epochs,
            progress=False, device="reference", **given,
        )  # fmt: skip
        return net.state_dict()

    wanted = trained(ws.from_torch(module, x[:1]), 3)
    trained(ws.from_torch(module, x[:1]), 1, checkpoint=tmp_path / "run")
    found = trained(ws.load_network(tmp_path / "net.safetensors"), 3, checkpoint=tmp_path / "run", resume=True)
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_rows_that_are_left_over_count_as_the_others(tmp_path: Path) -> None:
    """Ten rows by fours, in every entry point: the last batch has two, and another capacity is never asked for."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(10, 4)).astype(np.float32), np.arange(10) % 3
    net = ws.from_torch(module, x[:1])
    run = {"loss": "cross_entropy", "batch_size": 4, "shuffle": False, "progress": False}
    ws.fit(net, (x, y), optimizer=ws.SGD(lr=0.1), epochs=1, checkpoint=tmp_path / "run", **run)
    ws.fit(net, (x, y), optimizer=ws.SGD(lr=0.1), epochs=2, checkpoint=tmp_path / "run", resume=True, **run)

    theirs = torch.optim.SGD(module.parameters(), lr=0.1)
    rows, labels = torch.from_numpy(x), torch.from_numpy(y)
    for first in (0, 4, 8, 0, 4, 8):
        theirs.zero_grad()
        nn.functional.cross_entropy(module(rows[first : first + 4]), labels[first : first + 4]).backward()
        theirs.step()
    scores = module.eval()(rows).detach()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value.numpy(), 1e-4, 1e-5, err_msg=name)
    np.testing.assert_allclose(net.predict(x, batch_size=4), scores.numpy(), 1e-4, 1e-5)
    found = net.evaluate(x, y, loss="cross_entropy", metrics=["accuracy"], batch_size=4)
    np.testing.assert_allclose(found["loss"], float(nn.functional.cross_entropy(scores, labels)), 1e-5)
    assert found["accuracy"] == pytest.approx(float((scores.argmax(1) == labels).float().mean()))


class Deciding(nn.Linear):
    """In evaluation it branches on data, which nothing can export."""

    def forward(self, x: Any) -> Any:
        y = super().forward(x)
        return y if self.training or float(y.sum()) > 0.0 else -y


def test_a_mode_that_cannot_be_exported_is_told() -> None:
    x = np.ones((2, 3), np.float32)
    with pytest.warns(ws.errors.TrainingWarning, match=r"cannot export Deciding in eval mode.*compute what training"):
        net = ws.from_torch(Deciding(3, 2), x)
    state = net.state_dict()
    np.testing.assert_allclose(net.predict(x, device="reference"), x @ state["weight"].T + state["bias"], 1e-5)
    with pytest.raises(ws.errors.UsageError, match="cannot export Deciding in eval mode"):
        ws.from_torch(Deciding(3, 2), x, mode="eval")


def test_a_row_that_gives_another_shape_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from wholestep.interop.torch.aten import table

    monkeypatch.setattr(table, "OWN", {})
    ws.torch_op("aten.cosh")(lambda x: x.sum(1))
    with pytest.raises(ws.errors.UnsupportedOpError, match=r"aten\.cosh\.default was recorded with the shape \(batch,"):
        ws.from_torch(_Cosh(), np.ones((2, 3), np.float32))


class _Cosh(nn.Module):
    def forward(self, x: Any) -> Any:
        return torch.cosh(x)


class _Sparing(torch.autograd.Function):
    """Computes again in backward, as reversible layers do: its forward keeps nothing, and says so twice."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        with torch.no_grad():
            return torch.tanh(x @ weight)

    @staticmethod
    def backward(ctx: Any, slope: Any) -> Any:
        x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            again = torch.tanh(x @ weight)
        torch.autograd.backward(again, slope)
        return x.grad, weight.grad


class _Reversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.weight = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 2))

    def forward(self, x: Any) -> Any:
        return _Sparing.apply(self.first(x), self.weight)


def test_no_grad_inside_an_autograd_function_stops_no_gradient() -> None:
    torch.manual_seed(3)
    module, x = _Reversible(), np.random.default_rng(1).standard_normal((5, 3)).astype(np.float32)
    with pytest.warns(ws.errors.TrainingWarning, match="uses _Sparing, whose backward cannot be exported"):
        net, y = ws.from_torch(module, x, mode="train"), np.ones((5, 2), np.float32)
    ws.fit(
        net, (x, y), loss="mse", optimizer=ws.SGD(lr=0.5), epochs=3, batch_size=5, device="reference", progress=False
    )
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    for _ in range(3):
        rule.zero_grad()
        nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
        rule.step()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert torch.is_grad_enabled()
    assert torch.no_grad.__enter__.__module__ == "torch.autograd.grad_mode"


class _Clamping(nn.Module):
    """In place: on values of its own, on one that is read afterwards, and through a view of another."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        alone = nn.functional.hardswish(nn.functional.relu6(4 * self.one(x), inplace=True), inplace=True)
        again = self.two(alone) * 3
        bounded = nn.functional.hardtanh(again, -0.5, 0.5, inplace=True)
        below = alone * 1.0
        nn.functional.hardsigmoid(below.view(-1), inplace=True)
        return self.three(bounded + again + below)


def test_what_is_clamped_in_place_is_seen_by_others() -> None:
    torch.manual_seed(4)
    module, x = _Clamping(), np.random.default_rng(2).standard_normal((5, 3)).astype(np.float32)
    net, y = ws.from_torch(module, x, mode="train"), np.ones((5, 2), np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(net.predict(x, device="reference"), module(torch.tensor(x)), rtol=1e-5, atol=1e-6)
    session = ws.build_session(
        net, inputs=ws.Spec((5, 3)), targets=ws.Spec((5, 2)), loss="mse", optimizer=ws.SGD(lr=0.5), device="reference"
    )
    session.step(x=x, labels=y)
    rule = torch.optim.SGD(module.parameters(), lr=0.5)
    nn.functional.mse_loss(module(torch.tensor(x)), torch.tensor(y)).backward()
    rule.step()
    for name, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_clamps_are_hidden_from_decomposition_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    shown = export._show_clamps
    monkeypatch.setattr(export, "functionalize", lambda program: None)
    monkeypatch.setattr(
        export, "_show_clamps", lambda done: (seen.extend(_ops(done)), shown(done), seen.extend(_ops(done)))
    )
    ws.from_torch(nn.Sequential(nn.Linear(3, 4), nn.ReLU6(inplace=True)), np.ones((5, 3), np.float32), mode="train")
    assert seen.count("wholestep.elementwise.default") == 1
    assert seen.count("aten.hardtanh.default") == 1


def _ops(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph_module.graph.nodes]
