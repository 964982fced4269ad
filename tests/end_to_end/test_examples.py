"""Each example equals its torch twin for 20 steps, and learns what it says it learns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, softplus

import wholestep as ws
from examples import gan, gradient_penalty, reinforce

STEPS = 20
# (loss, relative; weights, relative to the largest weight of their tensor)
TOLERANCE = {"float32": (1e-5, 1e-4), "float64": (1e-11, 1e-10)}
Weights = dict[str, torch.Tensor]

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


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
        # Advantages have mean 0: the loss is small beside the terms that it is the mean of.
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
