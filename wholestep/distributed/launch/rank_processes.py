"""Processes that are ranks: how they are started and ended, and what is said about their end."""

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

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # to every rank
FINISHED = (0, *(128 + number for number in FORWARDED))  # after a signal steps were finished and saved, then it ended
STEP_BYTES = 8  # of a rank's notes, which a process beside it reads when it has ended; a text may follow
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
POLL = 0.02  # seconds


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


def start_rank(
    command: Sequence[str],
    variables: Mapping[str, str],
    rank: int,
    output: IO[str] | None = None,
    stdin: int | None = None,
    notes: int | None = None,
) -> subprocess.Popen[bytes]:
    """A process of ours that is a rank; it ends with us.

    It writes to pipes, so that whoever reads them keeps lines whole; the first rank has our terminal where there is one
    (bars are drawn on it), and `output` where it is given.  `notes` is an open file that it inherits.
    """
    own = [rank == 0 and stream.isatty() for stream in (sys.stdout, sys.stderr)]
    stdout, stderr = (None if direct else subprocess.PIPE for direct in own)
    libc = ctypes.CDLL(None)
    return subprocess.Popen(
        command,
        env=dict(variables),
        stdin=stdin if rank == 0 else subprocess.DEVNULL,
        stdout=output if rank == 0 and output is not None else stdout,
        stderr=stderr,
        pass_fds=() if notes is None else (notes,),
        start_new_session=True,  # we hand Ctrl-C on
        preexec_fn=lambda: libc.prctl(DIES_WITH_PARENT, signal.SIGTERM),
    )


def end_ranks(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kill those that are left."""
    for child in started:
        if child.poll() is None:
            child.kill()
    for child in started:
        child.wait()


def signal_ranks(started: Sequence[subprocess.Popen[bytes]], number: int) -> None:
    """Hand a signal on to those that run."""
    for child in started:
        if child.poll() is None:
            child.send_signal(number)


@contextmanager
def forwarded(send: Callable[[int], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP go to every rank: they finish the steps at hand together, save, and end.

    Under nohup SIGHUP stays ignored, here and in the ranks, which inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    from wholestep.train.signals import is_ignored  # ranks themselves need not load it here

    wanted = [each for each in FORWARDED if not is_ignored(each)]
    before = {each: signal.signal(each, lambda number, frame: send(number)) for each in wanted}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def prefixed(child: subprocess.Popen[bytes], rank: int) -> list[threading.Thread]:
    """What a rank writes to pipes, line by line; lines of others than the first behind their number."""
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
    """A whole line, whoever else writes."""
    with _LINE:
        to.write(text + "\n")
        to.flush()


def files_of(process: int | str = "self") -> set[str]:
    """Files that a process has in its memory; none where it is gone."""
    try:
        lines = Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {words[5] for line in lines if len(words := line.split(maxsplit=5)) == 6}
