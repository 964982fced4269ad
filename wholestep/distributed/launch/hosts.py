"""Ranks on several machines: an agent per machine (`agent.py`), started by ssh, runs its ranks."""

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

from wholestep.distributed.launch.agent import SIGNAL, Task, parse_exit
from wholestep.distributed.launch.authentication import new_secret
from wholestep.distributed.launch.launcher import GRACE, Job, straggler_exits
from wholestep.distributed.launch.rank_processes import FINISHED, POLL, RankExit, forward_signals, write_line
from wholestep.distributed.launch.rendezvous import LOOPBACK, Rendezvous
from wholestep.errors import UsageError
from wholestep.options import carried_variables, remote_shell

AGENT_GRACE = 5.0  # seconds that an agent has to end its ranks
AGENT = (sys.executable, "-m", "wholestep.distributed.launch.agent")


def run_on_hosts(job: Job, variables: Mapping[str, str]) -> list[RankExit]:
    """Run each machine's ranks there; return their exits."""
    secret, addresses, exits = new_secret(), addresses_of(job.hosts), dict[int, RankExit]()
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
                agents.append(_Agent.start(host, task, job.output or sys.stdout, exits))
            with forward_signals(lambda number: _send_to_all(agents, f"{SIGNAL}{number}\n")):
                _wait(job.count, agents, exits)
        finally:
            for agent in agents:
                agent.end()
    return [*exits.values(), *straggler_exits(set(range(job.count)) - exits.keys())]


def _send_to_all(agents: list[_Agent], line: str) -> None:
    for agent in agents:
        agent.send(line)


def _wait(count: int, agents: list[_Agent], exits: dict[int, RankExit]) -> None:
    """Wait for all ranks; after the first failure, for at most `GRACE` seconds more."""
    deadline = float("inf")
    while len(exits) < count and time.monotonic() < deadline:
        for agent in agents:
            agent.poll()
        if any(rank.code not in FINISHED for rank in list(exits.values())):
            deadline = min(deadline, time.monotonic() + GRACE)
        time.sleep(POLL)


@dataclass
class _Agent:
    """The launcher's side of the agent on one machine."""

    host: str
    task: Task
    child: subprocess.Popen[bytes]
    exits: dict[int, RankExit]  # exits of all ranks of the job; each agent reports the exits on its machine
    readers: list[threading.Thread] = field(default_factory=list)

    @staticmethod
    def start(host: str, task: Task, output: IO[str], exits: dict[int, RankExit]) -> _Agent:
        """Start the agent of a machine.  Its task contains the secret, so it is sent through a pipe."""
        remote_command = [f"cd {shlex.quote(task.folder)} && exec {shlex.join(AGENT)}"]
        command = list(AGENT) if is_this_machine(host) else [*remote_shell(), host, *remote_command]
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches it through forward_signals only
        )
        agent = _Agent(host, task, child, exits)
        for pipe, to in ((child.stdout, output), (child.stderr, sys.stderr)):
            agent.readers.append(threading.Thread(target=agent._copy, args=(pipe, to)))
            agent.readers[-1].start()
        agent.send(json.dumps(asdict(task)) + "\n")
        return agent

    def send(self, line: str) -> None:
        """Write a line to the agent; `poll` notices if it is gone."""
        assert self.child.stdin is not None
        with suppress(OSError, ValueError):
            self.child.stdin.write(line.encode())
            self.child.stdin.flush()

    def _copy(self, pipe: IO[bytes], to: IO[str]) -> None:
        """Copy the ranks' output; record the exits that the agent reports."""
        for line in pipe:
            text = line.decode(errors="replace").rstrip("\n")
            if rank := parse_exit(text):
                self.exits[rank.rank] = rank
            else:
                write_line(to, text)

    def poll(self) -> None:
        """Record the ranks of an agent that is gone as lost."""
        code = self.child.poll()
        if code is None or any(reader.is_alive() for reader in self.readers):
            return
        how = f"is lost: its machine, {self.host}, cannot be reached, or the agent there ended, with exit code {code}"
        for rank in self.task.ranks:
            self.exits.setdefault(rank, RankExit(rank, 255, time.monotonic(), how, is_lost=True))

    def end(self) -> None:
        """Close the agent's input; the agent then ends its ranks and exits."""
        assert self.child.stdin is not None
        with suppress(OSError):
            self.child.stdin.close()
        try:
            self.child.wait(AGENT_GRACE)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        for reader in self.readers:
            reader.join(AGENT_GRACE)


# -- addresses ---------------------------------------------------------------------------------------------------------


def addresses_of(hosts: tuple[str, ...]) -> dict[str, str]:
    """For each machine, the address by which it reaches this one; loopback if all of them are this machine."""
    sources = {host: _source_towards(host) for host in hosts if not is_this_machine(host)}
    local = next(iter(sources.values()), LOOPBACK)  # an address that remote ranks can reach as well
    return {host: sources.get(host, local) for host in hosts}


def is_this_machine(host: str) -> bool:
    """Does a name belong to this machine?  Then a socket can be bound to its address."""
    family, address = _resolve(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _source_towards(host: str) -> str:
    """The source address of packets to a machine; no packet is sent."""
    family, address = _resolve(host)
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError as error:
            raise UsageError(f"--hosts {host}: there is no route to {address}: {error.strerror}.") from error
        source: str = probe.getsockname()[0]
    return source


def _resolve(host: str) -> tuple[int, str]:
    try:
        family, *_, address = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)[0]
    except OSError as error:
        raise UsageError(
            f"--hosts {host}: the name has no address: {error.strerror}. Name machines as this one resolves them, or "
            "by their addresses; a name of ssh's configuration alone is not enough, since ranks connect to it too."
        ) from error
    return family, str(address[0])
