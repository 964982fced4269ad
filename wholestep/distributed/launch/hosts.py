"""Ranks on several machines: an agent on each, started by ssh, runs those of its machine (`agent.py`)."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

from wholestep.distributed.launch.agent import SIGNAL, Task, heard
from wholestep.distributed.launch.authentication import new_secret
from wholestep.distributed.launch.launcher import GRACE, Job, left_behind
from wholestep.distributed.launch.rank_processes import FINISHED, POLL, Ended, forwarded, write_line
from wholestep.distributed.launch.rendezvous import LOOPBACK, Rendezvous
from wholestep.errors import UsageError
from wholestep.options import carried_variables, remote_shell

SECONDS = 5.0  # that an agent has to end its ranks
AGENT = (sys.executable, "-m", "wholestep.distributed.launch.agent")


def run_on_hosts(job: Job, variables: Mapping[str, str]) -> list[Ended]:
    """Run the ranks of each machine there; how each ended."""
    secret, addresses, ended = new_secret(), addresses_of(job.hosts), dict[int, Ended]()
    with Rendezvous(job.count, secret, list(addresses.values())) as rendezvous:
        agents: list[_Agent] = []
        try:
            for first, host in zip(range(0, job.count, job.per_host), job.hosts):
                ranks = range(first, min(job.count, first + job.per_host))
                task = Task(
                    command=job.command,
                    folder=os.fspath(Path.cwd()),
                    variables={**carried_variables(), **variables},
                    ranks=list(ranks),
                    rendezvous=rendezvous.address(addresses[host]),
                    secret=secret.hex(),
                    node=host,
                )
                agents.append(_Agent.started(host, task, job.output or sys.stdout, ended))
            with forwarded(lambda number: _tell_all(agents, f"{SIGNAL}{number}\n")):
                _wait(job.count, agents, ended)
        finally:
            for agent in agents:
                agent.end()
    return [*ended.values(), *left_behind(set(range(job.count)) - ended.keys())]


def _tell_all(agents: list[_Agent], line: str) -> None:
    for agent in agents:
        agent.tell(line)


def _wait(count: int, agents: list[_Agent], ended: dict[int, Ended]) -> None:
    """For all ranks; once one has failed, for `GRACE` seconds more."""
    deadline = float("inf")
    while len(ended) < count and time.monotonic() < deadline:
        for agent in agents:
            agent.look()
        if any(rank.code not in FINISHED for rank in list(ended.values())):
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)


@dataclass
class _Agent:
    """The process of ours on one machine, as the launcher sees it."""

    host: str
    task: Task
    child: subprocess.Popen[bytes]
    ended: dict[int, Ended]  # of all ranks, those that it has told of
    readers: list[threading.Thread] = field(default_factory=list)

    @staticmethod
    def started(host: str, task: Task, output: IO[str], ended: dict[int, Ended]) -> _Agent:
        """On a machine; the task, with the secret, goes through a pipe and no command line."""
        there = [f"cd {shlex.quote(task.folder)} && exec {shlex.join(AGENT)}"]
        command = list(AGENT) if is_this_machine(host) else [*remote_shell(), host, *there]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # we hand Ctrl-C on
        )
        agent = _Agent(host, task, child, ended)
        for pipe, to in ((child.stdout, output), (child.stderr, sys.stderr)):
            agent.readers.append(threading.Thread(target=agent._copy, args=(pipe, to)))
            agent.readers[-1].start()
        agent.tell(json.dumps(asdict(task)) + "\n")
        return agent

    def tell(self, line: str) -> None:
        """Write a line to it; where it is gone, `look` says so."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            self.child.stdin.write(line.encode())
            self.child.stdin.flush()

    def _copy(self, pipe: IO[bytes], to: IO[str]) -> None:
        """Show what ranks write; note what the agent says about their ends."""
        for line in pipe:
            text = line.decode(errors="replace").rstrip("\n")
            if rank := heard(text):
                self.ended[rank.rank] = rank
            else:
                write_line(to, text)

    def look(self) -> None:
        """Ranks whose agent is gone are lost with it."""
        code = self.child.poll()
        if code is None or any(reader.is_alive() for reader in self.readers):
            return
        how = f"is lost: its machine, {self.host}, cannot be reached, or the agent there ended, with exit code {code}"
        for rank in self.task.ranks:
            self.ended.setdefault(rank, Ended(rank, 255, time.monotonic(), how, is_lost=True))

    def end(self) -> None:
        """Its input ends, so it ends its ranks and itself."""
        assert self.child.stdin is not None
        with suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        for reader in self.readers:
            reader.join(SECONDS)


# -- addresses ---------------------------------------------------------------------------------------------------------


def addresses_of(hosts: tuple[str, ...]) -> dict[str, str]:
    """For each machine, the address of this one that it reaches us by: loopback where all are this one."""
    towards = {host: _source_towards(host) for host in hosts if not is_this_machine(host)}
    own = next(iter(towards.values()), LOOPBACK)  # ranks here are reached by the others, too
    return {host: towards.get(host, own) for host in hosts}


def is_this_machine(host: str) -> bool:
    """Is a name one of this machine's own?  Then a socket can be bound to its address."""
    family, address = _resolved(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _source_towards(host: str) -> str:
    """The address that packets to a machine leave from; none is sent."""
    family, address = _resolved(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise UsageError(f"--hosts {host}: no network leads to {address}: {error.strerror}.") from error
        source: str = probe.getsockname()[0]
    return source


def _resolved(host: str) -> tuple[int, str]:
    try:
        family, *_, place = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise UsageError(
            f"--hosts {host}: the name has no address: {error.strerror}. Name machines as this one resolves them, or "
            "by their addresses; a name of ssh's configuration alone is not enough, since ranks connect to it too."
        ) from error
    return family, str(place[0])
