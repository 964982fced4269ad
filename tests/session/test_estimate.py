"""`ws.estimate` before a run: bytes by purpose and layer, what fits, times, and what other settings would change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws

SPEC: dict[str, Any] = {
    "inputs": ws.Spec(("batch", 40)),
    "targets": ws.Spec(("batch",), "int64"),
    "loss": "cross_entropy",
    "optimizer": ws.Adam(),
    "batch_size": 32,
    "threads": 2,
}


def network() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(40, 64), ws.nn.ReLU(), ws.nn.Linear(64, 10))


def test_the_bytes_by_purpose_add_up_and_follow_the_shapes() -> None:
    found = ws.estimate(network(), **SPEC)
    assert sum(found.memory.values()) == found.peak_bytes
    sizes = {"0": 4 * (40 * 64 + 64), "2": 4 * (64 * 10 + 10)}
    assert sum(sizes.values()) <= found.memory["parameters"] < 1.2 * sum(sizes.values())  # columns of 16 are padded
    assert found.memory["optimizer"] == 2 * found.memory["parameters"]
    assert list(found.layers) == ["0", "2"]
    assert sum(found.layers.values()) == 3 * found.memory["parameters"]
    assert found.memory["activations"] >= 4 * 32 * 64
    clipped = ws.estimate(network(), **SPEC, clip_norm=1.0)  # gradients wait for their norm, so they are stored
    assert clipped.memory["gradients"] > found.memory["gradients"]
    assert clipped.memory["gradients"] >= sizes["0"] * 0.9
    assert found.fits("8GB")
    assert found.fits(found.peak_bytes)
    assert not found.fits(found.peak_bytes - 1)
    with pytest.raises(ws.errors.OptionError, match="expected bytes"):
        found.fits("50%")


def test_times_scale_with_rows_and_epochs(tmp_path: Path) -> None:
    found = ws.estimate(network(), **SPEC)
    assert found.step_seconds > 0
    assert found.epoch_seconds(33) == 2 * found.step_seconds
    assert found.run_seconds(64, epochs=3) == pytest.approx(6 * found.step_seconds)
    with pytest.raises(ws.errors.OptionError, match="at least one row"):
        found.epoch_seconds(0)
    changes = found.changes()
    assert list(changes) == ["now", "bfloat16", "two workers", "batch 64", "batch 256", "accumulate 2 x 16"]
    assert changes["batch 64"]["peak_bytes"] > changes["now"]["peak_bytes"] == found.peak_bytes
    assert changes["batch 64"]["step_seconds"] > changes["now"]["step_seconds"]
    stored = json.loads(found.to_json())
    assert stored["memory"] == found.memory
    assert stored["layers"] == found.layers
    assert stored["activations"] == found.activations
    assert "<svg" in Path(found.plot(tmp_path / "memory.svg")).read_text()
    assert "optimizer" in found.plot()
    assert "memory by purpose" in str(found)


def test_a_report_shows_predicted_beside_measured_times_after_a_run() -> None:
    session = ws.build_session(network(), **SPEC)
    assert "predicted" not in str(session.report())
    session.run(x=np.zeros((64, 40), np.float32), labels=np.zeros(64, np.int64))
    report = session.report()
    assert report.predicted == pytest.approx(ws.estimate(network(), **SPEC).step_seconds)
    assert report.measured is not None
    assert report.measured > 0
    assert "step: predicted" in str(report)


class Block(ws.nn.Module):
    def __init__(self) -> None:
        self.wide, self.narrow = ws.nn.Linear(40, 512), ws.nn.Linear(512, 10)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.narrow(ws.relu(self.wide(x)))


def test_activations_are_those_of_their_layers() -> None:
    found = ws.estimate(Block(), **SPEC)
    assert sum(found.activations.values()) <= found.memory["activations"] + found.memory["gradients"]
    assert found.activations["wide"] >= 4 * 32 * 512  # read by the backward pass
    assert found.activations["wide"] == max(found.activations.values())
    assert "activations" in str(found)
    halved = ws.estimate(Block(), **{**SPEC, "batch_size": 16})
    assert halved.activations["wide"] < 0.7 * found.activations["wide"]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_the_bytes_of_accumulation_are_those_of_its_session(clip_norm: float | None) -> None:
    given = {**SPEC, "batch_size": 16, "accumulate": 4, "clip_norm": clip_norm}
    found = ws.estimate(Block(), **given)
    assert found.rows == 64
    assert sum(found.memory.values()) == found.peak_bytes
    session = ws.build_session(Block(), **given)
    session.step(x=np.zeros((64, 40), np.float32), labels=np.zeros(64, np.int64))
    assert found.peak_bytes == session.peak_bytes
    one = ws.estimate(Block(), **{**SPEC, "batch_size": 16})
    assert 2 * one.step_seconds < found.step_seconds < 6 * one.step_seconds
    assert found.activations["wide"] >= 4 * 16 * 512
    assert "accumulate 2 x 8" not in found.changes()
