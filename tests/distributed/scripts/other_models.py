"""A script for `wholestep launch` in tests/distributed/test_digest.py: rank 0 builds more networks than the others."""

from __future__ import annotations

import sys

import wholestep as ws
from tests.distributed.support.training import drawn
from tests.support.compilers import quick

x, y = drawn(16, 4), drawn(16, 1)
first, second = (ws.nn.Sequential(ws.nn.Linear(4, 3), ws.nn.Tanh(), ws.nn.Linear(3, 1)) for _ in "ab")
if ws.Workers().rank == 0:
    ws.nn.Linear(4, 1).predict(x)  # a baseline that the others have no use for
    second.predict(x)
found = []
for model in (first, second):
    ws.fit(model, (x, y), loss="mse", batch_size=8, progress=False, options=quick(), workers=ws.Workers())
    found.append(model.state_dict()["0.weight"].tobytes().hex())
assert found[0] != found[1]
sys.stdout.write("".join(f"{text}\n" for text in found))
