"""Adam with 8-bit states: their bytes in the plan, and training as with Adam; its numbers are in test_contract.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import assert_same_bits
from wholestep.errors import OptionError
from wholestep.optim import Adam8bit, AdamW8bit

LAYERS, WIDTH = 12, 256


def session_with(optimizer: ws.Optimizer) -> ws.Session:
    layers = [layer for _ in range(LAYERS) for layer in (ws.nn.Linear(WIDTH, WIDTH), ws.nn.Tanh())]
    specs = {"inputs": ws.Spec(("batch", WIDTH)), "targets": ws.Spec(("batch", WIDTH))}
    return ws.build_session(ws.nn.Sequential(*layers), **specs, loss="mse", optimizer=optimizer, batch_size=16)


def test_the_plan_has_two_bytes_for_each_weight() -> None:
    eight, full = session_with(Adam8bit()), session_with(ws.Adam())
    weights, biases = LAYERS * WIDTH * WIDTH, LAYERS * WIDTH
    bytes_of = {n: eight.get(n).nbytes for n in eight.state.names if ".adam8bit." in n}
    assert sum(bytes_of.values()) == 2 * (weights + biases) + 2 * 4 * (LAYERS * WIDTH + LAYERS)
    assert sum(full.get(n).nbytes for n in full.state.names if ".adam." in n) == 8 * (weights + biases)
    assert eight.state.mapped_bytes < full.state.mapped_bytes - 5.9 * weights
    assert eight.peak_bytes < 0.75 * full.peak_bytes


def test_training_is_as_good_as_with_adam_and_resumes_exactly(tmp_path: Path) -> None:
    x, y = ws.datasets.digits()

    def fit(optimizer: ws.Optimizer, epochs: int = 6, **options: Any) -> ws.TrainHistory:
        ws.manual_seed(0)
        model = ws.nn.Sequential(ws.nn.Linear(64, 64), ws.nn.ReLU(), ws.nn.Linear(64, 10))
        given = {"loss": "cross_entropy", "epochs": epochs, "seed": 0, "progress": False, **options}
        return ws.fit(model, (x, y), validation=0.2, optimizer=optimizer, **given)

    eight = fit(AdamW8bit(3e-3), checkpoint=tmp_path / "whole")
    full = fit(ws.AdamW(3e-3))
    assert eight["loss"][-1] < 1.15 * full["loss"][-1]
    assert eight["val_loss"][-1] < 1.15 * full["val_loss"][-1]
    fit(AdamW8bit(3e-3), 3, checkpoint=tmp_path / "parts")
    fit(AdamW8bit(3e-3), checkpoint=tmp_path / "parts", resume=True, exact=True)
    whole, parts = (ws.load_checkpoint(tmp_path / n).arrays for n in ("whole", "parts"))
    assert_same_bits(whole, parts)
    assert whole["0.weight.adam8bit.m"].dtype == np.uint8


def test_the_largest_second_moment_is_not_stored_in_bytes() -> None:
    with pytest.raises(OptionError, match=r"stores no largest v; use ws.Adam\(amsgrad=True\)"):
        Adam8bit(amsgrad=True)
