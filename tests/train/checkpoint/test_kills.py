"""SIGKILL at random moments: every resume ends with the bits of the uninterrupted run."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from wholestep.train.checkpoint.folder import checkpoints_in

pytestmark = pytest.mark.native  # the script trains on the CPU
SCRIPT = Path(__file__).with_name("run_to_kill.py")
ROOT = SCRIPT.parents[3]
STEPS = 80  # of the whole run


def start(folder: Path, device: str = "cpu", held: bool = False) -> subprocess.Popen[str]:
    """A run under way; `held`: it does not begin its last epoch before its input ends."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), str(folder), device, *["held"] * held],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "ready"
    return child


def digest_of(child: subprocess.Popen[str]) -> str:
    out, _ = child.communicate(timeout=300)
    return out.strip()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody interrupts."""
    digest = digest_of(start(tmp_path_factory.mktemp("whole")))
    assert len(digest) == 64
    return digest


def newest(folder: Path) -> int:
    found = checkpoints_in(folder)
    return found[-1].step if found else 0


def killed_somewhere(child: subprocess.Popen[str], folder: Path, rng: random.Random) -> str:
    """Kill a run at a random moment behind its next checkpoint; its digest where it was faster than we."""
    wanted = min(newest(folder) + rng.randint(1, 30), STEPS)
    while newest(folder) < wanted and child.poll() is None:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.01))  # somewhere in the next steps, or while one is being written
    child.send_signal(signal.SIGKILL)
    return digest_of(child)


def kill_and_resume(tmp_path: Path, whole: str, kills: int, seed: int, device: str = "cpu") -> None:
    """Runs that are killed and resumed, over and over, until there were enough kills; then one comes to its end."""
    rng, names, done, folder = random.Random(seed), count(1), 0, tmp_path / "run0"
    while done < kills:
        ended = killed_somewhere(start(folder, device), folder, rng)
        if ended:
            assert ended == whole
            folder = tmp_path / f"run{next(names)}"
        else:
            done += 1
    assert digest_of(start(folder, device)) == whole
    assert not list(folder.glob(".writing-*")), "what a killed run left behind is swept away"


def test_a_killed_run_ends_with_the_same_bits(tmp_path: Path, whole: str) -> None:
    kill_and_resume(tmp_path, whole, kills=2, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_fifty_kills(tmp_path: Path, whole: str, seed: int) -> None:
    kill_and_resume(tmp_path, whole, kills=10, seed=1 + seed)


@pytest.mark.parametrize("seed", range(5))
def test_fifty_kills_on_a_gpu(tmp_path: Path, request: pytest.FixtureRequest, seed: int) -> None:
    """`--kills` of them in all, on this machine's own."""
    if not request.config.getoption("--gpu"):
        pytest.skip("needs a GPU: pytest --gpu")
    whole = digest_of(start(tmp_path / "whole", "cuda"))
    assert len(whole) == 64
    kill_and_resume(tmp_path, whole, request.config.getoption("--kills") // 5, seed=11 + seed, device="cuda")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_finishes_the_step_saves_and_exits(
    tmp_path: Path, whole: str, number: signal.Signals, code: int
) -> None:
    child = start(tmp_path, held=True)
    while not newest(tmp_path) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(number)
    assert digest_of(child) == "", "it does not go on to the end of the script"
    assert child.returncode == code
    assert 0 < newest(tmp_path) < STEPS, "the run was saved"
    if number is signal.SIGINT:
        assert digest_of(start(tmp_path)) == whole


def test_a_closed_terminal_saves_the_run(tmp_path: Path) -> None:
    """The kernel sends SIGHUP to the run, and what it prints from then on cannot be written."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    child, terminal = pty.fork()
    if not child:
        environment = {**os.environ, "PYTHONPATH": paths}
        os.execve(sys.executable, [sys.executable, str(SCRIPT), str(tmp_path), "cpu", "held"], environment)
    while not newest(tmp_path) and not os.waitpid(child, os.WNOHANG)[0]:
        time.sleep(0.001)
    assert newest(tmp_path), "the script ended before its first step"
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGHUP
    assert 0 < newest(tmp_path) < STEPS, "the run was saved"


def test_under_nohup_a_run_goes_on(tmp_path: Path, whole: str) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup leaves it to its child
    try:
        child = start(tmp_path, held=True)
    finally:
        signal.signal(signal.SIGHUP, before)
    while not newest(tmp_path) and child.poll() is None:
        time.sleep(0.001)
    child.send_signal(signal.SIGHUP)
    assert digest_of(child) == whole
    assert child.returncode == 0
