"""The first minutes on a machine that lacks something: a step trains, or `doctor` names the command that mends it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from wholestep.cli import app, doctor, machine
from wholestep.compiler.backends.cpu.runtime import compiler
from wholestep.platforms import linux

PACKAGE = Path(__file__).parents[2]
MIB = 1 << 20
LIMIT = 512 * MIB

TRAINS = """
import wholestep as ws
x, y = ws.datasets.digits()
model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.ReLU(), ws.nn.Linear(16, 10))
history = ws.fit(model, (x[:640], y[:640]), loss="cross_entropy", epochs=3)
print(history["loss"][0] > history["loss"][-1])
"""


def trains(
    environment: Mapping[str, str] | None = None,
    limit: Callable[[], None] | None = None,
    package: Path = PACKAGE,
    folder: Path | None = None,
) -> str:
    """Train a small network in a process of its own; returns its warnings."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS],
        env={**os.environ, "PYTHONPATH": str(package), **(environment or {})},
        cwd=folder,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    return done.stderr


def report(monkeypatch: pytest.MonkeyPatch, *rows: str) -> tuple[int, dict[str, str]]:
    """The exit code and these rows of `wholestep doctor`, and its advice."""
    probes = dict(doctor.rows())
    monkeypatch.setattr(doctor, "rows", lambda: [(name, probes[name]) for name in rows])
    result = CliRunner().invoke(app, ["doctor"])
    lines = dict(line.split(maxsplit=1) for line in result.output.replace("to do", "to-do").splitlines())
    return result.exit_code, lines


def test_without_a_compiler_doctor_names_the_wheel_with_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiler, "_zig", lambda: None)
    code, lines = report(monkeypatch, "compiler", "self-test")
    assert code == 1
    assert lines["compiler"].startswith("FAILED: no C compiler was found")
    assert lines["self-test"] == 'ok with device="reference", which needs no compiler'
    assert lines["to-do"] == f'{sys.executable} -m pip install "wholestep[cc]"'


def test_a_compiler_that_is_named_and_missing_is_to_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert report(monkeypatch, "compiler") == (
        1,
        {"compiler": f"FAILED: {_error('no-such-compiler')}", "to-do": "unset CC"},
    )


def _error(command: str) -> str:
    with pytest.raises(Exception, match="was not found") as caught:
        compiler.find_compiler(command)
    return str(caught.value)


def test_in_a_home_that_cannot_be_written_doctor_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLESTEP_CACHE_DIR", "/proc/no-folder/can/be/made/here")
    code, lines = report(monkeypatch, "cache")
    assert code == 0  # it works, with a temporary folder
    assert lines["cache"].endswith("NOT KEPT: /proc/no-folder/can/be/made/here cannot be written")
    assert lines["to-do"].startswith("export WHOLESTEP_CACHE_DIR=")


def test_on_windows_the_commands_are_those_of_powershell(monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(platform="win32", executable=r"C:\Program Files\python.exe")
    monkeypatch.setattr(doctor, "sys", there)
    monkeypatch.setattr(machine, "cache_folder", lambda: (Path("C:/cache"), "C:/cache cannot be written"))
    monkeypatch.delenv("CC", raising=False)
    install, cache = doctor.remedies({"compiler": OSError()})[:2]
    assert install == r'& "C:\Program Files\python.exe" -m pip install "wholestep[cc]"'
    assert cache.startswith('$env:WHOLESTEP_CACHE_DIR = "')
    monkeypatch.setenv("CC", "gone")
    assert doctor.remedies({"compiler": OSError()})[0] == "Remove-Item Env:CC"


def test_too_little_memory_for_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup/batch/job7"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/batch/job7\n")
    monkeypatch.setattr(machine.platforms, "memory_limit", partial(linux.memory_limit, tmp_path))
    (group / "memory.max").write_text("max\n")
    assert "to-do" not in report(monkeypatch, "memory")[1]
    (group.parent / "memory.max").write_text(f"{256 * MIB}\n")
    code, lines = report(monkeypatch, "memory")
    assert (code, lines["memory"]) == (0, "0.2 GiB may be used")
    assert lines["to-do"].startswith("ulimit -v 524288")


def test_the_limit_of_an_older_container_is_read(tmp_path: Path) -> None:
    (tmp_path / "sys/fs/cgroup/memory").mkdir(parents=True)
    assert linux.memory_limit(tmp_path) is None
    (tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("1073741824\n")
    assert linux.memory_limit(tmp_path) == 1 << 30


def test_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert machine.describe_cores() == f"1 of {os.cpu_count()} may be used; 1 threads by default"
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.long
def test_a_step_trains_on_one_core() -> None:
    core = min(os.sched_getaffinity(0))
    trains(limit=lambda: os.sched_setaffinity(0, {core}))


@pytest.mark.long
def test_a_step_trains_in_512_mib() -> None:
    """NumPy's BLAS, our program and the compiler, each within the limit; each thread of BLAS reserves address space."""
    limit = LIMIT
    trains({"OPENBLAS_NUM_THREADS": "1"}, limit=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))


@pytest.mark.long
def test_a_step_trains_without_a_cache_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    trains({"WHOLESTEP_CACHE_DIR": str(folder), "CC": "cc -O1"})
    assert any(folder.iterdir())


@pytest.mark.long
def test_a_step_trains_in_a_home_that_cannot_be_written() -> None:
    warned = trains({"HOME": "/proc", "XDG_CACHE_HOME": "", "WHOLESTEP_CACHE_DIR": "", "CC": "cc -O1"})
    assert "cannot be used" in warned


@pytest.mark.long
def test_a_step_trains_in_folders_with_spaces_and_umlauts(tmp_path: Path) -> None:
    """The package, the cache, the temporary folder and the working folder."""
    strange = tmp_path / "Büro & Übung 1"
    strange.mkdir()
    (strange / "wholestep").symlink_to(PACKAGE / "wholestep")
    environment = {"WHOLESTEP_CACHE_DIR": str(strange / "Zwischen Ablage"), "TMPDIR": str(strange), "CC": "cc -O1"}
    trains(environment, package=strange, folder=strange)
    assert any((strange / "Zwischen Ablage").iterdir())
