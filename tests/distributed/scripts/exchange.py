"""A script for `wholestep launch` in tests/distributed/launch/test_hosts.py: sums over a cable, of known size."""

from __future__ import annotations

import sys

import numpy as np

import wholestep as ws
from tests.distributed.support.trees import tree_sum
from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import ProcessGroup

COUNT, REPEATS = 1 << 20, 4

group = ws.Workers(2).join()
assert isinstance(group, ProcessGroup)
assert not group.memory
parts = [np.random.default_rng(rank).standard_normal(COUNT).astype(np.float32) for rank in range(2)]
before = group.bytes_sent  # what it took to join
for _ in range(REPEATS):
    own = parts[group.rank].copy()
    assert native.sum_all(group.native, own) == 0
    assert own.tobytes() == tree_sum(parts).tobytes()
if group.rank == 0:
    sys.stdout.write(f"sent {group.bytes_sent - before}\n")
