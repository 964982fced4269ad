"""A script for test_ray.py: training on Ray's workers, or in shards, one of them killed on the way."""

from __future__ import annotations

import os
import signal
import sys

import wholestep as ws
from wholestep.options import read_launch

how, folder, weights = sys.argv[1:4]
x, y = ws.datasets.digits()


class Killer(ws.Callback):
    """Kills a rank, or the worker of Ray that has started it, in the second epoch of the first attempt."""

    every = 5

    def on_step(self, metrics: ws.StepMetrics) -> None:
        told = read_launch()
        if told is not None and (told.rank, told.attempt, metrics.epoch, metrics.step) == (1, 0, 1, 15):
            os.kill({"rank": os.getpid(), "worker": os.getppid()}[how], signal.SIGKILL)


model = ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.ReLU(), ws.nn.Dropout(0.1), ws.nn.Linear(32, 10))
where = {"shards": 2} if how == "shards" else {"workers": ws.Workers(2, engine="ray", checkpoint=folder, restarts=2)}
if how == "error" and read_launch() is not None:
    raise ValueError("a mistake of the script")
callbacks = [Killer()] if how in ("rank", "worker") else []
history = ws.fit(
    model, (x, y), loss="cross_entropy", batch_size=64, epochs=3, seed=3, callbacks=callbacks, progress=False, **where
)
print("after fit", len(history), [float(loss).hex() for loss in history["loss"]])
model.save(weights)
