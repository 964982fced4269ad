"""A script for `wholestep launch` in test_launch.py: ranks that join, and one of them that is lost."""

from __future__ import annotations

import os
import signal
import sys
import time

import wholestep as ws

workers = ws.Workers()
group = workers.join()
assert group is not None
assert [int(rank) for rank in group.gather(str(workers.rank).encode())] == list(range(group.size))
print("threads", os.environ["WHOLESTEP_THREADS"], "arguments", *sys.argv[1:], flush=True)
how, attempt = sys.argv[1], os.environ["WHOLESTEP_ATTEMPT"]
if group.rank == 1:
    if how == "killed" or (how == "once" and attempt == "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "error":
        raise ValueError("a mistake of the script")
    if how == "exit":
        sys.exit(4)
group.gather(b"once more")
if how == "late" and group.rank == 1:
    time.sleep(2.5)  # longer than the others wait
print("end of", group.rank, flush=True)
