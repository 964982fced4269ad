"""A branch equals its run up to a step, and from there a run whose setting changes at that step, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app

RNG = np.random.default_rng(1)
X = RNG.normal(size=(48, 4)).astype(np.float32)
Y = RNG.integers(0, 3, 48)
SCRIPT = """
import numpy as np
import wholestep as ws
rng = np.random.default_rng(1)
x, y = rng.normal(size=(48, 4)).astype(np.float32), rng.integers(0, 3, 48)
def build(lr: float = 1e-2):
    return ws.Experiment(model=ws.nn.Linear(4, 3), data=(x, y), loss="cross_entropy", optimizer=ws.Adam(lr=lr),
                         batch_size=8, epochs=2, seed=0, device="reference")
"""


def build(**settings: Any) -> ws.Experiment:
    """Three epochs of six steps."""
    given = {"loss": "cross_entropy", "optimizer": ws.Adam(lr=1e-2), "batch_size": 8, "epochs": 3, "seed": 0}
    model = ws.nn.Sequential(ws.nn.Linear(4, 5), ws.nn.Dropout(0.2), ws.nn.Linear(5, 3))
    return ws.Experiment(model=model, data=(X, Y), device="reference", progress=False, **{**given, **settings})


class Rate(ws.Callback):
    """Changes the rate before a step."""

    every = 1

    def __init__(self, step: int, lr: float) -> None:
        self.step, self.lr = step, lr

    def on_step(self, metrics: ws.StepMetrics) -> None:
        if 6 * metrics.epoch + metrics.step + 1 == self.step:
            self.session.optimizer.lr = self.lr


@pytest.mark.parametrize("step", [6, 8])  # a checkpoint; between two of them
def test_a_branch_is_the_run_whose_rate_changes_at_a_step(step: int, tmp_path: Path) -> None:
    build().fit(checkpoint=tmp_path / "a")
    expected = build(callbacks=[Rate(step, 1e-3)])
    history = expected.fit()
    other = build(optimizer=ws.Adam(lr=1e-3))
    ws.branch(build(), tmp_path / "a", step, other, tmp_path / "b")
    branched = other.fit(checkpoint=tmp_path / "b", resume=True)
    assert branched["loss"] == history["loss"]
    for name, array in expected.model.state_dict().items():
        assert array.tobytes() == other.model.state_dict()[name].tobytes()
    difference = ws.compare_runs((build(), tmp_path / "a"), (build(optimizer=ws.Adam(lr=1e-3)), tmp_path / "b"))
    assert difference is not None
    assert difference.step == step + 1
    assert any("lr" in each and "0.01 and 0.001" in each for each in difference.settings)
    with pytest.raises(ws.errors.UsageError, match=f"begins at step {step}, as a branch"):
        ws.Replay(other, tmp_path / "b", step - 1)
    with pytest.raises(ws.errors.UsageError, match="holds a run"):
        ws.branch(build(), tmp_path / "a", step, other, tmp_path / "b")


def test_another_batch_size_needs_the_end_of_an_epoch(tmp_path: Path) -> None:
    build().fit(checkpoint=tmp_path / "a")
    with pytest.raises(ws.errors.UsageError, match="branch between epochs, at 6"):
        ws.branch(build(), tmp_path / "a", 7, build(batch_size=16), tmp_path / "b")


def test_compare_names_settings_that_are_not_runtime_scalars(tmp_path: Path) -> None:
    build(epochs=1).fit(checkpoint=tmp_path / "a")
    build(epochs=1, clip_norm=0.1).fit(checkpoint=tmp_path / "b")
    difference = ws.compare_runs((build(), tmp_path / "a"), (build(clip_norm=0.1), tmp_path / "b"))
    assert difference is not None
    assert any(each.startswith("clip_norm=None and 0.1") for each in difference.settings)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.py").write_text(SCRIPT)
    run = CliRunner().invoke
    assert run(app, ["train", "exp.py", "--folder", "a"]).exit_code == 0
    done = run(app, ["branch", "a@9", "--set", "lr=0.001"])
    assert done.exit_code == 0, done.output
    assert "wholestep train --resume a-9" in done.output
    assert run(app, ["train", "--resume", "a-9"]).exit_code == 0
    assert ws.load_checkpoint("a-9").step == 12
    assert "lr" in run(app, ["compare", "a", "a-9"]).output
    assert "names no step" in run(app, ["branch", "a"]).output
