"""A script for `wholestep launch` in tests/distributed/test_digest.py: workers that would not train the same."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import wholestep as ws
from tests.distributed.support.training import drawn
from tests.support.compilers import quick
from wholestep.distributed import digest

rank = ws.Workers().rank


def fit(weight: float = 0.1, rows: int = 40, **settings: Any) -> str:
    model = ws.nn.Sequential(ws.nn.Linear(4, 3), ws.nn.Tanh(), ws.nn.Linear(3, 1))
    model.load_state_dict({**model.state_dict(), "2.weight": np.full((1, 3), weight, np.float32)})
    common = {"loss": "mse", "progress": False, "batch_size": 8, "options": quick(), "workers": ws.Workers()}
    try:
        ws.fit(model, (drawn(rows, 4), drawn(rows, 1)), **{**common, **settings})
    except (ws.errors.UsageError, ws.errors.NonFiniteError) as error:
        return str(error)
    return "trained"


def installed(**versions: str) -> str:
    """A run of which worker 1 has other versions of something."""
    plain = digest.describe_run
    digest.describe_run = lambda *given: {**plain(*given), **(versions if rank else {})}
    try:
        return fit()
    finally:
        digest.describe_run = plain


said = [
    fit(),
    fit(seed=rank),
    fit(rows=40 + rank),
    fit(validation=(drawn(9 + rank, 4), drawn(9 + rank, 1))),
    fit(weight=0.1 + rank),
    fit(optimizer=ws.SGD(lr=0.1 * (rank + 1))),
    fit(clip_norm=1.0 if rank else None),
    installed(wholestep="0.0.1"),
    installed(python="3.99.1"),
    installed(numpy="1.0"),
    fit(workers=ws.Workers(model=1 + rank)),
    fit(workers=ws.Workers(model=3)),
    fit(),
    fit(optimizer=ws.SGD(lr=1e30), epochs=3),
]
sys.stdout.write("".join(f"{text}\n" for text in said))
