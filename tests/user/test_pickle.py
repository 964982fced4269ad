"""Every kind of object that users pass between processes or copy: `pickle` and `copy.deepcopy` give an equal one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.interop.onnx.networks import small_networks
from tests.metrics.cases import CASES as METRICS
from tests.metrics.cases import case_data
from tests.optim.table import ROWS as OPTIMIZERS
from tests.schedules.cases import CASES as SCHEDULES

X = np.random.default_rng(0).standard_normal((8, 6)).astype("f4")
Y = np.random.default_rng(1).integers(0, 3, 8).astype("i4")
HOW: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301  (of our own making)
    "deepcopy": copy.deepcopy,
}
both = pytest.mark.parametrize("how", HOW)


# -- models ------------------------------------------------------------------------------------------------------


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(6, 5), ws.nn.ReLU(), ws.nn.Linear(5, 3))


def with_lora(dropout: float = 0.0) -> ws.nn.Module:
    model = mlp()
    ws.nn.lora(model, rank=2, dropout=dropout)
    return model


def lora_over_weight_norm() -> ws.nn.Module:
    """Two classes made at run time, one over the other."""
    model = with_lora()
    ws.nn.weight_norm(model[0])  # type: ignore[index]
    return model


class Wide(torch.nn.Module):
    """Deeper than `pickle` follows nodes that hold each other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        for _ in range(300):
            x = x + 0.001 * self.first.bias
        return self.last(x)


def from_torch() -> ws.nn.Module:
    return ws.from_torch(torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 3)), X)


def from_file(folder: Path) -> ws.nn.Module:
    from_torch().save(folder / "net.safetensors")
    return ws.load_network(folder / "net.safetensors")


def from_onnx(folder: Path) -> ws.nn.Module:
    ws.export_onnx(mlp(), folder / "net.onnx", example=X)
    return ws.from_onnx(folder / "net.onnx")


MODELS: dict[str, Callable[[Path], ws.nn.Module]] = {
    "mlp": lambda _: mlp(),
    "lora": lambda _: with_lora(),
    "lora with dropout": lambda _: with_lora(0.5),
    "weight norm": lambda _: ws.nn.Sequential(ws.nn.weight_norm(ws.nn.Linear(6, 3))),
    "spectral norm": lambda _: ws.nn.Sequential(ws.nn.spectral_norm(ws.nn.Linear(6, 3), iterations=2)),
    "lora over weight norm": lambda _: lora_over_weight_norm(),
    "from torch": lambda _: from_torch(),
    "from torch, deep": lambda _: ws.from_torch(Wide(), X),
    "load_network": from_file,
    "from onnx": from_onnx,
}


def trained(model: ws.nn.Module) -> list[float]:
    options = {"loss": "cross_entropy", "optimizer": ws.SGD(0.1), "epochs": 2, "progress": False, "shuffle": False}
    return list(ws.fit(model, (X, Y), **options)["loss"])


@both
@pytest.mark.parametrize("name", MODELS)
def test_models_predict_and_train_alike(name: str, how: str, tmp_path: Path) -> None:
    model = MODELS[name](tmp_path)
    model.predict(X)  # with sessions that it has compiled
    other = HOW[how](model)
    np.testing.assert_array_equal(other.predict(X), model.predict(X))
    assert [n for n, p in other.parameters().items() if p.frozen] == [
        n for n, p in model.parameters().items() if p.frozen
    ]
    assert type(other).__name__ == type(model).__name__
    if "deep" not in name and "dropout" not in name:
        before = other.state_dict()
        losses = trained(model)
        for key, array in before.items():  # the two share nothing
            np.testing.assert_array_equal(other.state_dict()[key], array, err_msg=key)
        assert trained(other) == losses
    np.testing.assert_array_equal(HOW[how](other).predict(X), other.predict(X))  # and once more


