"""What is warned about in time: a loss that explodes, a schedule that has ended."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.train.checkpoint.test_checkpoint import fit, model
from wholestep.errors import TrainingWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 3)).astype(np.float32)
Y = (X @ np.ones((3, 1), np.float32)).astype(np.float32)


def regression(scale: float = 1.0, **options: Any) -> ws.TrainHistory:
    return ws.fit(ws.nn.Linear(3, 1), (X, scale * Y), loss="mse", batch_size=8, progress=False, **options)


def test_a_loss_that_explodes_is_warned_about_once_and_before_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is infinite: without a warning the run would end as if all were well."""
    history = regression(optimizer=ws.SGD(lr=5.0), epochs=2)
    assert 1e6 < history["loss"][-1] < np.inf
    assert caplog.text.count("the loss explodes") == 1
    said = r"its mean over the first (\d+) steps of epoch 0 is \S+, that of the first step was \S+\. Lower the "
    told = re.search(said + r"learning rate \(it is 5\), clip the gradients \(clip_norm=1\.0\)", caplog.text)
    assert told is not None
    assert int(told[1]) <= 8


@pytest.mark.parametrize(
    ("scale", "rate"), [(1.0, 0.05), (1e3, 0.05), (1e-3, 0.05), (1.0, 0.3)], ids=["plain", "large", "small", "fast"]
)
def test_healthy_runs_are_not(caplog: pytest.LogCaptureFixture, scale: float, rate: float) -> None:
    caplog.set_level(logging.WARNING)
    regression(scale, optimizer=ws.SGD(lr=rate), epochs=3)
    assert "explodes" not in caplog.text


SCHEDULES = {
    "by epoch": lambda: ws.schedules.CosineAnnealingLR(ws.SGD(lr=0.1), T_max=20),
    "by step": lambda: ws.schedules.cosine(),
}


@pytest.mark.parametrize("more", [21, 22, 40])
@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_that_has_ended_is_warned_about_when_the_run_begins(tmp_path: Path, kind: str, more: int) -> None:
    """However few epochs are added: all of them are trained with the last rate."""
    options: dict[str, Any] = {"schedule": SCHEDULES[kind](), "optimizer": ws.SGD(lr=0.1), "checkpoint": tmp_path}
    fit(model(), epochs=20, **options)
    length = {"by epoch": "20 epochs", "by step": "240 steps"}[kind]
    expected = (
        rf"optimizer\.lr, Cosine {kind}, has ended: it is {length} long, this run begins after \d+ and trains with 0"
    )
    with pytest.warns(TrainingWarning, match=expected):
        history = fit(model(), epochs=more, resume=True, **options)
    assert history["lr"][20:] == [0.0] * (more - 20)


def test_a_schedule_that_goes_on_is_not_warned_about(tmp_path: Path) -> None:
    """A warning would be an error here."""
    options: dict[str, Any] = {"schedule": SCHEDULES["by epoch"](), "optimizer": ws.SGD(lr=0.1), "checkpoint": tmp_path}
    fit(model(), epochs=20, callbacks=ws.StepBudget(24), **options)
    fit(model(), epochs=20, resume=True, **options)
    fit(model(), epochs=20, resume=True, **options)  # nothing is left to do
