"""`wholestep launch`: run the ranks of a job on this machine as child processes, on others through ssh (`hosts.py`)."""

from __future__ import annotations

import os
import subprocess
import sys
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
    RankExit,
    copy_output,
    end_ranks,
    forward_signals,
    signal_ranks,
    start_rank,
)
from wholestep.distributed.launch.rendezvous import Rendezvous
from wholestep.errors import UsageError
from wholestep.options import launch_variables, local_variables, rank_variables

GRACE = 5.0  # seconds that the other ranks have to end by themselves after one has failed


@dataclass(frozen=True)
class Job:
    """A command that several ranks run."""

    count: int
    command: tuple[str, ...]  # command line of each rank
    hosts: tuple[str, ...] = ()  # this machine by default
    restarts: int = 0
    threads: int | None = None  # threads of each rank; None: the cores of a machine are divided among its ranks
    output: IO[str] | None = None  # output of rank 0; None: our standard output

    @property
    def per_host(self) -> int:
        """Ranks per machine; the last machine may have fewer."""
        return -(-self.count // max(1, len(self.hosts)))


def parse_hosts(text: str | None) -> tuple[str, ...]:
    """The host names in a text such as "a, b"."""
    return tuple(host.strip() for host in (text or "").split(",") if host.strip())


def run_job(job: Job, say: Callable[[str], None]) -> int:
    """Run a job to its end, with restarts if a rank is lost; returns the exit code.  `say` reports events."""
    if sys.platform != "linux":
        raise UsageError(
            f"ranks that are processes need Linux, and this is {sys.platform}. Train in one process: shards=4 there "
            "computes the bits of four workers."
        )
    since = time.time()
    for attempt in range(job.restarts + 1):
        threads = job.threads or max(1, default_threads() // job.per_host)
        variables = launch_variables(job.count, attempt, job.restarts, since, threads)
        code, is_lost = _run_once(job, variables, say)
        if not is_lost or attempt == job.restarts:
            return code
        say(f"starting again from the last checkpoint ({attempt + 1} of {job.restarts} restarts)")
    raise AssertionError("the loop returns in its last attempt")


def _run_once(job: Job, variables: Mapping[str, str], say: Callable[[str], None]) -> tuple[int, bool]:
    """Run one attempt: return the exit code, and whether a restart may continue from the last checkpoint."""
    exits = _run_on_hosts(job, variables) if job.hosts else run_here(job, variables)
    if all(rank.code in FINISHED for rank in exits):
        return exits[0].code, False
    errors = [rank for rank in exits if not rank.is_lost and rank.code not in (*FINISHED, LOST)]
    cause = min(errors or [rank for rank in exits if rank.is_lost] or exits, key=lambda rank: rank.when)
    say(cause.missed or f"rank {cause.rank} of {job.count} {cause.how}")
    return cause.code, not errors


def _run_on_hosts(job: Job, variables: Mapping[str, str]) -> list[RankExit]:
    from wholestep.distributed.launch.hosts import run_on_hosts  # imported here because most jobs have one machine

    return run_on_hosts(job, variables)


def run_here(job: Job, variables: Mapping[str, str]) -> list[RankExit]:
    """Run all ranks as child processes that connect over loopback; return their exits."""
    children: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    secret = new_secret()
    with Rendezvous(job.count, secret) as rendezvous:
        try:
            with forward_signals(lambda number: signal_ranks(children, number)):
                for rank in range(job.count):
                    of_rank = rank_variables(rank, rendezvous.address(), secret)
                    environment = {**local_variables(), **os.environ, **variables, **of_rank}
                    child = start_rank(job.command, environment, rank, job.output)
                    children.append(child)
                    readers += copy_output(child, rank)
                return _watch(children)
        finally:
            end_ranks(children)
            for reader in readers:
                reader.join()


def _watch(children: Sequence[subprocess.Popen[bytes]]) -> list[RankExit]:
    """Wait for all ranks; after the first failure, for at most `GRACE` seconds more."""
    exits: dict[int, RankExit] = {}
    deadline = float("inf")
    while len(exits) < len(children) and time.monotonic() < deadline:
        for rank, child in enumerate(children):
            if rank not in exits and (code := child.poll()) is not None:
                exits[rank] = RankExit.of_code(rank, code)
                if exits[rank].code not in FINISHED:
                    deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)
    return [*exits.values(), *straggler_exits(set(range(len(children))) - exits.keys())]


def straggler_exits(ranks: set[int]) -> list[RankExit]:
    """The exits of ranks that still run after another one has failed, and are killed."""
    return [RankExit(rank, LOST, 0.0, how="hung, or was left behind, and was killed") for rank in ranks]
