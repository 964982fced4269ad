"""Examples with a custom step equal torch twins for 20 steps; all examples reach the results that they document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

import wholestep as ws
from examples import (
    finetune,
    gan,
    gradient_penalty,
    lenet_mnist,
    mnist_mlp,
    reinforce,
    shakespeare_gpt,
    tabular_regression,
    timeseries_lstm,
)
from tests.support.linting import lint_every_fit
from tests.support.mnist import digits_as_mnist

STEPS = 20
# (loss, relative; weights, relative to the largest weight of their tensor)
TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-11, 1e-10)}
Weights = dict[str, torch.Tensor]

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every run of an example is without findings of the linter."""
    findings = lint_every_fit(monkeypatch)
    yield
    repeated = {"WS402", "WS403"}  # the text of a test is one line, many times
    assert {finding.code for finding in findings} <= repeated, findings


def twin_of(session: ws.Session, names: Iterable[str]) -> Weights:
    """The session's weights as torch parameters."""
    return {name: torch.tensor(session.get(name), requires_grad=True) for name in names}


def assert_same_loss(ours: object, theirs: torch.Tensor, dtype: str, scale: float = 0.0) -> None:
    """`scale` is the size of the terms that the loss is a difference of."""
    tolerance = TOLERANCE[dtype][0]
    assert float(np.asarray(ours)) == pytest.approx(theirs.item(), rel=tolerance, abs=tolerance * scale)


def assert_same_weights(session: ws.Session, weights: Mapping[str, torch.Tensor], dtype: str) -> None:
    for name, theirs in weights.items():
        expected = theirs.detach().numpy()
        worst = np.abs(session.get(name) - expected).max()
        assert worst <= TOLERANCE[dtype][1] * np.abs(expected).max(), f"{name} is off by {worst:.3g}"


def perceptron(weights: Weights, player: str, x: torch.Tensor) -> torch.Tensor:
    for i in (0, 1):
        x = torch.relu(x @ weights[f"{player}.w{i}"] + weights[f"{player}.b{i}"])
    return x @ weights[f"{player}.w2"] + weights[f"{player}.b2"]


def data(arrays: Mapping[str, Any], dtype: str) -> dict[str, np.ndarray]:
    """Float arrays in the dtype of the session: what it reads in place."""
    return {n: a.astype(dtype) if a.dtype.kind == "f" else a for n, a in arrays.items()}


@both_dtypes
def test_gan(dtype: str) -> None:
    session = gan.build(dtype, batch_size=32)
    weights = twin_of(session, [f"{p}.{k}{i}" for p in ("judge", "generator") for i in range(3) for k in "wb"])
    players = {p: [t for n, t in weights.items() if n.startswith(p)] for p in ("judge", "generator")}
    optimizers = [torch.optim.Adam(params, lr=1e-3, betas=(0.5, 0.999)) for params in players.values()]
    rng = np.random.default_rng(1)
    for _ in range(STEPS):
        real = gan.circle(rng, 32).astype(dtype)
        result = session.step(real=real)
        made = perceptron(weights, "generator", torch.tensor(result.noise))
        judged = perceptron(weights, "judge", torch.tensor(real))
        judge_loss = softplus(-judged).mean() + softplus(perceptron(weights, "judge", made.detach())).mean()
        generator_loss = softplus(-perceptron(weights, "judge", made)).mean()
        for loss, params in zip((judge_loss, generator_loss), players.values(), strict=True):
            for p, gradient in zip(params, torch.autograd.grad(loss, params, retain_graph=True), strict=True):
                p.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
        assert_same_loss(result.loss, judge_loss, dtype)
        assert_same_loss(result.generator_loss, generator_loss, dtype)
        assert_same_weights(session, weights, dtype)


