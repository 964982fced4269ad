"""`wholestep train --workers 2`: one progress bar, one run in one folder, gone on with by any number of workers."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

import wholestep as ws
from tests.distributed.scripts.experiment import build
from tests.distributed.support.ranks import SCRIPTS, run
from tests.distributed.support.training import fingerprint
from wholestep.cli import app
from wholestep.distributed.launch import launcher
from wholestep.errors import CheckpointError, UsageError

SCRIPT = os.fspath(SCRIPTS / "experiment.py")


def train(*arguments: str) -> tuple[str, str]:
    done = run([sys.executable, "-m", "wholestep.cli", "train", *arguments], {})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def weights_in(folder: Path) -> str:
    experiment = build()
    assert isinstance(experiment.model, ws.nn.Module)
    newest = ws.load_checkpoint(folder).path
    assert newest is not None
    experiment.model.load(newest / "weights.safetensors")
    return fingerprint(experiment.model)


def test_workers_make_one_run_that_goes_on_with_as_many_to_the_same_bits_and_with_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    output, progress = train(SCRIPT, "--workers", "2", "--folder", str(folder))
    assert output.count("checkpoints: ") == 1  # said once
    assert progress.count("epoch 2/2  loss ") == 1
    (steps, samples), *_ = re.findall(r"([\d,]+) steps/s, ([\d,]+) samples/s", progress)
    rows, updates = 300, -(-300 // 32)  # of an epoch, all workers' together
    ratio = int(samples.replace(",", "")) / int(steps.replace(",", ""))
    assert ratio == pytest.approx(rows / updates, rel=0.1)
    assert "[1]" not in output + progress
    expected = build()
    history = expected.fit(shards=2, progress=False)
    assert weights_in(folder) == fingerprint(expected.model)  # type: ignore[arg-type]
    assert ws.load_checkpoint(folder).identity["shards"] == 2
    assert [e.logs for e in ws.load_checkpoint(folder).history.epochs] == [e.logs for e in history.epochs]

    train("--resume", str(folder), "--workers", "2", "--epochs", "3")
    longer = build()
    longer.fit(shards=2, progress=False, epochs=3, seed=0)
    assert weights_in(folder) == fingerprint(longer.model)  # type: ignore[arg-type]

    with pytest.raises(
        CheckpointError, match=r"shards: the checkpoint has 2, this run 3; sums are computed over another n"
    ):
        build().fit(shards=3, progress=False, epochs=4, resume=folder, exact=True)
    with caplog.at_level(logging.WARNING, "wholestep"):
        other = build().fit(shards=3, progress=False, epochs=4, resume=folder)
    assert len(other.epochs) == 4
    assert "bits may differ from an uninterrupted run: shards: the checkpoint has 2, this run 3" in caplog.text


def test_workers_in_a_grid_are_more_than_one(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["train", SCRIPT, "--model", "2", "--folder", str(tmp_path / "run")])
    assert "--model 2 divides layers among workers: give --workers 4, too." in told.stderr


@pytest.mark.long
def test_workers_of_a_command_stand_in_a_grid(tmp_path: Path) -> None:
    train(SCRIPT, "--workers", "2", "--model", "2", "--folder", str(tmp_path / "run"))
    expected = build()
    expected.fit(shards=(1, 2), progress=False)
    assert weights_in(tmp_path / "run") == fingerprint(expected.model)  # type: ignore[arg-type]
    assert ws.load_checkpoint(tmp_path / "run").identity["shards"] == "1 x 2"


def test_ranks_as_processes_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(UsageError, match=r"need Linux, and this is win32\. Train in one process: shards=4"):
        launcher.run_job(launcher.Job(2, (sys.executable, "train.py")), print)


def test_restarts_need_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WHOLESTEP_RANK": "0", "WHOLESTEP_RANKS": "2", "WHOLESTEP_RESTARTS": "3"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=r"restarts=3 resume from checkpoints, and this run writes none: give ws.fit"):
        build().fit(progress=False)
