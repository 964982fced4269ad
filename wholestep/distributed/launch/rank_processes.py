"""Start, signal and end the processes of ranks; their output and exit codes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from wholestep import platforms

FORWARDED = platforms.ending_signals()  # signals forwarded to every rank
FINISHED = (0, *(128 + number for number in FORWARDED))  # exit codes of success; after a signal a rank saves and ends
STEP_BYTES = 8  # bytes of the step number in a rank's notes, which the launcher reads after the rank's end
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
POLL = 0.02  # seconds between two polls of child processes


@dataclass(frozen=True)
class RankExit:
    """The end of a rank: its exit code (128 + the signal that killed it), the time, and a description for messages."""

    rank: int
    code: int
    when: float
    how: str
    is_lost: bool = False  # was it killed by a signal?
    missed: str = ""  # its message about another rank that it lost

    @staticmethod
    def of_code(rank: int, code: int) -> RankExit:
        """The exit of a rank from Python's return code, which is negative if a signal has killed the process."""
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        return RankExit(rank, code if code >= 0 else 128 - code, time.monotonic(), how, code < 0)


def start_rank(
    command: Sequence[str],
    variables: Mapping[str, str],
    rank: int,
    output: IO[str] | None = None,
    stdin: int | None = None,
    notes: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start a rank as a child process, which ends when this process does.

    It writes to pipes, so that lines of several ranks do not mix.  Rank 0 inherits our terminal, if there is one
    (progress bars need it), or writes to `output`.  `notes` is an open file that it inherits.
    """
    to_terminal = [rank == 0 and stream.isatty() for stream in (sys.stdout, sys.stderr)]
    stdout, stderr = (None if direct else subprocess.PIPE for direct in to_terminal)
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        command,
        env=dict(variables),
        stdin=stdin if rank == 0 else subprocess.DEVNULL,
        stdout=output if rank == 0 and output is not None else stdout,
        stderr=stderr,
        pass_fds=() if notes is None else (notes,),
        start_new_session=True,  # Ctrl-C reaches it through forward_signals only
        preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGTERM),
    )


def end_ranks(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill the children that still run."""
    for child in children:
        if child.poll() is None:
            child.kill()
    for child in children:
        child.wait()


def signal_ranks(children: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Send a signal to the children that still run."""
    for child in children:
        if child.poll() is None:
            child.send_signal(number)


@contextmanager
def forward_signals(send: Callable[[int], None]) -> Iterator[None]:
    """Forward Ctrl-C, SIGTERM and SIGHUP to every rank: they finish the current steps together, save, and end.

    Under nohup, this process and the ranks, which inherit its signal handling, keep ignoring SIGHUP.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from wholestep.train.signals import is_ignored  # imported here because only the launcher needs it

    numbers = [number for number in FORWARDED if not is_ignored(number)]
    previous = {number: signal.signal(number, lambda received, frame: send(received)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def copy_output(child: subprocess.Popen[bytes], rank: int) -> list[threading.Thread]:
    """Copy a rank's pipes line by line to our streams, in threads; ranks other than 0 prefix their number."""
    pairs, prefix = [(child.stdout, sys.stdout), (child.stderr, sys.stderr)], f"[{rank}] " if rank else ""
    readers = [threading.Thread(target=_copy, args=(pipe, to, prefix)) for pipe, to in pairs if pipe is not None]
    for reader in readers:
        reader.start()
    return readers


def _copy(pipe: IO[bytes], to: IO[str], prefix: str) -> None:
    for line in pipe:
        write_line(to, prefix + line.decode(errors="replace").rstrip("\n"))


_LINE = threading.Lock()


def write_line(to: IO[str], text: str) -> None:
    """Write a line that other threads cannot interleave with theirs."""
    with _LINE:
        to.write(text + "\n")
        to.flush()


def mapped_files(process: int | str = "self") -> set[str]:
    """The files that a process has mapped into memory; none if it is gone."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}
