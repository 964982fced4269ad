"""Training with differential privacy through `fit`: draws, noise, the ε in the history, resume, and refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import nn
from wholestep.errors import GraphError, UsageError

PRIVACY = ws.Privacy(epsilon=4.0, delta=1e-4, clip=1.0)


def mlp(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 16), *layers, nn.ReLU(), nn.Linear(16, 10))


def build(model: nn.Module | None = None, **settings: Any) -> ws.Experiment:
    x, y = ws.datasets.digits()
    defaults: dict[str, Any] = {
        "loss": "cross_entropy",
        "optimizer": ws.SGD(lr=0.5),
        "epochs": 3,
        "batch_size": 64,
        "seed": 3,
        "device": "cpu",
        "progress": False,
        "privacy": PRIVACY,
        "silence": ["WS302"],
    }
    return ws.Experiment(model=model or mlp(), data=(x[:640], y[:640]), **{**defaults, **settings})


def test_a_run_spends_its_epsilon_and_learns() -> None:
    run = build(optimizer=ws.SGD(lr=2.0))
    history = run.fit()
    assert history["epsilon"] == sorted(history["epsilon"])
    assert history["epsilon"][-1] == pytest.approx(4.0, rel=1e-3)
    assert history["epsilon"][-1] <= 4.0
    assert history["loss"][-1] < 0.8 * history["loss"][0]
    assert "epsilon" in history.to_json()


def test_a_resumed_run_has_the_same_bits_and_the_same_epsilon(tmp_path: Path) -> None:
    whole = build()
    expected = whole.fit()
    first = build(callbacks=[ws.StepBudget(14)])  # inside the second epoch
    first.fit(checkpoint=tmp_path)
    again = build()
    resumed = again.fit(checkpoint=tmp_path, resume=True)
    assert resumed["epsilon"] == expected["epsilon"]
    np.testing.assert_array_equal(again.model.state_dict()["0.weight"], whole.model.state_dict()["0.weight"])


def test_a_resumed_run_cannot_spend_more(tmp_path: Path) -> None:
    build(epochs=1).fit(checkpoint=tmp_path)
    with pytest.raises(UsageError, match=r"would bring it to .*; epsilon=4 allows less"):
        build(epochs=9).fit(checkpoint=tmp_path, resume=True)


def test_every_batch_is_a_draw_of_its_own() -> None:
    sampler = ws.data.Poisson(batch_size=50, capacity=200)
    batches = [b for epoch in range(40) for b in sampler.batches(0, epoch, 1000)]
    sizes = np.array([len(b) for b in batches])
    assert len(batches) == 800
    assert sizes.mean() == pytest.approx(50, abs=1)
    assert sizes.var() == pytest.approx(1000 * 0.05 * 0.95, rel=0.15)  # of a binomial distribution
    counts = np.bincount(np.concatenate(batches), minlength=1000)
    assert counts.var() == pytest.approx(800 * 0.05 * 0.95, rel=0.15)
    assert all(len(set(b.tolist())) == len(b) for b in batches)
    np.testing.assert_array_equal(sampler.batches(0, 3, 1000)[7], batches[3 * 20 + 7])


def test_noise_has_the_deviation_that_the_accountant_assumes() -> None:
    """With gradients of 0 the update is the noise alone: N(0, (noise · clip / rows)²)."""
    model = nn.Linear(64, 200)
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 64)), targets=ws.Spec(("batch", 200)), loss="mse", optimizer=ws.SGD(lr=1.0),
        batch_size=8, seed=0, device="reference", privacy=ws.Privacy(noise=3.0, clip=0.5, rows=10.0),
    )  # fmt: skip
    before, x = session.get("weight").copy(), np.zeros((4, 64), "f4")
    targets = np.broadcast_to(session.get("bias"), (4, 200)).copy()
    session.step(x=x, labels=targets)
    first = before - session.get("weight")
    assert first.std() == pytest.approx(3.0 * 0.5 / 10.0, rel=0.02)
    assert abs(first.mean()) < 0.005
    second = session.get("weight").copy()
    session.step(x=x, labels=targets)
    assert abs(np.corrcoef(first.ravel(), (second - session.get("weight")).ravel())[0, 1]) < 0.03


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_noise_is_normal_and_its_numbers_are_independent(device: str) -> None:
    """Against the normal distribution by Kolmogorov's statistic; numbers of one block, and of two steps."""
    model, shape = nn.Linear(250, 400, bias=False), (400, 250)
    session = ws.build_session(
        model, inputs=ws.Spec(("batch", 250)), targets=ws.Spec(("batch", 400)), loss="mse", optimizer=ws.SGD(lr=1.0),
        batch_size=8, seed=5, device=device, privacy=ws.Privacy(noise=1.0, clip=1.0, rows=1.0),
    )  # fmt: skip
    draws = []
    for _ in range(2):
        before = session.get("weight").copy()
        session.step(x=np.zeros((4, 250), "f4"), labels=np.zeros((4, 400), "f4"))
        draws.append((before - session.get("weight")).astype("f8").ravel())
    first, second = draws
    assert first.size == np.prod(shape)
    ordered = np.sort(first)
    normal = np.array([0.5 * math.erfc(-x / math.sqrt(2.0)) for x in ordered])
    places = np.arange(1, first.size + 1) / first.size
    assert np.abs(places - normal).max() < 1.36 / math.sqrt(first.size)  # at a level of 5 %
    assert abs((first**4).mean() - 3.0) < 0.1
    quarters = first.reshape(4, -1)  # the four numbers of a block
    for values in (quarters, quarters**2, np.stack([first, second]), np.stack([first, second]) ** 2):
        correlations = np.corrcoef(values) - np.eye(len(values))
        assert np.abs(correlations).max() < 4.0 / math.sqrt(values.shape[1])


def test_draws_of_any_size_run_in_one_program() -> None:
    trainer, loader = build().trainer()
    program = trainer.session._programs.main
    trainer.train(loader, 2)
    assert len({len(batch) for epoch in range(2) for batch in loader.sampler.batches(3, epoch, 640)}) > 5
    assert trainer.session._programs.main is program
    assert trainer.session.scalars["privacy.rows"] == 64
    assert "clipped to a norm of 1, noise of" in str(trainer.session.report())


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({"model": mlp(nn.BatchNorm1d(16))}, r"batch norm.*ws\.nn\.GroupNorm"),
        ({"accumulate": 2}, r"privacy= with accumulate= is not supported"),
        ({"per_row": ["loss"]}, r"privacy= with per_row= is not supported.*what privacy protects"),
        ({"shuffle": False}, r"privacy= draws every batch from all rows"),
        ({"within": "5s", "epochs": 1}, r"privacy= needs the number of steps before the run"),
        ({"optimizer": ws.optim.SAM(ws.SGD(lr=0.1))}, r"privacy= needs an optimizer that follows the gradient"),
    ],
)
def test_what_privacy_cannot_protect_is_refused(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises((GraphError, UsageError), match=pattern):
        build(**settings).fit()


def test_a_ledger_adds_the_phases_that_a_checkpoint_has() -> None:
    ledger = ws.callbacks.PrivacyLedger(PRIVACY, rate=0.1)
    state = {"phases": [[1.0, 0.1, 50], [2.0, 0.1, 50]]}
    ledger.load_state_dict(state)
    assert ledger.state_dict() == state
    phases = [ws.privacy.Phase(noise, rate=0.1, steps=50) for noise in (1.0, 2.0)]
    assert ledger.epsilon == pytest.approx(ws.privacy.epsilon_of(phases, delta=PRIVACY.delta))
