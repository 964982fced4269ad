"""Trains into the folder that each line of its input names, and prints what came of it.

A line is `FOLDER EPOCHS`: the run goes on with what the folder holds, prints "training" before its first step, waits
for the next line, and prints "done" with the number of updates; or prints the error that refused it.
"""

from __future__ import annotations

import sys

import numpy as np

import wholestep as ws


class Ready(ws.Callback):
    """Trains once the test says so."""

    def on_epoch_begin(self, epoch: int) -> None:
        if self.run is not None and epoch == self.run.began.epoch:
            print("training", flush=True)
            sys.stdin.readline()


def main() -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(32, 4)).astype(np.float32), rng.normal(size=(32, 2)).astype(np.float32)
    options = {"loss": "mse", "batch_size": 8, "threads": 1, "progress": False, "exact": True, "resume": True}
    print("ready", flush=True)
    for line in iter(sys.stdin.readline, ""):
        folder, epochs = line.split()
        try:
            history = ws.fit(
                ws.nn.Linear(4, 2), data, epochs=int(epochs), checkpoint=folder, callbacks=Ready(), **options
            )
            print(f"done {sum(e.steps for e in history.epochs)}", flush=True)
        except ws.errors.CheckpointError as error:
            print(f"refused: {error}", flush=True)


if __name__ == "__main__":
    main()
