"""A script for `wholestep launch` in test_sharded_optimizer.py: workers that divide the optimizer's state."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import wholestep as ws
from tests.compilers import quick
from wholestep.train.checkpoint import load_checkpoint


def train(folder: str, **where: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A run that keeps checkpoints; what the optimizer knows at its end."""
    rng = np.random.default_rng(5)
    data = rng.standard_normal((37, 12)).astype(np.float32), rng.integers(0, 4, 37)
    model = ws.nn.Sequential(ws.nn.Linear(12, 65), ws.nn.ReLU(), ws.nn.Linear(65, 4))
    told = {"optimizer": ws.AdamW(lr=1e-2), "epochs": 2, "batch_size": 16, "seed": 3, "progress": False}
    ws.fit(model, data, loss="cross_entropy", checkpoint=folder, options=quick(), threads=1, **told, **where)
    return dict(load_checkpoint(folder).arrays)


if __name__ == "__main__":
    train(sys.argv[1], workers=ws.Workers(shard="optimizer"))
