"""Processes that become ranks of MPI although others have started them.

Independent processes cannot connect over MPI.  But MPICH's launcher can be asked for its port: `mpiexec -pmi-port` runs
placeholders, which say where their ranks would meet, and a process that is told that joins in a placeholder's stead.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wholestep.errors import UsageError

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # to every rank
FINISHED = (0, *(128 + number for number in FORWARDED))  # after a signal steps were finished and saved, then it ended
STEP_BYTES = 8  # of a rank's notes, which a process beside it reads when it has ended; a text may follow
SECONDS = 5.0  # that a launcher has to end
SHARED = "/dev/shm/mpich_"  # memory that MPICH's ranks have in common, until it is removed
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
# Says where ranks meet.  The first placeholder ends with its standard input, which ends with the process that opened
# the port; the launcher then ends the others.
PLACEHOLDER = 'echo "$PMI_PORT"; if [ "$PMI_ID" = 0 ]; then cat > /dev/null; exit 1; else exec sleep 1000000; fi'


def open_port(program: Path, count: int) -> tuple[subprocess.Popen[bytes], str]:
    """A launcher that waits for `count` ranks, and where they reach it."""
    server = subprocess.Popen(
        [os.fspath(program), "-pmi-port", "-n", str(count), "sh", "-c", PLACEHOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # it complains about ranks that are killed, which we tell better
        start_new_session=True,  # Ctrl-C is not for it
    )
    assert server.stdout is not None
    said = server.stdout.readline().decode().strip()
    if ":" not in said:
        server.kill()
        raise UsageError(f"{program} -pmi-port opened no port for {count} ranks; it said {said!r}. Is it MPICH's?")
    return server, said


def close_port(server: subprocess.Popen[bytes]) -> None:
    """End a launcher and its placeholders."""
    server.terminate()
    try:
        server.wait(SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def start_rank(
    command: Sequence[str], variables: Mapping[str, str], rank: int, output: IO[str] | None = None
) -> subprocess.Popen[bytes]:
    """A process of ours that is a rank; it ends with us.

    It writes to pipes, so that whoever reads them keeps lines whole; the first rank has our terminal where there is one
    (bars are drawn on it), and `output` where it is given.
    """
    own = [rank == 0 and stream.isatty() for stream in (sys.stdout, sys.stderr)]
    stdout, stderr = (None if direct else subprocess.PIPE for direct in own)
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        command,
        env=dict(variables),
        stdin=None if rank == 0 else subprocess.DEVNULL,
        stdout=output if rank == 0 and output is not None else stdout,
        stderr=stderr,
        start_new_session=True,  # we hand Ctrl-C on
        preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGTERM),
    )


def end_ranks(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill those that are left; they may not have come so far as to remove the names of what they share (`mpi.py`)."""
    left = [child for child in started if child.poll() is None]
    shared = {path for child in left for path in files_of(child.pid) if path.startswith(SHARED)}
    for child in left:
        child.kill()
    for child in started:
        child.wait()
    for path in shared:
        Path(path).unlink(missing_ok=True)


def files_of(process: int | str = "self") -> set[str]:
    """Files that a process has in its memory; none where it is gone."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}


@dataclass(frozen=True)
class Ended:
    """A rank that has ended: its exit code (128 + signal where one killed it), when, and how, for people."""

    rank: int
    code: int
    when: float
    how: str
    is_lost: bool = False  # killed by a signal
    missed: str = ""  # what it said about another one, whom it has lost

    @staticmethod
    def by(rank: int, code: int) -> Ended:
        """From what Python calls an exit code: negative where a signal has killed a process."""
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return Ended(rank, code if code >= 0 else 128 - code, time.monotonic(), how, code < 0)
