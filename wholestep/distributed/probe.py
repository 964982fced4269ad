"""Communication benchmark of `wholestep doctor --workers 2`: every worker checks and times all-reduces."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import ProcessGroup
from wholestep.distributed.workers import Workers
from wholestep.errors import WorkerError

SMALL, LARGE = 1, 1 << 22  # numbers of 4-byte elements: a single one shows the latency, 16 MiB the bandwidth
REPEATS = {SMALL: 200, LARGE: 10}  # timed all-reduces of each size; the median is reported
TIMEOUT = 60.0  # seconds that a worker waits for the others


def main() -> None:
    """Time both sizes; rank 0 prints the result."""
    group = Workers(timeout=TIMEOUT).join()
    assert isinstance(group, ProcessGroup), "the command starts at least two"
    small, large = (seconds_of_sum(group, count) for count in (SMALL, LARGE))
    if group.rank == 0:
        medium = "memory that they share" if group.memory else "messages"
        hosts = len({rank.host for rank in group.ranks})
        machines = "1 machine" if hosts == 1 else f"{hosts} machines"
        sys.stdout.write(
            f"{group.size} over {group.engine} on {machines}, by {medium}: a sum of {4 * SMALL} bytes "
            f"takes {1e6 * small:.1f} us, of {4 * LARGE >> 20} MiB {1e3 * large:.2f} ms "
            f"({4e-9 * LARGE / large:.1f} GB/s)\n"
        )


def seconds_of_sum(group: ProcessGroup, count: int) -> float:
    """The median time of an all-reduce; raises WorkerError if a sum is wrong."""
    times, local = [], np.arange(group.rank, group.rank + count, dtype=np.float32) % 1024
    expected = sum(np.arange(rank, rank + count, dtype=np.float32) % 1024 for rank in range(group.size))
    total = np.zeros_like(local)
    for _ in range(REPEATS[count]):
        start = time.perf_counter()
        native.run(group.native, "all_reduce", [(local, total, count)])
        times.append(time.perf_counter() - start)
        group.check()
    if not np.array_equal(total, expected):
        raise WorkerError(f"rank {group.rank} was given a wrong sum of {count} numbers", group.rank, 0)
    return statistics.median(times)


if __name__ == "__main__":
    main()
