"""Pruning: masks against torch's, exact zeros through fit, resume, averages, the command line and ONNX, and MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from torch.nn.utils import prune
from typer.testing import CliRunner

import wholestep as ws
from tests.support.mnist import real_mnist
from wholestep.cli import app
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError, UsageError
from wholestep.optim import EMA, Lookahead, Pruned

Array = np.ndarray[Any, Any]
SHAPES = {"a": (12, 7), "b": (5, 12), "c": (6, 4, 3, 3)}


def arrays() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {n: rng.normal(size=s).astype("f") * (i + 1) for i, (n, s) in enumerate(SHAPES.items())}


def perceptron() -> ws.nn.Module:
    ws.manual_seed(0)
    return ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.ReLU(), ws.nn.Linear(32, 10))


def zeros(model: ws.nn.Module) -> dict[str, float]:
    return {n: float((a == 0).mean()) for n, a in model.state_dict().items() if a.ndim > 1}


def test_global_masks_are_torchs() -> None:
    ours = Pruned(ws.SGD()).masks_of(arrays(), 0.7)
    layers = {}
    for name, a in arrays().items():
        layers[name] = torch.nn.Module()
        layers[name].register_parameter("weight", torch.nn.Parameter(torch.tensor(a)))
    prune.global_unstructured([(m, "weight") for m in layers.values()], prune.L1Unstructured, amount=0.7)
    for name, module in layers.items():
        np.testing.assert_array_equal(ours[name], module.weight_mask.numpy() == 1, err_msg=name)


@pytest.mark.parametrize(("per", "axis"), [("elements", None), ("rows", 0), ("columns", 1)])
def test_masks_of_each_layer_are_torchs(per: str, axis: int | None) -> None:
    ours = Pruned(ws.SGD(), per=per, scope="layer").masks_of(arrays(), 0.4)
    for name, a in arrays().items():
        module = torch.nn.Module()
        module.register_parameter("weight", torch.nn.Parameter(torch.tensor(a)))
        if axis is None:
            prune.l1_unstructured(module, "weight", amount=0.4)
        else:
            prune.ln_structured(module, "weight", amount=0.4, n=2, dim=axis)
        expected = module.weight_mask.numpy() == 1
        np.testing.assert_array_equal(np.broadcast_to(ours[name], a.shape), expected, err_msg=name)


def test_the_share_follows_the_papers_cubic() -> None:
    rule = Pruned(ws.SGD(), amount=0.9, start=10, end=110)
    assert [rule.share_at(t) for t in (0, 9, 10, 110, 500)] == [0.0, 0.0, 0.0, 0.9, 0.9]
    assert rule.share_at(60) == pytest.approx(0.9 + (0 - 0.9) * (1 - 50 / 100) ** 3)
    assert Pruned(ws.SGD(), amount=0.5).share_at(0) == 0.5


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("per", ["elements", "rows"])
def test_a_step_equals_masked_sgd(device: str, per: str) -> None:
    rng = np.random.default_rng(1)
    w0, x, y = rng.normal(size=(6, 4)), rng.normal(size=(8, 6)), rng.normal(size=(8, 4))
    g = ws.Graph()
    w = g.parameter("w", (6, 4), init=w0, dtype="float64")
    g.set_outputs([ws.losses.mse_loss(g.input("x", (8, 6), "float64") @ w, g.input("y", (8, 4), "float64"))])
    rule = Pruned(ws.SGD(0.1, momentum=0.9), amount=0.5, per=per)
    session = ws.build_session(g, optimizer=rule, device=device)
    assert rule.update_masks(session) == 0.5
    mask = np.broadcast_to(session.get("w.pruned.mask"), w0.shape)
    now, velocity = w0 * mask, np.zeros_like(w0)
    for _ in range(5):
        velocity = 0.9 * velocity + mask * (2 * x.T @ (x @ now - y) / y.size)
        now = mask * (now - 0.1 * velocity)
        session.step(x=x, y=y)
        np.testing.assert_allclose(session.get("w"), now, rtol=1e-12)
        assert (session.get("w")[~mask] == 0).all()


@pytest.mark.parametrize("average", [False, True])
def test_fit_prunes_gradually_and_resumes_with_every_bit(average: bool, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    rule: Any = Pruned(ws.AdamW(2e-3), amount=0.8, start=20, end=120, every=30)
    options: dict[str, Any] = {
        "loss": "cross_entropy", "optimizer": EMA(rule, decay=0.9) if average else rule, "progress": False, "seed": 3,
    }  # fmt: skip
    whole, parts = perceptron(), perceptron()
    history = ws.fit(whole, (x, y), epochs=3, checkpoint=tmp_path / "a", **options)
    assert history["sparsity"] == sorted(history["sparsity"])
    assert history["sparsity"][-1] == pytest.approx(0.8, abs=1e-3)

    class Interrupt(ws.Callback):
        every = 7

        def on_step(self, metrics: ws.StepMetrics) -> None:
            if (metrics.epoch, metrics.step) == (1, 40):
                raise RuntimeError("power is gone")

    with pytest.raises(RuntimeError, match="power"):
        ws.fit(parts, (x, y), epochs=3, checkpoint=tmp_path / "b", callbacks=[Interrupt()], **options)
    ws.fit(perceptron(), (x, y), epochs=3, checkpoint=tmp_path / "b", resume=True, exact=True, **options)
    first, second = (ws.load_checkpoint(tmp_path / n).arrays for n in "ab")
    assert first.keys() == second.keys()
    assert any(name.endswith(".pruned.mask") for name in first)
    for name, value in first.items():
        np.testing.assert_array_equal(second[name], value, err_msg=name)
    for name, mask in [(n, a) for n, a in first.items() if n.endswith(".pruned.mask")]:
        assert (first[name.removesuffix(".pruned.mask")][~mask.astype(bool)] == 0).all()


def test_rows_are_pruned_in_each_layer_and_zeros_reach_onnx(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    model = perceptron()
    rule = Pruned(ws.AdamW(2e-3), amount=0.5, per="rows", scope="layer", match="0.weight")
    ws.fit(model, (x, y), loss="cross_entropy", optimizer=rule, progress=False)
    weight = model.state_dict()["0.weight"]
    assert ((weight == 0).all(1)).sum() == 16
    assert zeros(model)["2.weight"] == 0
    ws.export_onnx(model, tmp_path / "net.onnx", example=x[:1])
    stored = {i.name: numpy_helper.to_array(i) for i in onnx.load(tmp_path / "net.onnx").graph.initializer}
    np.testing.assert_array_equal(stored["0.weight"], weight)


def test_the_command_line_prunes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import wholestep as ws\n\ndef build():\n"
        "    model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.ReLU(), ws.nn.Linear(16, 10))\n"
        "    rule = ws.optim.Pruned(ws.SGD(0.1), amount=0.5)\n"
        "    return ws.Experiment(model=model, data=ws.datasets.digits(), loss='cross_entropy', optimizer=rule)\n"
    )
    command = ["train", "own.py", "--set", "optimizer.amount=0.75", "--folder", "run", "--no-progress"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    stored = ws.load_checkpoint("run").arrays
    weights = np.concatenate([stored[n].ravel() for n in ("0.weight", "2.weight")])
    assert (weights == 0).mean() == 0.75


def test_another_amount_compiles_nothing() -> None:
    x, y = ws.datasets.digits()
    for amount in (0.5, 0.6):
        count = compile_counter.value
        rule = Pruned(ws.SGD(0.1), amount=amount)
        ws.fit(perceptron(), (x, y), loss="cross_entropy", optimizer=rule, progress=False)
    assert compile_counter.value == count


def test_groups_are_pruned_by_their_own_rules() -> None:
    x, y = ws.datasets.digits()
    model = perceptron()
    rules = {"0": Pruned(ws.SGD(0.1), amount=0.75), "2": Pruned(ws.SGD(0.1), amount=0.25)}
    groups = [ws.Group(f"{layer}.*", name=f"of{layer}", optimizer=rule) for layer, rule in rules.items()]
    optimizer = ws.SGD(0.1, groups=groups)
    ws.fit(model, (x, y), loss="cross_entropy", optimizer=optimizer, progress=False, device="reference")
    assert zeros(model) == {"0.weight": 0.75, "2.weight": 0.25}


def test_a_step_of_ones_own_is_pruned_by_the_callback() -> None:
    model, rule = perceptron(), Pruned(ws.SGD(0.1), amount=0.5)

    @ws.step(inputs={"x": ws.Spec(("batch", 64)), "y": ws.Spec(("batch",), "int32")})
    def step(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> ws.Tensor:
        loss = ws.losses.cross_entropy(model(x), y)
        rule.update(g, model.traced(g), ws.gradients(loss, model))
        return loss

    x, y = ws.datasets.digits()
    callback = ws.callbacks.Pruning(rule)
    history = ws.fit(step, {"x": x, "y": y}, callbacks=[callback], progress=False, device="reference")
    assert list(history["sparsity"]) == [0.5]
    assert callback.sparsity == 0.5
    assert np.mean(np.concatenate([a.ravel() == 0 for a in model.state_dict().values() if a.ndim > 1])) == 0.5


def test_mistakes_are_explained() -> None:
    with pytest.raises(OptionError, match=r"per must be one of 'elements', 'rows', 'columns'; received 'channel'"):
        Pruned(ws.SGD(), per="channel")
    x, y = ws.datasets.digits()
    with pytest.raises(OptionError, match=r"match='conv\*' matches none"):
        ws.fit(perceptron(), (x, y), loss="cross_entropy", optimizer=Pruned(ws.SGD(), match="conv*"), progress=False)
    with pytest.raises(OptionError, match=r"write ws.optim.Pruned\(ws.optim.Lookahead"):
        ws.fit(perceptron(), (x, y), loss="cross_entropy", optimizer=Lookahead(Pruned(ws.SGD())), progress=False)
    g = ws.Graph()
    g.set_outputs([(g.parameter("w", (2, 2)) * g.input("x", (2, 2))).sum()])
    with pytest.raises(UsageError, match="has no masks"):
        Pruned(ws.SGD()).update_masks(ws.build_session(g, optimizer=ws.SGD(), device="reference"))


def networks() -> dict[str, ws.nn.Module]:
    ws.manual_seed(0)
    return {
        "mlp": ws.nn.Sequential(ws.nn.Flatten(), ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10)),
        "lenet": ws.models.lenet5(),
    }


@pytest.mark.long
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_mnist_at_90_percent_loses_at_most_1_percent(network: str) -> None:
    (x, y), (xt, yt) = ws.data.mnist(real_mnist())
    model = networks()[network]
    options: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 64, "progress": False, "seed": 0}
    ws.fit(model, (x, y), epochs=3, optimizer=ws.AdamW(1e-3), **options)
    dense = model.evaluate(xt, yt, loss="cross_entropy", metrics=["accuracy"])["accuracy"]
    ws.fit(model, (x, y), epochs=3, optimizer=Pruned(ws.AdamW(1e-3), amount=0.9, end=1500), **options)
    weights = np.concatenate([a.ravel() for a in model.state_dict().values() if a.ndim > 1])
    assert (weights == 0).mean() == pytest.approx(0.9, abs=1e-4)
    sparse = model.evaluate(xt, yt, loss="cross_entropy", metrics=["accuracy"])["accuracy"]
    print(f"{network}: dense {dense:.4f}, 90 % pruned {sparse:.4f}")
    assert sparse >= dense - 0.01