@both
@pytest.mark.parametrize("name", small_networks())
def test_layers_of_every_kind_predict_alike(name: str, how: str) -> None:
    model, arrays = small_networks()[name]
    ours, theirs = (m.predict(*arrays, device="reference") for m in (model, HOW[how](model)))
    for a, b in zip(*(p if isinstance(p, tuple) else [p] for p in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)


@both
def test_adapters_are_merged_after_the_journey(how: str) -> None:
    model = mlp()
    adapters = ws.nn.lora(model, rank=2)
    trained(model)
    other = HOW[how](adapters)
    np.testing.assert_array_equal(other.state_dict()["0.lora_B.weight"], adapters.state_dict()["0.lora_B.weight"])
    np.testing.assert_allclose(other.merge().predict(X), model.predict(X), 1e-5, 1e-6)


def test_a_network_from_torch_keeps_its_module_in_a_copy_and_not_in_a_pickle() -> None:
    class Local(torch.nn.Linear):
        """Of a class that nothing can be pickled of."""

    net = ws.from_torch(Local(6, 3), X)
    assert type(copy.deepcopy(net).to_torch()) is Local
    assert copy.deepcopy(net).to_torch() is not net.to_torch()
    read = HOW["pickle"](net)
    with pytest.raises(ws.errors.UsageError, match=r"a file or a pickle, without its module: say to_torch\(module\)"):
        read.to_torch()
    np.testing.assert_array_equal(read.to_torch(torch.nn.Linear(6, 3)).weight.detach(), net.state_dict()["weight"])


# -- what a run consists of --------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str, how: str) -> None:
    optimizer = OPTIMIZERS[name].ours
    assert HOW[how](optimizer) == optimizer


@both
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "lambda"])
def test_schedules(name: str, how: str) -> None:
    schedule = SCHEDULES[name].schedule
    other = HOW[how](schedule)
    assert other == schedule
    assert [other(n) for n in range(40)] == [schedule(n) for n in range(40)]


PLANNED = {
    "cosine": ws.schedules.cosine(warmup=3, eta_min=0.01),
    "linear": ws.schedules.linear(0.5, end=0.1),
    "polynomial": ws.schedules.polynomial(power=0.9),
    "one_cycle": ws.schedules.one_cycle(0.1),
    "constant": ws.schedules.constant(warmup=2),
}


@both
@pytest.mark.parametrize("name", PLANNED)
def test_schedules_of_a_length_that_is_not_known_yet(name: str, how: str) -> None:
    runs = [s.over(20) if hasattr(s, "over") else s for s in (PLANNED[name], HOW[how](PLANNED[name]))]
    one, two = (run.bound(0.3) for run in runs)
    assert [one(n) for n in range(20)] == [two(n) for n in range(20)]


@both
@pytest.mark.parametrize("name", sorted(ws.losses.LOSSES))
def test_losses(name: str, how: str) -> None:
    loss = ws.losses.get(name)
    assert HOW[how](loss) == loss


@both
@pytest.mark.parametrize("name", METRICS)
def test_metrics(name: str, how: str) -> None:
    metric = METRICS[name].make()
    prediction, target, weight = case_data(name)
    metric.update(prediction, target, weight)
    np.testing.assert_equal(HOW[how](metric).compute(), metric.compute())


def callbacks(folder: Path) -> dict[str, Any]:
    c = ws.callbacks
    return {
        "EarlyStopping": c.EarlyStopping("loss", patience=3),
        "ModelCheckpoint": c.ModelCheckpoint(folder / "best", "loss"),
        "CSVLogger": c.CSVLogger(folder / "log.csv"),
        "JSONLinesLogger": c.JSONLinesLogger(folder / "log.jsonl"),
        "TensorBoardLogger": c.TensorBoardLogger(folder / "board"),
        "TimeBudget": c.TimeBudget(10.0),
        "StepBudget": c.StepBudget(10),
        "LossHistory": c.LossHistory(),
        "GradientStatistics": c.GradientStatistics({"x": X, "labels": Y}, quiet=True),
        "WeightStatistics": c.WeightStatistics(),
        "ConsoleObserver": c.ConsoleObserver(),
        "Profiler": c.Profiler(),
        "Progress": c.Progress(),
    }


@both
@pytest.mark.parametrize("name", callbacks(Path()))
def test_callbacks(name: str, how: str, tmp_path: Path) -> None:
    """Those that came back run in `fit`, and leave it with the same losses."""
    callback = callbacks(tmp_path)[name]
    other = HOW[how](callback)
    assert type(other) is type(callback)
    options: dict[str, Any] = {"loss": "cross_entropy", "epochs": 2, "progress": False, "shuffle": False}
    kind = "callbacks" if isinstance(callback, ws.callbacks.Callback) else "observer"
    plain = ws.fit(mlp(), (X, Y), **options, seed=3)["loss"]
    assert list(ws.fit(mlp(), (X, Y), **options, seed=3, **{kind: other})["loss"]) == list(plain)


@both
def test_loaders_go_on_where_they_were(how: str) -> None:
    loader = ws.DataLoader(X, Y, batch_size=3)
    other = HOW[how](loader)
    for ours, theirs in zip(loader, other, strict=True):
        np.testing.assert_array_equal(ours.data, theirs.data)
        np.testing.assert_array_equal(ours.labels, theirs.labels)


@both
def test_the_history_of_a_run(how: str) -> None:
    history = ws.fit(mlp(), (X, Y), loss="cross_entropy", epochs=2, progress=False)
    assert list(HOW[how](history)["loss"]) == list(history["loss"])
