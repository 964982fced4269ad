"""`wholestep launch`: ranks on this machine, their output, how they end, restarts; and what `ws.Workers` refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import pytest

import wholestep as ws
from tests.distributed.support.ranks import SCRIPTS, launch, run
from wholestep.distributed.launch import agent, hosts
from wholestep.errors import OptionError, UsageError

JOB = str(SCRIPTS / "job.py")
ONE_LINE = str(SCRIPTS / "one_line.py")


def test_ranks_of_other_numbers_than_0_are_named_before_their_lines() -> None:
    done = launch("-n", "2", JOB, "late", "--flag", "3", WHOLESTEP_THREADS="", PYTHONUNBUFFERED="1")  # lines in pieces
    assert done.returncode == 0, done.stderr
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    lines = [f"threads {threads} arguments late --flag 3", "end of 0"]
    assert sorted(done.stdout.splitlines()) == sorted([*lines, f"[1] {lines[0]}", "[1] end of 1"])


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("killed", 137, "was killed by SIGKILL"),
        ("exit", 4, "ended with exit code 4"),
    ],
)
def test_a_lost_rank_ends_the_job_and_is_named(how: str, code: int, told: str) -> None:
    done = launch("-n", "2", JOB, how)
    assert done.returncode == code, done.stdout + done.stderr
    assert f"wholestep: rank 1 of 2 {told}" in done.stderr.splitlines(), done.stderr
    assert "error: rank 1 of 2 (process " in done.stderr  # so says rank 0
    assert "end of" not in done.stdout


def test_with_hosts_a_lost_rank_is_named_with_its_machine_and_step() -> None:
    done = launch("-n", "2", "--hosts", "localhost", JOB, "killed")
    assert done.returncode == 137, done.stdout + done.stderr
    told = r"wholestep: rank 1 of 2 \(process \d+ on \S+\) was killed by SIGKILL; it was last heard of at step 0"
    assert re.fullmatch(told, done.stderr.splitlines()[-1]), done.stderr
    assert "end of" not in done.stdout


def test_with_hosts_lines_exit_codes_and_restarts_are_as_on_one_machine() -> None:
    done = launch("-n", "2", "--hosts", "localhost,127.0.0.1", JOB, "late", "--threads")
    assert done.returncode == 0, done.stderr
    assert {"end of 0", "[1] end of 1"} <= set(done.stdout.splitlines())
    done = launch("-n", "2", "--hosts", "localhost", "--restarts", "1", JOB, "once")
    assert (done.returncode, done.stderr.count("(1 of 1 restarts)")) == (0, 1), done.stderr
    done = launch("-n", "2", "--hosts", "localhost", "--restarts", "1", JOB, "error")
    assert (done.returncode, "starting again" in done.stderr) == (1, False)
    assert "[1] ValueError: a mistake of the script" in done.stderr.splitlines()


def test_a_machine_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    shell = tmp_path / "ssh"
    shell.write_text("#!/bin/sh\necho no route to $1 >&2\nexit 255\n")
    shell.chmod(0o755)
    done = launch("-n", "2", "--hosts", "localhost,192.0.2.1", JOB, "late", WHOLESTEP_SSH=str(shell))
    assert done.returncode == 255, done.stderr
    assert "no route to 192.0.2.1" in done.stderr.splitlines()
    assert "rank 1 of 2 is lost: its machine, 192.0.2.1, cannot be reached, or the agent there ended" in done.stderr
    done = launch("-n", "2", "--hosts", "localhost,no-such-name.invalid", JOB, "late")
    assert "--hosts no-such-name.invalid: the name has no address" in done.stderr


def test_ranks_end_with_their_launcher_on_every_machine() -> None:
    task = agent.Task([sys.executable, "-c", "import time; time.sleep(600)"], ".", {}, [0, 1], ("h", 1), "00" * 32, "h")
    with running_agent(task) as child:
        assert child.stdin is not None
        ranks = wait_for_children(child.pid, 2)
        child.stdin.close()
        assert child.wait(60) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)


@contextmanager
def running_agent(task: agent.Task) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "wholestep.distributed.launch.agent"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(json.dumps(asdict(task)) + "\n")
        child.stdin.flush()
        yield child


def wait_for_children(pid: int, count: int) -> list[int]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [int(pid) for pid in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        if len(found) == count:
            return found
        time.sleep(0.01)
    raise AssertionError("the ranks were not started")


def test_a_rank_whose_peer_is_gone_says_so_through_its_agent() -> None:
    script = "import os; os.pwrite(int(os.environ['WHOLESTEP_NOTES']), b'rank 3 hangs', 8); os._exit(75)"
    task = agent.Task([sys.executable, "-c", script], ".", {}, [2], ("host", 1), "00" * 32, "host")
    with running_agent(task) as child:
        assert child.stderr is not None
        ended = agent.parse_exit(child.stderr.readline())
    assert ended is not None
    assert (ended.rank, ended.code, ended.missed, ended.is_lost) == (2, 75, "rank 3 hangs", False)
    assert agent.parse_exit("[2] something else") is None


def test_a_job_is_started_again_where_a_rank_was_lost_and_not_where_the_script_failed() -> None:
    done = launch("-n", "2", "--restarts", "2", JOB, "once")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("starting again from the last checkpoint (1 of 2 restarts)") == 1
    done = launch("-n", "2", "--restarts", "2", JOB, "error")
    assert (done.returncode, "starting again" in done.stderr) == (1, False)
    assert "[1] ValueError: a mistake of the script" in done.stderr.splitlines()


def test_the_doctor_adds_numbers_on_several_processes_and_times_them() -> None:
    done = run([sys.executable, "-m", "wholestep.cli", "doctor", "--workers", "2"], {})
    assert done.returncode == 0, done.stdout + done.stderr
    said = r"\nworkers +2 over sockets on 1 machine, by memory that they share: a sum of 4 bytes takes [\d.]+ us, "
    assert re.search(said + r"of 16 MiB [\d.]+ ms \([\d.]+ GB/s\)\n", done.stdout)


def test_a_process_that_was_started_alone_is_told_how_to_start_several() -> None:
    with pytest.raises(
        UsageError, match=r"Start them: wholestep launch -n 4 .*To make their steps in this process.*sh"
    ):
        ws.Workers(4).join()
    with pytest.raises(UsageError, match=r"Workers\(data=2, model=3\).*launch -n 6 .*same bits: shards=\(2, 3\)\."):
        ws.Workers(6, model=3).join()
    assert ws.Workers(1).join() is None
    assert ws.Workers(4).rank == 0


def test_another_number_of_processes_than_were_started_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UsageError, match=r"ws.Workers\(4\), and 2 processes were started. Start as many: wholestep"):
        ws.Workers(4).join()


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"count": 0}, "count must be an integer of at least 1; received 0"),
        ({"count": True}, "count must be an integer of at least 1; received True"),
        ({"restarts": -1}, "restarts must be an integer of at least 0; received -1"),
        ({"engine": "gloo"}, "engine='gloo'; expected one of 'mpi', 'nccl', 'ray'"),
        ({"shard": "all"}, "shard='all'; expected 'optimizer', or None"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0; received 0"),
        ({"count": 4, "data": 3, "model": 2}, "count=4 is not data=3 times model=2, 6; leave one of them out"),
        ({"count": 5, "model": 2}, "count=5 is not data=1 times model=2, 2; leave one of them out"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, object], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        ws.Workers(**given)  # type: ignore[arg-type]


def test_the_number_of_workers_follows_from_its_axes() -> None:
    assert ws.Workers(data=2, model=3).count == 6
    assert ws.Workers(6, model=3).data == 2
    assert ws.Workers(6, data=3).model == 2
    assert ws.Workers(model=2).count is None  # as many as were started
    assert [ws.Workers(4).shards, ws.Workers(6, model=3, engine="ray").shards] == [4, (2, 3)]


def test_ranks_listen_on_the_network_that_the_hosts_are_on() -> None:
    assert hosts.addresses_of(("localhost", "127.0.0.1")) == {"localhost": "127.0.0.1", "127.0.0.1": "127.0.0.1"}


def test_ranks_that_cannot_map_memory_send_messages_and_say_so() -> None:
    said = (
        "import numpy as np, wholestep as ws; from wholestep.distributed.transport import native, sockets\n"
        "def refuse(*place): raise PermissionError(13, 'Permission denied', 'the window')\n"
        "if ws.Workers().rank == 1: sockets._map_window = refuse\n"
        "group, array = ws.Workers(2).join(), np.ones(5000, np.float32)\n"
        "native.sum_all(group.native, array); group.check(); print(group.memory, set(array.tolist()))"
    )
    done = launch("-n", "2", ONE_LINE, said)
    assert sorted(done.stdout.splitlines()) == ["False {2.0}", "[1] False {2.0}"], done.stderr
    assert done.stderr.count("ranks cannot map each other's memory and send messages") == 1
    assert "(rank 1: [Errno 13] Permission denied" in done.stderr


def test_ranks_need_no_mpi() -> None:
    said = "import wholestep as ws, sys; ws.Workers(2).join(); assert 'mpi4py' not in sys.modules; print('none')"
    done = launch("-n", "2", ONE_LINE, said)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["[1]", "none", "none"]), done.stderr


def test_the_package_does_without_mpi() -> None:
    said = "import wholestep, sys; wholestep.Workers(2); print('mpi4py' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
