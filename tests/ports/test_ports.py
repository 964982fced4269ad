"""Public scripts: the same text, with torch and with us, gives the same losses from the same numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from ports.scripts import SCRIPTS

import wholestep as ws

STEPS = 4
# Theirs and ours of the optimizer: each script's own, its learning rate large enough to move something.
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "01 mnist": (lambda p: torch.optim.Adadelta(p, lr=1.0), lambda: ws.Adadelta(lr=1.0)),
    "13 word_language_model, LSTM": (lambda p: torch.optim.SGD(p, lr=0.5), lambda: ws.SGD(lr=0.5)),
    # A norm undoes the bias before it, so its gradient is rounding alone, of which Adam would make steps.
    "28 fast_neural_style": (lambda p: torch.optim.SGD(p, lr=0.01), lambda: ws.SGD(lr=0.01)),
    "15 nanoGPT": (
        lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
        lambda: ws.AdamW(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    ),
}
USUAL = (lambda p: torch.optim.Adam(p, lr=1e-2), lambda: ws.Adam(lr=1e-2))


def namespace(library: Any) -> dict[str, Any]:
    names = {"torch": library, "nn": library.nn, "F": library.nn.functional, "init": library.nn.init}
    return {**names, "np": np, "math": math}


def run_text(name: str, library: Any) -> dict[str, Any]:
    names = namespace(library)
    exec(compile(SCRIPTS[name], name, "exec"), names)
    return names


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_text_has_the_same_losses(name: str) -> None:
    torch.manual_seed(0)
    theirs, ours = run_text(name, torch), run_text(name, ws)
    arrays = theirs["batch"](np.random.default_rng(0))
    net, own = theirs["Net"](), ours["Net"]()
    own.load_state_dict(net.state_dict())
    make_theirs, make_ours = OPTIMIZERS.get(name, USUAL)

    part = theirs.get("trained", lambda whole: whole)
    optimizer, expected = make_theirs(part(net).parameters()), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = theirs["loss"](net, **{key: torch.tensor(a) for key, a in arrays.items()})
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    @ws.step(inputs={key: ws.Spec(a.shape, str(a.dtype)) for key, a in arrays.items()})
    def step(g: ws.Graph, **given: ws.Tensor) -> ws.Tensor:
        loss: ws.Tensor = ours["loss"](own, **given)
        params = ours.get("trained", lambda whole: whole)(own).traced(g)
        make_ours().update(g, params, ws.gradients(loss, params))
        return loss

    session = ws.build_session(step)
    found = [session.step(arrays).loss for _ in range(STEPS)]
    np.testing.assert_allclose(found, expected, rtol=2e-4)
    assert abs(expected[-1] - expected[0]) > 1e-4, "nothing was learnt, so nothing is shown"
    numbers = own.state_dict()
    for key, value in net.state_dict().items():
        if "num_batches" not in key:
            np.testing.assert_allclose(numbers[key], value.numpy(), rtol=2e-2, atol=2e-3)


def test_parameters_start_with_numbers_that_are_given() -> None:
    class Scaled(ws.nn.Module):
        def __init__(self) -> None:
            self.scale = ws.nn.Parameter(ws.ones(3) * 0.5)
            self.shift = ws.nn.Parameter(np.array([1.0, 2.0, 3.0]))

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return x * self.scale + self.shift

    np.testing.assert_array_equal(Scaled().predict(np.ones((2, 3), np.float32)), [[1.5, 2.5, 3.5]] * 2)
    with pytest.raises(ws.errors.HabitError, match=r"functions create tensors: ws.zeros\(\(3, 4\)\)"):
        ws.nn.Parameter(ws.Tensor(3, 4))  # type: ignore[arg-type]
    with pytest.raises(ws.errors.UsageError, match="received a tensor of a graph, which has none yet"):
        ws.nn.Parameter(ws.Graph().input("x", (2,)))
    with pytest.raises(ws.errors.UsageError, match=r"ReLU\(\) takes nothing; received 3"):
        ws.nn.ReLU(3)  # type: ignore[call-arg]
    with pytest.raises(ws.errors.UsageError, match="start and step need an integer stop"):
        ws.arange("batch", 9)
    for numbers in ((7,), (2, 7), (1, 8, 3), (5, 0, -2), (3, 3)):
        given = ws.nn.Parameter(ws.arange(*numbers, dtype="float32") + 0.0)
        assert given.init.args == tuple(np.arange(*numbers))
    held = ws.nn.ModuleDict({"first": ws.nn.Linear(2, 2)})
    assert held.first is held["first"]
    with pytest.raises(AttributeError, match="has no module 'second'; it has: first"):
        held.second  # noqa: B018
