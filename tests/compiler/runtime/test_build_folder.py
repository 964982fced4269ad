"""A later build removes the folders of killed compilers, and no folder that is in use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wholestep.compiler.runtime import build_folder as folders
from wholestep.compiler.runtime.build_folder import build_folder, remove_abandoned

ROOT = Path(__file__).parents[3]
HOLDS = """
from wholestep.compiler.runtime.build_folder import build_folder
with build_folder() as folder:
    print(folder, flush=True)
    input()
"""
BUILDS = """
import numpy as np, wholestep as ws
from wholestep.compiler.runtime import build_folder
build_folder.MIN_AGE = 0.0
x = np.zeros((4, 3), np.float32)
ws.fit(ws.nn.Linear(3, 1), (x, x[:, :1]), loss="mse", progress=False)
"""


def start(code: str, temporary: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    told = {
        **os.environ,
        "PYTHONPATH": paths,
        "TMPDIR": str(temporary),
        "WHOLESTEP_CACHE_DIR": str(temporary / "cache"),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=told
    )


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "MIN_AGE", 0.0)
    return tmp_path


def test_a_folder_whose_process_was_killed_is_removed_by_a_later_run(tmp_path: Path) -> None:
    killed, other = start(HOLDS, tmp_path), start(HOLDS, tmp_path)
    assert killed.stdout is not None
    assert other.stdout is not None
    left, in_use = Path(killed.stdout.readline().strip()), Path(other.stdout.readline().strip())
    (left / "plan.c").write_text("int main;")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert left.is_dir()
    later = start(BUILDS, tmp_path)
    later.communicate()
    assert later.returncode == 0
    assert not left.exists()
    assert in_use.is_dir(), "a folder in use is left alone"
    other.communicate("\n")
    assert not list(tmp_path.glob("wholestep-cc-*"))


def test_what_is_new_or_not_a_folder_is_left_alone(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    (here / "wholestep-cc-link").symlink_to(elsewhere)
    (here / "wholestep-cc-file").touch()
    monkeypatch.setattr(folders, "MIN_AGE", 60.0)
    new, old = here / "wholestep-cc-new", here / "wholestep-cc-old"
    new.mkdir()
    old.mkdir()
    os.utime(old, (time.time() - 120.0,) * 2)
    remove_abandoned()
    assert new.is_dir()
    assert not old.exists()
    monkeypatch.setattr(folders, "MIN_AGE", 0.0)
    remove_abandoned()
    assert sorted(p.name for p in here.iterdir()) == ["elsewhere", "wholestep-cc-file", "wholestep-cc-link"]


def test_a_folder_is_gone_when_its_build_has_ended(here: Path) -> None:
    with build_folder() as folder:
        remove_abandoned()
        assert Path(folder).is_dir()
    assert not Path(folder).exists()
