"""Run by every rank of test_processes.py: collectives along the axes of a grid.  `ok` is the last word."""

from __future__ import annotations

import numpy as np

from tests.distributed.scripts.collectives import parts
from tests.distributed.support.ranks import transport
from tests.distributed.support.trees import tree_sum
from wholestep.compiler.ir.mesh import AXES
from wholestep.distributed.transport import native
from wholestep.distributed.transport.grid import ProcessGrid
from wholestep.distributed.transport.process_group import ProcessGroup

COUNTS = (1, 3000, 200_004)


def check(grid: ProcessGrid, axis: str, count: int) -> None:
    group, beside = grid.along[axis], list(grid.grid.group(axis, grid.rank))
    assert group.numbers == beside
    given = parts(count * group.size, "float32", grid.size, seed=count)  # of all ranks, by their number
    own, total = given[grid.rank].copy(), tree_sum([given[r] for r in beside])
    assert native.sum_all(group.native, own) == 0
    assert own.tobytes() == total.tobytes()
    part = np.zeros(count, np.float32)
    assert native.run(group.native, "reduce_scatter", [(given[grid.rank], part, count)]) == 0
    assert part.tobytes() == total[group.rank * count : (group.rank + 1) * count].tobytes()
    whole = np.zeros_like(own)
    assert native.run(group.native, "all_gather", [(given[grid.rank][:count].copy(), whole, count)]) == 0
    assert whole.tobytes() == np.concatenate([given[r][:count] for r in beside]).tobytes()
    first = given[grid.rank].copy()
    assert native.run(group.native, "broadcast", [(first, first, first.size)]) == 0
    assert first.tobytes() == given[beside[0]].tobytes()


def main() -> None:
    carrier = transport()
    for memory in (True, False):
        whole = ProcessGroup(carrier, timeout=60.0, memory=memory)
        grid = ProcessGrid(whole, 2)
        assert all(group.memory == memory for group in grid.along.values())
        assert grid.gather(str(grid.rank).encode()) == [str(rank).encode() for rank in range(grid.size)]
        assert grid.broadcast(str(grid.rank).encode()) == b"0"
        for count in COUNTS:
            for axis in AXES:
                check(grid, axis, count)
        grid.check()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
