"""Workers that are killed, hang or are told to stop: what the others say, and that a run goes on to the same bits."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.distributed.scripts import long_run
from tests.distributed.support.ranks import ROOT, SCRIPTS, launch
from wholestep.callbacks.run import Run
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.worker_sync import agree

SCRIPT = os.fspath(Path(long_run.__file__))
SECONDS = 300.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the weights are in the end."""
    return long_run.main(tmp_path_factory.mktemp("undisturbed"), shards=2)


@contextmanager
def job(
    folder: Path, *options: str, timeout: str = "60", shard: str = "", count: int = 2
) -> Iterator[subprocess.Popen[str]]:
    """`wholestep launch -n 2 ...` under way."""
    script = [SCRIPT, os.fspath(folder), timeout, *([shard] if shard else [])]
    command = [sys.executable, "-m", "wholestep.cli", "launch", "-n", str(count), *options, *script]
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def workers_of(launcher: subprocess.Popen[str]) -> list[int]:
    """The processes that train, by rank."""
    found: dict[int, int] = {}
    for pid in below(launcher.pid):
        with suppress(OSError):  # it may be gone by now
            words, told = (Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0") for name in ("cmdline", "environ"))
            variables = dict(line.decode().partition("=")[::2] for line in told)
            rank = variables.get("WHOLESTEP_RANK")
            if words[1:2] == [SCRIPT.encode()] and rank is not None:
                found[int(rank)] = pid
    return [found[rank] for rank in sorted(found)]


def below(process: int) -> Iterator[int]:
    """The processes that one has started, and theirs."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        for pid in map(int, file.read_text().split()):
            yield pid
            yield from below(pid)


def wait_for_checkpoint(folder: Path, steps: int = 1) -> None:
    deadline = time.monotonic() + SECONDS
    while not any(int(path.name[5:13]) >= steps for path in (folder / "run").glob("step-*")):
        assert time.monotonic() < deadline, "no checkpoint was written"
        time.sleep(0.01)


def disturb(folder: Path, process: int, how: signal.Signals) -> None:
    os.kill(process, how)
    (folder / "disturbed").touch()


def ended(launcher: subprocess.Popen[str]) -> tuple[int, str]:
    output, errors = launcher.communicate(timeout=SECONDS)
    return launcher.returncode, output + errors


def weights(folder: Path, count: int = 2) -> list[str]:
    return [(folder / f"end-{rank}").read_text() for rank in range(count)]


@pytest.mark.parametrize("seed", [*range(2), *[pytest.param(n, marks=pytest.mark.long) for n in range(2, 20)]])
def test_a_worker_is_killed_at_any_moment_and_the_run_ends_with_the_same_bits(
    seed: int, tmp_path: Path, undisturbed: str
) -> None:
    """Of odd seeds, workers divide the optimizer's state and write it together: the weights have the same bits."""
    generator = random.Random(seed)
    with job(tmp_path, "--restarts", "1", shard="optimizer" if seed % 2 else "") as launcher:
        if seed % 4 != 3:  # else while they start
            wait_for_checkpoint(tmp_path)
        time.sleep(generator.uniform(0.0, 0.4))
        rank = generator.randrange(2)
        while len(found := workers_of(launcher)) < 2:
            time.sleep(0.01)
        disturb(tmp_path, found[rank], signal.SIGKILL)
        code, said = ended(launcher)
    assert code == 0, said
    assert f"wholestep: rank {rank} of 2 was killed by SIGKILL" in said, said
    assert "starting again from the last checkpoint (1 of 1 restarts)" in said
    assert weights(tmp_path) == [undisturbed] * 2
    written = {path.name for path in checkpoints_in(tmp_path / "run")[-1].path.glob("training*")}
    owned = {f"training-0000{n}-of-00002.safetensors" for n in (1, 2)} if seed % 2 else set()
    assert written == {"training.safetensors"} | owned
    assert [path.name for path in (tmp_path / "run").glob(".*")] == [".lock"]  # nothing half-written


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 3])
def test_a_worker_of_a_grid_is_killed_and_the_run_ends_with_the_same_bits(rank: int, tmp_path: Path) -> None:
    """Four of them divide batches and layers; each has written its parts."""
    with job(tmp_path, "--restarts", "1", shard="layers", count=4) as launcher:
        wait_for_checkpoint(tmp_path, long_run.ROWS // long_run.BATCH)
        disturb(tmp_path, workers_of(launcher)[rank], signal.SIGKILL)
        code, said = ended(launcher)
    assert code == 0, said
    assert f"rank {rank} of 4 was killed by SIGKILL" in said
    (tmp_path / "again").mkdir()
    assert weights(tmp_path, 4) == [long_run.main(tmp_path / "again", shards=(2, 2))] * 4


def test_a_worker_that_hangs_is_named_with_its_last_step(tmp_path: Path) -> None:
    with job(tmp_path, timeout="5") as launcher:  # a busy machine keeps a worker from coming for less
        wait_for_checkpoint(tmp_path, long_run.ROWS // long_run.BATCH)
        disturb(tmp_path, workers_of(launcher)[1], signal.SIGSTOP)
        code, said = ended(launcher)
    assert code == 75, said
    told = re.search(
        r"error: rank 1 of 2 \(process \d+ on .*\) did not come within 5 s: it hangs.* last step was (\d+)", said
    )
    assert told is not None, said
    assert int(told[1]) >= long_run.ROWS // long_run.BATCH
    assert "wholestep: rank 1 of 2 hung, or was left behind, and was killed" in said, said


@pytest.mark.parametrize("options", [(), ("--hosts", "localhost,127.0.0.1")], ids=["memory", "messages"])
def test_ranks_that_call_different_things_are_told_so(options: tuple[str, ...]) -> None:
    """Where one of them is in the loop of an epoch, too."""
    done = launch("-n", "2", *options, str(SCRIPTS / "out_of_step.py"))
    assert done.returncode == 75, done.stdout + done.stderr
    for other in (0, 1):
        assert re.search(rf"error: rank {other} of 2 \([^)]*\) exchanges something else: it is at another", done.stderr)
    assert "threads" not in done.stderr


def test_a_closed_terminal_saves_and_stops_all(tmp_path: Path) -> None:
    """The launcher receives SIGHUP, and forwards it to its ranks."""
    with job(tmp_path) as launcher:
        wait_for_checkpoint(tmp_path)
        disturb(tmp_path, launcher.pid, signal.SIGHUP)
        code, said = ended(launcher)
    assert code == 128 + signal.SIGHUP, said
    assert not (tmp_path / "end-0").exists()


def test_a_job_does_not_write_where_another_run_does(tmp_path: Path) -> None:
    """Its ranks are one writer: they do not refuse each other, and the first one is refused for all."""
    with job(tmp_path) as launcher:
        wait_for_checkpoint(tmp_path)
        with job(tmp_path) as second:
            code, said = ended(second)
        assert code == 1, said
        assert re.search(r"process \d+ on host \S+ .*is writing checkpoints to", said), said
        disturb(tmp_path, launcher.pid, signal.SIGTERM)
        assert ended(launcher)[0] == 128 + signal.SIGTERM


def test_sigterm_to_one_worker_saves_and_stops_all_and_the_run_goes_on_to_the_same_bits(
    tmp_path: Path, undisturbed: str
) -> None:
    with job(tmp_path) as launcher:
        wait_for_checkpoint(tmp_path)
        disturb(tmp_path, workers_of(launcher)[1], signal.SIGTERM)
        code, said = ended(launcher)
    assert code == 128 + signal.SIGTERM, said
    assert not (tmp_path / "end-0").exists()
    with job(tmp_path) as launcher:
        code, said = ended(launcher)
    assert (code, weights(tmp_path)) == (0, [undisturbed] * 2), said


class Two:
    """A group of two, of which the other one wants nothing."""

    rank, size, engine = 0, 2, "fake"

    def gather(self, data: bytes) -> list[bytes]:
        return [data, bytes(len(data))]


def test_what_one_worker_asks_for_counts_once_all_of_them_know() -> None:
    run = Run(SimpleNamespace(group=Two()), epochs=3)  # type: ignore[arg-type]
    run.receive(signal.SIGTERM, "SIGTERM")  # between two safe points, where the others have not heard of it
    assert (run.stopped_by, run.interrupted, run.signal) == ("", False, 0)
    agree(run)
    assert (run.stopped_by, run.interrupted, run.signal) == ("worker 0 received SIGTERM", True, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.parametrize("options", [(), ("--hosts", "localhost,127.0.0.1")], ids=["one machine", "hosts"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_does_too(
    number: signal.Signals, options: tuple[str, ...], tmp_path: Path, undisturbed: str
) -> None:
    with job(tmp_path, *options) as launcher:
        wait_for_checkpoint(tmp_path)
        disturb(tmp_path, launcher.pid, number)
        code, said = ended(launcher)
    assert code == 128 + number, said
    with job(tmp_path, *options) as launcher:
        code, said = ended(launcher)
    assert (code, weights(tmp_path)) == (0, [undisturbed] * 2), said
