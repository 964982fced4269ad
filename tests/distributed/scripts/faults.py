"""Run by every rank of test_processes.py: one rank hangs, leaves or dies."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Protocol

import numpy as np

from tests.distributed.support.ranks import transport, wait_for
from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import ProcessGroup
from wholestep.errors import WorkerError

LAST = 2  # the rank that is lost
HOW = {
    "hangs": lambda group: os.kill(os.getpid(), signal.SIGSTOP),
    "leaves": lambda group: group.leave(),
}


class Group(Protocol):
    """Ranks that notice when one of them is lost."""

    def check(self) -> None: ...


def refused(group: Group) -> WorkerError:
    """The error of a group that has lost a rank; without pytest, which takes 0.1 s of each rank."""
    try:
        group.check()
    except WorkerError as error:
        return error
    raise AssertionError("no rank is missed")


def main(how: str, memory: str) -> None:
    group = ProcessGroup(transport(), timeout=60.0, memory=memory == "memory")
    numbers = np.ones(3000, np.float32)
    assert native.sum_all(group.native, numbers) == 0
    group.native.step = 41  # as native loops say it
    if how == "hangs":
        group.native.timeout = 2.0  # on a busy machine the other one comes a bit later, too
    if group.rank == LAST:
        HOW[how](group)
        return
    began = time.monotonic()
    assert native.sum_all(group.native, numbers) != 0
    error = refused(group)
    assert (error.rank, error.step) == (LAST, 41)
    assert native.sum_all(group.native, numbers) != 0  # nothing is exchanged any more
    print(f"after {time.monotonic() - began:.1f} s: {error}", flush=True)
    wait_for(group, [0, 1])  # the others have printed, too
    if group.rank == 0 and how == "hangs":
        os.kill(group.ranks[LAST].pid, signal.SIGCONT)


if __name__ == "__main__":
    main(*sys.argv[1:])
