"""A script for test_faults.py: the first rank runs an epoch while the second calls something else."""

from __future__ import annotations

import wholestep as ws
from tests.distributed.support.training import drawn
from tests.support.compilers import quick

session = ws.build_session(
    ws.nn.Linear(6, 1),
    inputs=ws.Spec(("batch", 6)),
    targets=ws.Spec(("batch", 1)),
    loss="mse",
    batch_size=8,
    options=quick(),
    workers=ws.Workers(2, timeout=60),
)
assert session.group is not None
if session.group.rank == 0:
    session.run(x=drawn(80, 6), labels=drawn(80, 1))
else:
    session.group.gather(b"alone")