@both_dtypes
def test_gradient_penalty(dtype: str) -> None:
    session = gradient_penalty.build(dtype, batch_size=32)
    weights = twin_of(session, ("w1", "b1", "w2", "b2", "w3"))
    optimizer = torch.optim.Adam(weights.values(), lr=1e-3)
    rng = np.random.default_rng(1)

    def critic(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x @ weights["w1"] + weights["b1"])
        return torch.tanh(h @ weights["w2"] + weights["b2"]) @ weights["w3"]

    for _ in range(STEPS):
        batch = data(gradient_penalty.clouds(rng, 32), dtype)
        result = session.step(batch)
        here, there, mix = (torch.tensor(a) for a in (batch["here"], batch["there"], result.mix))
        between = (mix * here + (1 - mix) * there).requires_grad_()
        (slopes,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        norms = (slopes.square().sum(1) + 1e-12).sqrt()
        distance = critic(there).mean() - critic(here).mean()
        penalty = gradient_penalty.PENALTY * (norms - 1).square().mean()
        loss = penalty - distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert_same_loss(result.loss, loss, dtype, scale=penalty.item())
        assert_same_loss(result.distance, distance, dtype, scale=1.0)
        assert_same_weights(session, weights, dtype)


@both_dtypes
def test_reinforce(dtype: str) -> None:
    session = reinforce.build(dtype)
    weights = twin_of(session, ("w1", "b1", "w2", "b2"))
    optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
    rng = np.random.default_rng(1)
    sizes = set()
    for _ in range(STEPS):
        batch = data(reinforce.play(session, rng).batch(), dtype)
        sizes.add(len(batch["actions"]))
        places, actions, advantages = (torch.tensor(a) for a in batch.values())
        logits = torch.relu(places @ weights["w1"] + weights["b1"]) @ weights["w2"] + weights["b2"]
        surprise = cross_entropy(logits, actions.long(), reduction="none")
        loss = (advantages * surprise).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Advantages have mean 0: the loss is small relative to the terms that it averages.
        assert_same_loss(session.step(batch).loss, loss, dtype, scale=surprise.mean().item())
        assert_same_weights(session, weights, dtype)
    assert len(sizes) > 5  # one program, many batches


def test_the_generator_learns_the_circle(capsys: pytest.CaptureFixture[str]) -> None:
    assert gan.main(rounds=5) > 0.9
    assert "of the circle" in capsys.readouterr().out


def test_the_critic_measures_the_distance(capsys: pytest.CaptureFixture[str]) -> None:
    assert gradient_penalty.main() == pytest.approx(5.0, abs=0.5)
    assert "exact 5.000" in capsys.readouterr().out


def test_the_policy_finds_the_shortest_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert reinforce.main(rounds=40) < 10.0  # of at least 8; a random walk needs more than 30
    assert "moves to the goal" in capsys.readouterr().out


# -- with ws.fit: small, and better than guessing ------------------------------------------------------------------


def test_mnist_mlp(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits_as_mnist(tmp_path)
    weights = tmp_path / "mlp.safetensors"
    accuracy = mnist_mlp.main(["--data", str(tmp_path), "--epochs", "8", "--save", str(weights)])
    assert accuracy > 0.85
    assert f"test accuracy: {accuracy:.2%} on 297 images" in capsys.readouterr().out
    again = mnist_mlp.network(hidden=128)
    assert len(again.load(weights).loaded) == 4


def test_lenet_mnist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits_as_mnist(tmp_path)
    weights = tmp_path / "lenet.safetensors"
    accuracy = lenet_mnist.main(["--data", str(tmp_path), "--epochs", "8", "--batch", "32", "--save", str(weights)])
    assert accuracy > 0.85
    assert f"test accuracy: {accuracy:.2%} on 297 images" in capsys.readouterr().out
    assert "conv1.weight" in ws.models.lenet5().load(weights).loaded


def test_tabular_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--epochs", "15", "--hidden", "32"]
    error = tabular_regression.main([*small, "--rows", "2000"])
    assert error < 2.0  # the noise is 1.0, the spread of the target 4.8
    assert f"error {error:.3f} on 400 rows" in capsys.readouterr().out

    own = tmp_path / "own.csv"
    tabular_regression.write_friedman(own, rows=2000)
    ws.manual_seed(0)  # the same first weights
    assert tabular_regression.main([*small, "--csv", str(own), "--target", "y"]) == error


def test_timeseries_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--length", "1000", "--window", "16", "--hidden", "16", "--epochs", "12", "--batch", "32"]
    error = timeseries_lstm.main(arguments)
    assert error < 0.2  # "as it is now" is off by 0.3
    assert f"error {error:.3f}" in capsys.readouterr().out


def test_shakespeare_gpt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "song.txt"
    text.write_text("row, row, row your boat, gently down the stream. " * 60, encoding="utf-8")
    size = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "32"]
    loss = shakespeare_gpt.main(["--text", str(text), *size, "--epochs", "12", "--lr", "0.01", "--warmup", "10"])
    assert loss < 1.0  # guessing among its 18 characters: 2.9
    said = capsys.readouterr().out
    assert f"validation loss {loss:.4f}" in said
    assert " gently down the stream. row, row" in said.partition("|")[2]
    assert shakespeare_gpt.sample(ws.nn.Linear(1, 1), np.zeros(4, np.int32), 0, 1.0).dtype == np.int32


def test_finetuning_beats_training_from_scratch(capsys: pytest.CaptureFixture[str]) -> None:
    tuned, alone = finetune.main([])
    assert tuned > alone
    said = capsys.readouterr().out
    assert "4 arrays loaded" in said
    assert "left as they were: head.weight, head.bias" in said


def test_finetuning_trains_the_head_alone_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = ws.datasets.digits()
    weights, seen = tmp_path / "digits.safetensors", []
    finetune.pretrained(weights, (x[:200], y[:200]), epochs=1)
    train = finetune.train

    def watched(model: ws.nn.Module, *rest: Any, **options: Any) -> None:
        seen.append(model.state_dict())
        train(model, *rest, **options)
        seen.append(model.state_dict())

    monkeypatch.setattr(finetune, "train", watched)
    finetune.finetuned(weights, (x[:64], y[:64] % 2), epochs=1)
    before, frozen, _, after = seen
    assert (before["body.0.weight"] == frozen["body.0.weight"]).all()
    assert (before["head.weight"] != frozen["head.weight"]).any()
    assert (frozen["body.0.weight"] != after["body.0.weight"]).any()
