"""What `wholestep launch --hosts` runs on each machine: it starts the ranks of that machine and tells how each ended.

    ssh host python -m wholestep.distributed.launch.agent

The launcher writes to its standard input: first a line with what to run, secret and all, then signals to hand on.
When that input ends, so do the ranks: the launcher has ended, or is gone.
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
    Ended,
    end_ranks,
    prefixed,
    signal_ranks,
    start_rank,
    write_line,
)
from wholestep.options import notes_variables, rank_variables

MARK = "wholestep: rank ended: "  # before what our launcher is told
SIGNAL = "signal "  # before the number of a signal for the ranks


@dataclass(frozen=True)
class Task:
    """The ranks of a machine: what each runs, where, and how they meet the others."""

    command: Sequence[str]
    folder: str
    variables: Mapping[str, str]
    ranks: Sequence[int]
    rendezvous: Address
    secret: str
    node: str


def main() -> int:
    """Run the ranks of the task that comes by standard input."""
    task = Task(**json.loads(sys.stdin.readline()))
    os.chdir(task.folder)
    notes = [os.memfd_create("wholestep-step") for _ in task.ranks]
    started: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    is_over = threading.Event()
    try:
        for rank, note in zip(task.ranks, notes, strict=True):
            address, secret = (task.rendezvous[0], task.rendezvous[1]), bytes.fromhex(task.secret)
            own = {**rank_variables(rank, address, secret, task.node), **notes_variables(note)}
            environment = {**os.environ, **task.variables, **own}
            child = start_rank(task.command, environment, rank, stdin=subprocess.DEVNULL, notes=note)
            started.append(child)
            readers += prefixed(child, rank)
        threading.Thread(target=_listen, args=(started, is_over), daemon=True).start()
        running = dict(zip(task.ranks, zip(started, notes, strict=True), strict=True))
        while running and not is_over.is_set():
            for rank, (child, note) in list(running.items()):
                if (code := child.poll()) is not None:
                    del running[rank]
                    ended = with_notes(Ended.by(rank, code), child.pid, note)
                    write_line(sys.stderr, MARK + json.dumps(asdict(ended)))
            time.sleep(POLL)
    finally:
        end_ranks(started)
        for reader in readers:
            reader.join()
    return 0


def _listen(started: Sequence[subprocess.Popen[bytes]], is_over: threading.Event) -> None:
    for line in sys.stdin:
        if line.startswith(SIGNAL):
            signal_ranks(started, int(line.removeprefix(SIGNAL)))
    is_over.set()


def with_notes(ended: Ended, pid: int, notes: int) -> Ended:
    """How a rank ended, with its process, machine and step."""
    step, missed = os.pread(notes, STEP_BYTES, 0), os.pread(notes, 1 << 16, STEP_BYTES)
    last = f"; it was last heard of at step {int.from_bytes(step, 'little')}" if step else ""
    how = f"(process {pid} on {socket.gethostname()}) {ended.how}{last}"
    return replace(ended, how=how, missed=missed.decode())


def heard(line: str) -> Ended | None:
    """What a line of an agent says about a rank's end; None where it says something else."""
    _, mark, text = line.partition(MARK)
    return replace(Ended(**json.loads(text)), when=time.monotonic()) if mark else None


if __name__ == "__main__":
    sys.exit(main())
