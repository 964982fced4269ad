"""A script for tests/distributed/test_estimate.py: what ranks send in a step, as their engine counts it."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np

import wholestep as ws
from tests.distributed.support.small import ABOUT, network
from tests.support.compilers import quick

STEPS = 3
model = int(sys.argv[1]) if sys.argv[1:] else 1
workers = ws.Workers(model=model)
session = ws.build_session(network(split=model > 1), **ABOUT, workers=workers, options=replace(quick(), egraph=False))
group = workers.join()
batch = {"x": np.ones((64, 12), np.float32), "labels": np.zeros(64, np.int32)}
session.step(**batch)
before = group.bytes_sent
for _ in range(STEPS):
    session.step(**batch)
each, rest = divmod(group.bytes_sent - before, STEPS)
assert rest == 0, "every step sends the same"
sys.stdout.write(f"sent {each}\n")  # at once: other ranks write too
