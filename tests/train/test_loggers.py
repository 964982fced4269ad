"""What loggers write is what TensorBoard's own reader, csv and json read; a killed and resumed run has no row twice."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
STEPS = 4  # of an epoch

Scalars = dict[str, list[tuple[int, float]]]


def scalars(folder: Path) -> Scalars:
    """Every scalar of a folder, as TensorBoard shows it."""
    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


class Killed(BaseException):
    """Ends a run as a signal would: nothing after it runs."""


class KillAt(ws.Callback):
    every = 1

    def __init__(self, step: int) -> None:
        self.left = step

    def on_step(self, metrics: ws.StepMetrics) -> None:
        self.left -= 1
        if not self.left:
            raise Killed


def loggers(folder: Path) -> list[ws.Callback]:
    return [
        ws.TensorBoardLogger(folder / "tb"),
        ws.CSVLogger(folder / "log.csv"),
        ws.JSONLinesLogger(folder / "log.jsonl", steps=True),
    ]


def fit(folder: Path, *more: ws.Callback, resume: Path | None = None, epochs: int = 3) -> ws.TrainHistory:
    model = ws.nn.Linear(3, 2)
    keep = ws.ModelCheckpoint(folder / "run", "loss", last=9, every=3)
    given = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": epochs, "batch_size": 8, "progress": False}
    callbacks = [*loggers(folder), keep, *more]
    return ws.fit(model, (X, Y), **given, callbacks=callbacks, resume=resume)


def test_tensorboard_reads_every_scalar(tmp_path: Path) -> None:
    losses = ws.LossHistory()
    history = fit(tmp_path, losses)
    found = scalars(tmp_path / "tb")
    assert set(found) == {"step/loss", "epoch/loss", "epoch/accuracy"}
    assert found["step/loss"] == [(i, pytest.approx(v, rel=1e-6)) for i, v in enumerate(losses.losses)]
    for name in ("loss", "accuracy"):
        expected = [(STEPS * (i + 1) - 1, pytest.approx(v, rel=1e-6)) for i, v in enumerate(history[name])]
        assert found[f"epoch/{name}"] == expected


@pytest.mark.parametrize("checkpoint", ["run", "run/step-00000003"])
def test_after_a_kill_nothing_stands_twice(tmp_path: Path, checkpoint: str) -> None:
    """From the newest checkpoint, behind which two steps were logged, and from one in the first epoch."""
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fit(whole)
    with pytest.raises(Killed):
        fit(cut, KillAt(2 * STEPS + 2))
    assert ws.load_checkpoint(cut / "run").step == 2 * STEPS
    fit(cut, resume=cut / checkpoint)
    assert scalars(cut / "tb") == scalars(whole / "tb")
    for name in ("log.csv", "log.jsonl"):
        assert (cut / name).read_text() == (whole / name).read_text()


def test_a_new_run_in_an_old_folder_begins_anew(tmp_path: Path) -> None:
    fit(tmp_path, epochs=2)
    fit(tmp_path, epochs=1)
    assert [step for step, _ in scalars(tmp_path / "tb")["step/loss"]] == list(range(STEPS))
    assert len(list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))) == 1
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert len(lines) == STEPS + 1


def test_a_history_is_drawn_into_a_file(tmp_path: Path) -> None:
    history = ws.History([ws.EpochStats(i, 1 / (i + 1), 4, {"loss": 1 / (i + 1), "val_loss": 1.0}) for i in range(3)])
    assert history.plot(tmp_path / "run.png") == str(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes()[:4] == b"\x89PNG"
    assert (tmp_path / "run.png").stat().st_size > 5000
    assert history.plot(names=["val_loss"]).splitlines()[0] == "val_loss"
    with pytest.raises(KeyError, match="the history has no 'val_accuracy'; it has: loss, val_loss"):
        history.plot(tmp_path / "other.png", names=["val_acc"])
