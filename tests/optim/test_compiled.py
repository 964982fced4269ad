"""Moments, switches and what is off, through the compiled step; the table of optimizers is in `table.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.optim import Optimizer

# Largest error, relative to the largest weight.
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
SHAPES = {"matrix": (3, 37), "vector": (5,)}

EVERYWHERE = {"decay_on": ("*",)}

NAMES = [f"{kind} {dtype}" for kind in SHAPES for dtype in TOLERANCE]


def start(name: str) -> np.ndarray:
    kind, dtype = name.split()
    return np.random.default_rng(1).normal(size=SHAPES[kind]).astype(dtype)


def gradients(step: int) -> dict[str, np.ndarray]:
    """Gradients of changing direction and, now and then, of another magnitude."""
    rng = np.random.default_rng(100 + step)
    return {f"d {n}": (rng.normal(size=start(n).shape) + 0.3) * (10.0 if step % 7 == 0 else 1.0) for n in NAMES}


def linear() -> ws.Graph:
    """loss = Σ w·d, so that the gradient of each w is the input d; both dtypes in one program."""
    g = ws.Graph()
    loss: Any = 0.0
    for name in NAMES:
        dtype = name.split()[1]
        w = g.parameter(name, start(name).shape, init=start(name), dtype=dtype)
        loss = loss + (w * g.input(f"d {name}", w.shape, dtype)).sum().astype("float64")
    g.set_outputs({"loss": loss})
    return g


def step(session: ws.Session, number: int) -> None:
    session.step({n: d.astype(n.split()[2]) for n, d in gradients(number).items()})


class Torch:
    """The same weights and gradients, moved by torch."""

    def __init__(self, kind: Any, options: dict[str, Any]) -> None:
        self.weights = {n: torch.nn.Parameter(torch.tensor(start(n))) for n in NAMES}
        self.optimizer = kind(self.weights.values(), **options)

    def step(self, number: int) -> None:
        for name, d in gradients(number).items():
            w = self.weights[name.removeprefix("d ")]
            w.grad = torch.tensor(d).to(w.dtype)
        self.optimizer.step()


def assert_near(session: ws.Session, twin: Torch) -> None:
    for name, w in twin.weights.items():
        theirs = w.detach().numpy()
        worst = np.abs(session.get(name) - theirs).max() / np.abs(theirs).max()
        assert worst <= TOLERANCE[name.split()[1]], name


def test_the_moments_are_torchs_too() -> None:
    session, theirs = ws.build_session(linear(), optimizer=ws.Adam()), Torch(torch.optim.Adam, {})
    for number in range(20):
        step(session, number)
        theirs.step(number)
    for name, w in theirs.weights.items():
        known = theirs.optimizer.state[w]
        for ours, torchs in (("m", "exp_avg"), ("v", "exp_avg_sq")):
            expected = known[torchs].numpy()
            tolerance = TOLERANCE[name.split()[1]] * np.abs(expected).max()
            np.testing.assert_allclose(session.get(f"{name}.adam.{ours}"), expected, rtol=0, atol=tolerance)


def test_changed_hyperparameters_equal_torchs_without_a_recompile() -> None:
    session, theirs = ws.build_session(linear(), optimizer=ws.AdamW(0.01, **EVERYWHERE)), Torch(torch.optim.AdamW, {})
    compiles = compile_counter.value
    changes = {
        0: (0.01, (0.9, 0.999), 1e-8, 0.01),
        5: (0.002, (0.5, 0.9), 1e-4, 0.3),
        11: (0.03, (0.8, 0.99), 0.1, 0.0),
    }
    for number in range(20):
        if number in changes:
            lr, betas, eps, decay = changes[number]
            live = session.optimizer
            live.lr, live.betas, live.eps, live.weight_decay = lr, betas, eps, decay
            theirs.optimizer.param_groups[0].update(lr=lr, betas=betas, eps=eps, weight_decay=decay)
        step(session, number)
        theirs.step(number)
    assert_near(session, theirs)
    assert compile_counter.value == compiles


def test_momentum_and_decay_change_without_a_recompile() -> None:
    ours = ws.SGD(0.05, momentum=0.9, dampening=0.1, weight_decay=0.02, **EVERYWHERE)
    options = {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.02}
    session, theirs = ws.build_session(linear(), optimizer=ours), Torch(torch.optim.SGD, options)
    compiles = compile_counter.value
    changed = {"lr": 0.01, "momentum": 0.5, "dampening": 0.4, "weight_decay": 0.1}
    for number in range(20):
        if number == 7:
            for name, value in changed.items():
                setattr(session.optimizer, name, value)
            theirs.optimizer.param_groups[0].update(changed)
        step(session, number)
        theirs.step(number)
    assert_near(session, theirs)
    assert compile_counter.value == compiles


@pytest.mark.parametrize(
    ("plain", "off", "switchable"),
    [
        (ws.SGD(0.1), ws.SGD(0.1, momentum=0.0, weight_decay=0.0), ws.SGD(0.1, momentum=ws.runtime(0.0))),
        (ws.Adam(), ws.Adam(weight_decay=0.0), ws.Adam(weight_decay=ws.runtime(0.0))),
    ],
)
def test_a_value_that_means_off_is_structure(plain: Optimizer, off: Optimizer, switchable: Optimizer) -> None:
    def scalars(optimizer: Optimizer) -> set[str]:
        plan, _ = ws.compile_training_graph(linear(), optimizer=optimizer)
        return {s.name for s in plan.scalars}

    (extra,) = scalars(switchable) - scalars(plain)
    assert extra in ("optimizer.momentum", "optimizer.weight_decay")
    assert scalars(off) == scalars(plain)
    assert (
        ws.compile_training_graph(linear(), optimizer=off)[0] == ws.compile_training_graph(linear(), optimizer=plain)[0]
    )


def test_a_switchable_value_switches_without_a_recompile() -> None:
    session = ws.build_session(linear(), optimizer=ws.SGD(0.05, momentum=ws.runtime(0.0)))
    theirs = Torch(torch.optim.SGD, {"lr": 0.05, "momentum": 0.9})
    compiles = compile_counter.value
    session.optimizer.momentum = 0.9
    for number in range(10):
        step(session, number)
        theirs.step(number)
    assert_near(session, theirs)
    assert compile_counter.value == compiles
