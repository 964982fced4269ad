"""Run by every rank of tests/distributed/launch/test_processes.py: in a grid of 2 x 2, the last one is lost.

Rank 1 and rank 2 wait for it, along different axes; rank 0 waits for them.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np

from tests.distributed.scripts.faults import HOW, refused
from tests.distributed.support.ranks import transport, wait_for
from wholestep.compiler.ir.mesh import AXES
from wholestep.distributed.transport import native
from wholestep.distributed.transport.grid import ProcessGrid
from wholestep.distributed.transport.process_group import ProcessGroup

LAST = 3


def main(how: str, memory: str) -> None:
    whole = ProcessGroup(transport(), timeout=2.0 if how == "hangs" else 60.0, memory=memory == "memory")
    grid, numbers = ProcessGrid(whole, 2), np.ones(3000, np.float32)
    assert [native.sum_all(grid.along[axis].native, numbers) for axis in AXES] == [0, 0]
    grid.along["data"].native.step = 41  # as native loops say it
    if grid.rank == LAST:
        HOW[how](whole)
        return
    errors = (native.sum_all(grid.along[axis].native, numbers) for axis in AXES)
    assert any(errors)  # the others are not come to
    error = refused(grid)
    whole.leave()  # as a process that ends does
    assert native.sum_all(whole.native, numbers) != 0  # nothing is exchanged any more
    sys.stdout.write(f"rank {grid.rank} says: {error}\n")  # at once: others write too
    sys.stdout.flush()
    wait_for(whole, [0, 1, 2])  # the others have printed, too
    if grid.rank == 0 and how == "hangs":
        os.kill(whole.ranks[LAST].pid, signal.SIGCONT)


if __name__ == "__main__":
    main(*sys.argv[1:])
