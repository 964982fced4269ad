"""`wholestep launch`: the ranks of a job, on this machine as our own processes, on others through ssh (`hosts.py`)."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from wholestep.compiler.runtime.threads import default_threads
from wholestep.distributed.launch.authentication import new_secret
from wholestep.distributed.launch.joining import LOST
from wholestep.distributed.launch.rank_processes import (
    FINISHED,
    POLL,
    Ended,
    end_ranks,
    forwarded,
    prefixed,
    signal_ranks,
    start_rank,
)
from wholestep.distributed.launch.rendezvous import Rendezvous
from wholestep.options import launch_variables, local_variables, rank_variables

GRACE = 5.0  # seconds that the others have to end by themselves once a rank has failed


@dataclass(frozen=True)
class Job:
    """A program that several ranks run."""

    count: int
    command: tuple[str, ...]  # of each rank
    hosts: tuple[str, ...] = ()  # this machine, unless given
    restarts: int = 0
    threads: int | None = None  # of each rank; None: the cores are divided among those of a machine
    output: IO[str] | None = None  # where rank 0 writes to; None: where we do

    @property
    def per_host(self) -> int:
        """Ranks of a machine; the last one may have fewer."""
        return -(-self.count // max(1, len(self.hosts)))


def parse_hosts(text: str | None) -> tuple[str, ...]:
    """`"a, b"` as names."""
    return tuple(host.strip() for host in (text or "").split(",") if host.strip())


def run_job(job: Job, say: Callable[[str], None]) -> int:
    """Run a job to its end, starting it again where a rank was lost; the exit code.  `say` tells what happens."""
    since = time.time()
    for attempt in range(job.restarts + 1):
        threads = job.threads or max(1, default_threads() // job.per_host)
        variables = launch_variables(job.count, attempt, job.restarts, since, threads)
        code, is_lost = _run_once(job, variables, say)
        if not is_lost or attempt == job.restarts:
            return code
        say(f"starting again from the last checkpoint ({attempt + 1} of {job.restarts} restarts)")
    raise AssertionError("the last attempt returns")


def _run_once(job: Job, variables: Mapping[str, str], say: Callable[[str], None]) -> tuple[int, bool]:
    """One attempt: the exit code, and whether another one may go on where it ended."""
    ended = _run_on_hosts(job, variables) if job.hosts else run_here(job, variables)
    if all(rank.code in FINISHED for rank in ended):
        return ended[0].code, False
    by_error = [rank for rank in ended if not rank.is_lost and rank.code not in (*FINISHED, LOST)]
    cause = min(by_error or [rank for rank in ended if rank.is_lost] or ended, key=lambda rank: rank.when)
    say(cause.missed or f"rank {cause.rank} of {job.count} {cause.how}")
    return cause.code, not by_error


def _run_on_hosts(job: Job, variables: Mapping[str, str]) -> list[Ended]:
    from wholestep.distributed.launch.hosts import run_on_hosts  # most jobs have one machine

    return run_on_hosts(job, variables)


def run_here(job: Job, variables: Mapping[str, str]) -> list[Ended]:
    """Run all ranks as processes of ours, which meet on loopback; how each ended."""
    started: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    secret = new_secret()
    with Rendezvous(job.count, secret) as rendezvous:
        try:
            with forwarded(lambda number: signal_ranks(started, number)):
                for rank in range(job.count):
                    own = rank_variables(rank, rendezvous.address(), secret)
                    environment = {**local_variables(), **os.environ, **variables, **own}
                    child = start_rank(job.command, environment, rank, job.output)
                    started.append(child)
                    readers += prefixed(child, rank)
                return _watch(started)
        finally:
            end_ranks(started)
            for reader in readers:
                reader.join()


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
    return [*ended.values(), *left_behind(set(range(len(started))) - ended.keys())]


def left_behind(ranks: set[int]) -> list[Ended]:
    """Ranks that run although another one has failed, and are killed."""
    return [Ended(rank, LOST, 0.0, how="hung, or was left behind, and was killed") for rank in ranks]
