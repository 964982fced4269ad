"""`ws.Workers(engine="ray")`: what it refuses, what it shows; with Ray (long), runs on its workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import wholestep as ws
from tests.workers.ranks import ROOT
from wholestep.errors import UsageError
from wholestep.workers import ray


def workers(folder: Path) -> ws.Workers:
    return ws.Workers(2, engine="ray", checkpoint=folder)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(
        UsageError, match=r"needs ray and mpi4py, which is not installed: pip install 'wholestep\[ray\]'"
    ):
        ray.run_on_ray(workers(tmp_path))


def test_a_number_of_workers_and_a_folder_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: True)
    with pytest.raises(UsageError, match=r"has to know how many: ws.Workers\(4, engine='ray', ...\)"):
        ray.this_program(ws.Workers(engine="ray", checkpoint="runs/a"))
    with pytest.raises(UsageError, match=r"a folder that all machines see, ws.Workers\(4, .*checkpoint='runs/a'\)"):
        ray.this_program(ws.Workers(2, engine="ray"))


def test_a_program_without_a_script_is_refused(tmp_path: Path) -> None:
    said = (
        "import wholestep as ws; from wholestep.workers import ray; ray.find_spec = lambda name: True; "
        "ray.this_program(ws.Workers(2, engine='ray', checkpoint='a'))"
    )
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "starts this program's script again on every worker, and there is none" in done.stderr


def test_ranks_are_started_as_this_program_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: True)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--width", "3"])
    monkeypatch.chdir(tmp_path)
    program = ray.this_program(ws.Workers(2, engine="ray", checkpoint="runs/a", restarts=3))
    assert program.command == (sys.executable, "train.py", "--width", "3")
    assert (program.folder, program.restarts) == (str(tmp_path), 3)
    assert program.logs == str(tmp_path / "runs" / "a" / "ray")


def test_what_ranks_write_is_shown_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ray.log_of(tmp_path, 0), ray.log_of(tmp_path, 1)
    first.write_text("of an earlier run\n")
    with ray.shown(tmp_path):
        with first.open("a") as file:
            file.write("epoch 1\nepo")
        second.write_text("a warning\n")
        with first.open("a") as file:
            file.write("ch 2\n")
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == ["[1] a warning", "epoch 1", "epoch 2"]
