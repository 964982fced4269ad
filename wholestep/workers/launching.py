"""Starting the ranks of a job: on this machine as our own processes, on several through `mpiexec`."""

from __future__ import annotations

import os
import re
import shutil
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

from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import UsageError
from wholestep.options import launch_variables
from wholestep.train.signals import is_ignored
from wholestep.workers.joining import INSTALL, LOST
from wholestep.workers.ranks import FINISHED, FORWARDED, SECONDS, Ended, close_port, end_ranks, open_port, start_rank
from wholestep.workers.watching import heard

GRACE = 5.0  # seconds that the others have to end by themselves once a rank has failed
POLL = 0.02
OF_A_RANK = re.compile(r"\[(\d+)\] |\[\d+,(\d+)\]<std(?:out|err)>: ?")  # before a line of a rank: by MPICH, by Open MPI
# Every rank of Open MPI's wheel complains that it cannot have a component, which is for windows of several machines.
QUIET = {"OMPI_MCA_osc": "^ucx"}


@dataclass(frozen=True)
class Job:
    """A program that several ranks run."""

    count: int
    command: tuple[str, ...]  # of each rank
    hosts: tuple[str, ...] = ()  # this machine, unless given
    restarts: int = 0
    threads: int | None = None  # of each rank; None: the cores are divided among those of a machine
    output: IO[str] | None = None  # where rank 0 writes to; None: where we do


def named_hosts(text: str | None) -> tuple[str, ...]:
    """`"a, b"` as names."""
    return tuple(host.strip() for host in (text or "").split(",") if host.strip())


