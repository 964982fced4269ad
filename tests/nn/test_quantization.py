"""Quantization: rounding and gradients against torch, ranges, QDQ files against onnxruntime, resume, and MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as runtime
import pytest
import torch
from onnx import numpy_helper
from typer.testing import CliRunner

import wholestep as ws
from tests.support.mnist import real_mnist
from wholestep.cli import app
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.errors import OptionError

Array = np.ndarray[Any, Any]


def perceptron() -> ws.nn.Module:
    ws.manual_seed(0)
    return ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.ReLU(), ws.nn.Linear(32, 10))


def small_lenet() -> ws.nn.Module:
    ws.manual_seed(0)
    return ws.nn.Sequential(
        ws.nn.Unflatten(1, (1, 8, 8)), ws.nn.Conv2d(1, 8, 3, padding=1), ws.nn.BatchNorm2d(8), ws.nn.ReLU(),
        ws.nn.MaxPool2d(2), ws.nn.Conv2d(8, 8, 3, padding=1, bias=False), ws.nn.ReLU(), ws.nn.Flatten(),
        ws.nn.Linear(128, 10),
    )  # fmt: skip


NETWORKS = {"perceptron": perceptron, "lenet": small_lenet}


def in_onnxruntime(path: Path, x: Array) -> Array:
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("axis", [None, 0])
def test_value_and_gradient_are_torchs(device: str, axis: int | None) -> None:
    rng = np.random.default_rng(0)
    x, upstream = rng.normal(size=(6, 50)).astype("f") * 3, rng.normal(size=(6, 50)).astype("f")
    # powers of two: the quotients are exact, ties included
    scale = np.array([2.0**-k for k in range(4, 10)], "f")[:, None] if axis == 0 else np.array(2.0**-5, "f")
    zero = 0 if axis == 0 else 7
    x[0, :5] = np.array([0.5, 1.5, 2.5, -0.5, -1.5], "f") * scale.reshape(-1)[0]
    g = ws.Graph()
    w = g.parameter("w", x.shape, init=x)
    y = ws.nn.fake_quantize(w, g.constant(scale), float(zero)).keep("y")
    g.set_outputs([(y * g.input("u", x.shape)).sum()])
    session = ws.build_session(g, optimizer=ws.SGD(1.0), device=device)
    session.step(u=upstream)
    t = torch.tensor(x, requires_grad=True)
    if axis == 0:
        zeros = torch.zeros(6, dtype=torch.int32)
        out = torch.fake_quantize_per_channel_affine(t, torch.tensor(scale[:, 0]), zeros, 0, -128, 127)
    else:
        out = torch.fake_quantize_per_tensor_affine(t, float(scale), zero, -128, 127)
    out.backward(torch.tensor(upstream))
    np.testing.assert_array_equal(session.get("y"), out.detach().numpy())
    np.testing.assert_allclose(x - session.get("w"), t.grad.numpy(), atol=1e-6)
    assert 0 < (t.grad.numpy() == 0).sum() < x.size


def test_calibration_finds_the_ranges_of_inputs() -> None:
    x, _ = ws.datasets.digits()
    model = perceptron()
    hidden = np.maximum(x @ model.state_dict()["0.weight"].T + model.state_dict()["0.bias"], 0)
    ws.nn.quantize(model, x)
    state = model.state_dict()
    assert (state["0.input_low"], state["0.input_high"]) == (x.min(), x.max())
    np.testing.assert_allclose(state["2.input_high"], hidden.max(), rtol=1e-5)
    assert state["2.input_low"] == 0


@pytest.mark.parametrize("observer", ["average", "extremes"])
def test_training_steps_observe_ranges(observer: str) -> None:
    rng = np.random.default_rng(1)
    model = ws.nn.quantize(ws.nn.Linear(4, 2), observer=observer, momentum=0.1)
    batches = [rng.normal(size=(8, 4)).astype("f") * (1 + i % 3) for i in range(6)]
    ws.fit(model, (np.concatenate(batches), np.zeros((48, 2), "f")), loss="mse", batch_size=8, shuffle=False,
           optimizer=ws.SGD(0.0), progress=False, device="reference")  # fmt: skip
    low, high = batches[0].min(), batches[0].max()
    for b in batches[1:]:
        low, high = (
            (min(low, b.min()), max(high, b.max())) if observer == "extremes"
            else (low + 0.1 * (b.min() - low), high + 0.1 * (b.max() - high))
        )  # fmt: skip
    state = model.state_dict()
    np.testing.assert_allclose([state["input_low"], state["input_high"]], [low, high], rtol=1e-5)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("per_channel", [True, False])
def test_onnxruntime_gives_our_outputs(name: str, per_channel: bool, tmp_path: Path) -> None:
    x, y = ws.datasets.digits()
    model = NETWORKS[name]()
    ws.fit(model, (x, y), loss="cross_entropy", epochs=2, progress=False)
    plain = model.evaluate(x, y, loss="cross_entropy", metrics=["accuracy"])["accuracy"]
    ws.nn.quantize(model, x[:300], per_channel=per_channel)
    assert model.evaluate(x, y, loss="cross_entropy", metrics=["accuracy"])["accuracy"] > plain - 0.01
    ws.fit(model, (x, y), loss="cross_entropy", progress=False)
    ws.export_onnx(model, tmp_path / "int8.onnx", example=x[:1])
    ours, theirs = model.predict(x), in_onnxruntime(tmp_path / "int8.onnx", x)
    # One rounding that falls on the other side moves an input of a later layer by one step of its range.
    apart = np.abs(ours - theirs).max(1)
    assert (apart < 1e-4 * np.abs(ours).max()).mean() > 0.97
    assert apart.max() < 0.05 * np.abs(ours).max()
    graph = onnx.load(tmp_path / "int8.onnx").graph
    kinds = [n.op_type for n in graph.node]
    layers = 2 if name == "perceptron" else 3
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (layers, 2 * layers)
    int8 = [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].t.data_type == onnx.TensorProto.INT8]
    stored = [a for a in (numpy_helper.to_array(n.attribute[0].t) for n in int8) if a.ndim > 1]
    assert len(stored) == layers
    assert all(abs(a.astype(int)).max() == 127 for a in stored)
    assert not [i for i in graph.initializer if i.name.endswith("weight") and len(i.dims) > 1]


def test_one_layer_equals_onnxruntime_to_the_rounding_of_sums(tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(200, 64)).astype("f")
    model = ws.nn.quantize(ws.nn.Linear(64, 32), x)
    ws.export_onnx(model, tmp_path / "net.onnx", example=x[:1])
    np.testing.assert_allclose(model.predict(x), in_onnxruntime(tmp_path / "net.onnx", x), rtol=1e-5, atol=1e-5)


def test_a_run_resumes_with_every_bit_through_the_command_line(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "import wholestep as ws\nfrom tests.nn.test_quantization import perceptron\n\ndef build():\n"
        "    return ws.Experiment(model=ws.nn.quantize(perceptron()), data=ws.datasets.digits(),\n"
        "        loss='cross_entropy', metrics=['accuracy'], seed=1, epochs=2)\n"
    )

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        assert result.exit_code == 0, result.output
        return result.output

    run("train", "own.py", "--folder", "whole", "--no-progress")
    run("train", "own.py", "--epochs", "1", "--folder", "parts", "--no-progress")
    count = compile_counter.value
    run("train", "--resume", "parts", "--epochs", "2", "--exact", "--no-progress")
    assert compile_counter.value == count
    whole, parts = (ws.load_checkpoint(folder).arrays for folder in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert whole["2.input_high"] > 0
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[name], value, err_msg=name)


def test_weights_keep_their_names_and_other_layers_their_floats() -> None:
    x, _ = ws.datasets.digits()
    model = perceptron()
    before = model.state_dict()
    ws.nn.quantize(model, x[:50], targets="0")
    after = model.state_dict()
    assert after.keys() - before.keys() == {"0.input_low", "0.input_high"}
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
    assert "Linear(64, 32)" in repr(model)


def test_fixed_ranges_divide_the_step() -> None:
    """The updates of one batch, of two micro-batches and of two shards are the same, to the order of additions."""
    x, y = ws.datasets.digits()
    x, y = x[:640], y[:640]
    found = []
    for options in ({"batch_size": 64}, {"batch_size": 32, "accumulate": 2}, {"batch_size": 64, "shards": 2}):
        model = ws.nn.quantize(perceptron(), x[:100], observer="fixed")
        before = model.state_dict()
        history = ws.fit(model, (x, y), loss="cross_entropy", optimizer=ws.SGD(0.05), progress=False, seed=0, **options)
        after = model.state_dict()
        assert all(after[n] == before[n] for n in ("0.input_low", "0.input_high", "2.input_low", "2.input_high"))
        found.append((history["loss"], after["0.weight"]))
    for losses, weights in found[1:]:
        np.testing.assert_allclose(losses, found[0][0], rtol=1e-4)
        np.testing.assert_allclose(weights, found[0][1], atol=1e-3)


def test_mistakes_are_explained() -> None:
    with pytest.raises(OptionError, match="takes the ranges of calibration="):
        ws.nn.quantize(perceptron(), observer="fixed")
    with pytest.raises(OptionError, match=r"matches 'conv'; there are: 0, 2"):
        ws.nn.quantize(perceptron(), targets="conv")
    with pytest.raises(OptionError, match="not quantized yet"):
        ws.nn.quantize(ws.nn.quantize(perceptron()))
    with pytest.raises(OptionError, match="observer must be one of 'average', 'extremes', 'fixed'"):
        ws.nn.quantize(perceptron(), observer="minmax")


@pytest.mark.long
@pytest.mark.parametrize("network", ["mlp", "lenet"])
def test_mnist_in_int8_loses_at_most_half_a_percent(network: str, tmp_path: Path) -> None:
    (x, y), (xt, yt) = ws.data.mnist(real_mnist())
    ws.manual_seed(0)
    model = ws.models.lenet5() if network == "lenet" else ws.nn.Sequential(
        ws.nn.Flatten(), ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10)
    )  # fmt: skip
    options: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 64, "progress": False, "seed": 0}

    def accuracy() -> float:
        return float(model.evaluate(xt, yt, loss="cross_entropy", metrics=["accuracy"])["accuracy"])

    ws.fit(model, (x, y), epochs=3, **options)
    plain = accuracy()
    ws.nn.quantize(model, x[:500])
    after_training = accuracy()
    ws.fit(model, (x, y), optimizer=ws.AdamW(2e-4), **options)
    aware = accuracy()
    ws.export_onnx(model, tmp_path / "int8.onnx", example=xt[:1])
    exported = float((in_onnxruntime(tmp_path / "int8.onnx", xt).argmax(1) == yt).mean())
    print(f"{network}: float {plain:.4f}, after training {after_training:.4f}, aware {aware:.4f}, ort {exported:.4f}")
    assert min(after_training, aware, exported) >= plain - 0.005
