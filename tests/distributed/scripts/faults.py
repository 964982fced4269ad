"""Run by every rank of test_processes.py: a rank that hangs, one that leaves, one that dies."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
import pytest

from tests.distributed.support.ranks import transport, wait_for
from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import ProcessGroup
from wholestep.errors import WorkerError

LAST = 2  # the rank that is lost
HOW = {
    "hangs": lambda group: os.kill(os.getpid(), signal.SIGSTOP),
    "leaves": lambda group: group.leave(),
}


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
    with pytest.raises(WorkerError) as caught:
        group.check()
    assert (caught.value.rank, caught.value.step) == (LAST, 41)
    assert native.sum_all(group.native, numbers) != 0  # nothing is exchanged any more
    print(f"after {time.monotonic() - began:.1f} s: {caught.value}", flush=True)
    wait_for(group, [0, 1])  # the others have printed, too
    if group.rank == 0 and how == "hangs":
        os.kill(group.ranks[LAST].pid, signal.SIGCONT)


if __name__ == "__main__":
    main(*sys.argv[1:])