def run_job(job: Job, say: Callable[[str], None]) -> int:
    """Run a job to its end, starting it again where a rank was lost; the exit code.  `say` tells what happens."""
    since = time.time()
    for attempt in range(job.restarts + 1):
        per_host = -(-job.count // max(1, len(job.hosts)))
        threads = job.threads or max(1, default_threads() // per_host)
        variables = launch_variables(job.count, attempt, job.restarts, since, threads)
        code, is_lost = _run_once(job, variables, say)
        if not is_lost or attempt == job.restarts:
            return code
        say(f"starting again from the last checkpoint ({attempt + 1} of {job.restarts} restarts)")
    raise AssertionError("the last attempt returns")


def _run_once(job: Job, variables: Mapping[str, str], say: Callable[[str], None]) -> tuple[int, bool]:
    """One attempt: the exit code, and whether another one may go on where it ended."""
    if job.hosts or _library_of(find_mpiexec()) == "Open MPI":
        code, ended = run_through_mpiexec(job, variables)
        if not ended:
            if code not in FINISHED:
                say(f"mpiexec ended with exit code {code}: what it said is above")
            return code, code not in (*FINISHED, 1, 2)
    else:
        ended = run_here(job, variables)
    if all(rank.code in FINISHED for rank in ended):
        return ended[0].code, False
    by_error = [rank for rank in ended if not rank.is_lost and rank.code not in (*FINISHED, LOST)]
    told = min(by_error or [rank for rank in ended if rank.is_lost] or ended, key=lambda rank: rank.when)
    say(told.missed or f"rank {told.rank} of {job.count} {told.how}")
    return told.code, not by_error


# -- on this machine -----------------------------------------------------------------------------------------------


def run_here(job: Job, variables: Mapping[str, str]) -> list[Ended]:
    """Run all ranks as processes of ours; how each ended."""
    server, port = open_port(find_mpiexec(), job.count)
    started: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        with forwarded(started):
            for rank in range(job.count):
                told = {**os.environ, **variables, "PMI_PORT": port, "PMI_ID": str(rank)}
                child = start_rank(job.command, told, rank, job.output)
                started.append(child)
                readers += prefixed(child, rank)
            return _watch(started)
    finally:
        end_ranks(started)
        for reader in readers:
            reader.join()
        close_port(server)


def _watch(started: Sequence[subprocess.Popen[bytes]]) -> list[Ended]:
    """Wait for all; once one has failed, for `GRACE` seconds more."""
    ended: dict[int, Ended] = {}
    deadline = float("inf")
    while len(ended) < len(started) and time.monotonic() < deadline:
        for rank, child in enumerate(started):
            if rank not in ended and (code := child.poll()) is not None:
                ended[rank] = Ended.by(rank, code)
                if ended[rank].code not in FINISHED:
                    deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)
    left = set(range(len(started))) - ended.keys()
    hung = [Ended(rank, LOST, 0.0, how="hung, or was left behind, and was killed") for rank in left]
    return [*ended.values(), *hung]


@contextmanager
def forwarded(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP go to every rank: they finish the steps at hand together, save, and end.

    Under nohup SIGHUP stays ignored, here and in the ranks, which inherit that.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, frame: object) -> None:
        for child in started:
            if child.poll() is None:
                child.send_signal(number)

    before = {each: signal.signal(each, forward) for each in FORWARDED if not is_ignored(each)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def prefixed(child: subprocess.Popen[bytes], rank: int) -> list[threading.Thread]:
    """What a rank writes to pipes, line by line; lines of others than the first behind their number."""
    pairs, prefix = [(child.stdout, sys.stdout), (child.stderr, sys.stderr)], f"[{rank}] " if rank else ""
    made = [threading.Thread(target=_copy, args=(pipe, to, prefix)) for pipe, to in pairs if pipe is not None]
    for each in made:
        each.start()
    return made


_LINE = threading.Lock()


def _copy(pipe: IO[bytes], to: IO[str], prefix: str) -> None:
    for line in pipe:
        with _LINE:
            to.write(prefix + line.decode(errors="replace").rstrip("\n") + "\n")
            to.flush()


# -- through mpiexec -------------------------------------------------------------------------------------------------


def run_through_mpiexec(job: Job, variables: Mapping[str, str]) -> tuple[int, list[Ended]]:
    """MPI's own launcher starts the ranks, on other machines by ssh; its exit code, and which ranks failed."""
    command = mpiexec_command(find_mpiexec(), job, variables)
    told = {**QUIET, **os.environ, **variables}
    child = subprocess.Popen(command, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    failed, ending = list[Ended](), threading.Event()
    pairs = [(child.stdout, job.output or sys.stdout), (child.stderr, sys.stderr)]
    readers = [threading.Thread(target=_unprefix_first, args=(*pair, failed, ending)) for pair in pairs]
    for reader in readers:
        reader.start()
    with forwarded([child]):
        while child.poll() is None and not failed:
            time.sleep(POLL)
        deadline = time.monotonic() + GRACE
        while child.poll() is None and len(failed) < job.count and time.monotonic() < deadline:
            time.sleep(POLL)
        if failed:
            ending.set()
        code = _end(child) if failed else child.wait()
    for reader in readers:
        reader.join()
    return (code if code >= 0 else 128 - code), failed


def _end(child: subprocess.Popen[bytes]) -> int:
    """Let MPI's launcher end all ranks; where it cannot, they end with it."""
    child.terminate()
    try:
        return child.wait(SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _unprefix_first(pipe: IO[bytes], to: IO[str], failed: list[Ended], ending: threading.Event) -> None:
    """Lines of rank 0 as they are, of others behind `[1] `: the launcher puts the number of a rank before them.

    What is told about a rank's end is noted, and what the launcher says about our ending it nobody need read.
    """
    for line in pipe:
        text = line.decode(errors="replace")
        if ended := heard(text):
            failed.append(ended)
        by = OF_A_RANK.match(text)
        if ended or (ending.is_set() and not by):
            continue
        rank = int(by[1] or by[2]) if by else 0
        to.write((f"[{rank}] " if rank else "") + text[by.end() if by else 0 :])
        to.flush()


def mpiexec_command(program: Path, job: Job, variables: Mapping[str, str]) -> list[str]:
    """The command line, as the library's own launcher wants it."""
    named, hosts = sorted(variables), ",".join(job.hosts)
    command = (sys.executable, "-m", "wholestep.workers.watching", *job.command)
    if _library_of(program) == "Open MPI":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        where = ["--host", ",".join(f"{host}:{-(-job.count // len(job.hosts))}" for host in job.hosts)] if hosts else []
        said = [word for name in named for word in ("-x", name)]
        said = ["--tag-output", *said]
        return [os.fspath(program), *root, "--oversubscribe", *where, *said, "-n", str(job.count), *command]
    where = ["-hosts", hosts, "-ppn", str(-(-job.count // len(job.hosts)))] if hosts else []
    said = ["-genvlist", ",".join(named)]
    return [os.fspath(program), "-prepend-rank", *where, *said, "-n", str(job.count), *command]


def find_mpiexec() -> Path:
    """The program of the wheel in this Python, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = os.fspath(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise UsageError(f"there is no mpiexec, neither beside {sys.executable} nor on the PATH: {INSTALL} brings one.")
    return Path(found)


def _library_of(program: Path) -> str:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return "Open MPI" if "open mpi" in said.lower() or "openrte" in said.lower() or "prte" in said.lower() else "MPICH"
