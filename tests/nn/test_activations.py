"""`model.activations`: what every layer gives, against torch's hooks."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch

import wholestep as ws

RNG = np.random.default_rng(2)
X = RNG.normal(size=(5, 6)).astype(np.float32)


@pytest.mark.egraph
def test_every_layer_is_what_torchs_hooks_see(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wholestep.session.building.plans.find_plan", lambda *_: None)  # a cached plan has no log
    ours = ws.nn.Sequential(
        ws.nn.Linear(6, 4), ws.nn.Tanh(), ws.nn.Sequential(ws.nn.Dropout(0.5), ws.nn.Linear(4, 2), ws.nn.GELU())
    )
    theirs = torch.nn.Sequential(
        torch.nn.Linear(6, 4), torch.nn.Tanh(),
        torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(4, 2), torch.nn.GELU()),
    ).eval()  # fmt: skip
    theirs.load_state_dict({name: torch.tensor(a) for name, a in ours.state_dict().items()})
    expected: dict[str, np.ndarray] = {}  # type: ignore[type-arg]

    def watch(path: str, part: torch.nn.Module) -> None:
        def hook(module: object, given: object, out: torch.Tensor) -> None:
            expected[path] = out.detach().numpy()

        part.register_forward_hook(hook)

    for path, part in theirs.named_modules():
        if path:
            watch(path, part)
    theirs(torch.tensor(X))
    with caplog.at_level(logging.DEBUG, "wholestep"):
        found = ours.activations(X)
    assert list(found) == list(expected) == ["0", "1", "2.0", "2.1", "2.2", "2"]
    for path, value in expected.items():
        np.testing.assert_allclose(found[path], value, rtol=1e-5, atol=1e-6)
    # What is planned, and what the rewriting did, can be read in the log.
    assert "traced graph:\n" in caplog.text
    assert "before autodiff: " in caplog.text


def test_numbers_are_those_of_now_and_copies_have_their_own() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(6, 4), ws.nn.ReLU())
    before = model.activations(X)["0"]
    model.load_state_dict({name: 2 * a for name, a in model.state_dict().items()})
    np.testing.assert_allclose(model.activations(X)["0"], 2 * before, rtol=1e-6)
    with pytest.raises(ws.errors.ShapeError):
        model.activations(X[:, :3])
