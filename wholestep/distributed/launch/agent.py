"""The agent that `wholestep launch --hosts` runs on each machine: it starts its ranks and reports how each ended.

    ssh host python -m wholestep.distributed.launch.agent

The launcher writes to its standard input: first a line with the task, secret included, then signals to forward.
When the input ends, the launcher has ended or is gone, and the agent ends the ranks.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from wholestep.distributed.launch.authentication import Address
from wholestep.distributed.launch.rank_processes import (
    POLL,
    STEP_BYTES,
    RankExit,
    copy_output,
    end_ranks,
    signal_ranks,
    start_rank,
    write_line,
)
from wholestep.options import notes_variables, rank_variables

MARK = "wholestep: rank ended: "  # prefix of a report to the launcher
SIGNAL = "signal "  # prefix of the number of a signal to forward


@dataclass(frozen=True)
class Task:
    """The ranks of one machine: their command, folder and environment, and how they join the others."""

    command: Sequence[str]
    folder: str
    variables: Mapping[str, str]
    ranks: Sequence[int]
    rendezvous: Address
    secret: str
    node: str


def main() -> int:
    """Run the ranks of the task that is read from standard input."""
    task = Task(**json.loads(sys.stdin.readline()))
    os.chdir(task.folder)
    notes = [os.memfd_create("wholestep-step") for _ in task.ranks]
    children: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    input_ended = threading.Event()
    try:
        for rank, note in zip(task.ranks, notes, strict=True):
            address, secret = (task.rendezvous[0], task.rendezvous[1]), bytes.fromhex(task.secret)
            of_rank = {**rank_variables(rank, address, secret, task.node), **notes_variables(note)}
            environment = {**os.environ, **task.variables, **of_rank}
            child = start_rank(task.command, environment, rank, stdin=subprocess.DEVNULL, notes=note)
            children.append(child)
            readers += copy_output(child, rank)
        threading.Thread(target=_listen, args=(children, input_ended), daemon=True).start()
        running = dict(zip(task.ranks, zip(children, notes, strict=True), strict=True))
        while running and not input_ended.is_set():
            for rank, (child, note) in list(running.items()):
                if (code := child.poll()) is not None:
                    del running[rank]
                    rank_exit = with_notes(RankExit.of_code(rank, code), child.pid, note)
                    write_line(sys.stderr, MARK + json.dumps(asdict(rank_exit)))
            time.sleep(POLL)
    finally:
        end_ranks(children)
        for reader in readers:
            reader.join()
    return 0


def _listen(children: Sequence[subprocess.Popen[bytes]], input_ended: threading.Event) -> None:
    for line in sys.stdin:
        if line.startswith(SIGNAL):
            signal_ranks(children, int(line.removeprefix(SIGNAL)))
    input_ended.set()


def with_notes(rank_exit: RankExit, pid: int, notes: int) -> RankExit:
    """The exit of a rank, with its process, machine, last step, and its message about a lost rank."""
    step, missed = os.pread(notes, STEP_BYTES, 0), os.pread(notes, 1 << 16, STEP_BYTES)
    last = f"; it was last heard of at step {int.from_bytes(step, 'little')}" if step else ""
    how = f"(process {pid} on {socket.gethostname()}) {rank_exit.how}{last}"
    return replace(rank_exit, how=how, missed=missed.decode())


def parse_exit(line: str) -> RankExit | None:
    """The report in a line of an agent; None if the line is output of a rank."""
    _, mark, text = line.partition(MARK)
    return replace(RankExit(**json.loads(text)), when=time.monotonic()) if mark else None


if __name__ == "__main__":
    sys.exit(main())
