"""A script for `wholestep launch` in test_saving.py: steps by hand, then a checkpoint, by all workers or by one.

`saved.py folder how [model]`: "all" save; "ends", "steps": the first does alone, while the other one ends or steps.
"""

from __future__ import annotations

import sys

import numpy as np

import wholestep as ws
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 16)).astype(np.float32), RNG.integers(0, 4, 8).astype(np.int32)


def built(**where: object) -> ws.Session:
    """After three steps."""
    columns, rows = ws.nn.Linear(16, 64, split="columns"), ws.nn.Linear(64, 4, split="rows")
    about = {"inputs": ws.Spec(("batch", 16)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    about |= {"optimizer": ws.AdamW(lr=1e-2), "batch_size": 8, "seed": 3, "options": quick(), "threads": 1}
    session = ws.build_session(ws.nn.Sequential(columns, ws.nn.ReLU(), rows), **about, **where)
    for _ in range(3):
        session.step(x=X, labels=Y)
    return session


if __name__ == "__main__":
    folder, how, *model = sys.argv[1:]
    session = built(workers=ws.Workers(timeout=60.0, **({"model": 2} if model else {"shard": "optimizer"})))
    if how == "all" or ws.Workers().rank == 0:
        print("saved", ws.save_checkpoint(folder, session).name, flush=True)
    elif how == "steps":
        session.step(x=X, labels=Y)
