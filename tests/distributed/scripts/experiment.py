"""An experiment for `wholestep train --workers 2` in test_command.py; it says nothing about workers."""

from __future__ import annotations

import wholestep as ws
from tests.support.compilers import quick


def build(epochs: int = 2) -> ws.Experiment:
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 16), ws.nn.ReLU(), ws.nn.Linear(16, 10))
    data = (x[:300], y[:300])
    return ws.Experiment(
        model=model, data=data, loss="cross_entropy", metrics=["accuracy"], epochs=epochs, threads=1, options=quick()
    )
