"""A script for tests/distributed/launch/test_strangers.py: trains, and at one stage waits for a file.

gated.py FOLDER STAGE     before: ranks have not joined; joining: the first alone has; connecting: the second connects
                          to no other rank; training: in the middle of an epoch; after: the run is over
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import wholestep as ws
from tests.distributed.support.training import drawn
from tests.support.compilers import quick
from wholestep.distributed.transport import sockets

ROWS, BATCH, EPOCHS, AT = 96, 8, 2, 5


class Gate(ws.Callback):
    """Waits at a step."""

    every = AT

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_step(self, metrics: ws.StepMetrics) -> None:
        if (metrics.epoch, metrics.step) == (0, AT):
            wait_in("training", self.folder)


def wait_in(stage: str, folder: Path) -> None:
    (folder / f"{stage}-{ws.Workers().rank}").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def train(**settings: Any) -> str:
    """The weights that a run ends with."""
    model = ws.nn.Sequential(ws.nn.Linear(64, 96), ws.nn.Tanh(), ws.nn.Linear(96, 1))
    ws.fit(
        model,
        (drawn(ROWS, 64), drawn(ROWS, 1)),
        loss="mse",
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=3,
        progress=False,
        options=quick(),
        **settings,
    )
    return "".join(array.tobytes().hex() for array in model.state_dict().values())


def main(folder: Path, stage: str) -> None:
    rank, connect = ws.Workers().rank, sockets.connect
    if stage == "before" or (stage == "joining" and rank == 1):
        wait_in(stage, folder)
    if stage == "connecting" and rank == 1:

        def late(*arguments: Any) -> Any:
            wait_in(stage, folder)
            return connect(*arguments)

        sockets.connect = late
    callbacks = [Gate(folder)] if stage == "training" else []
    weights = train(workers=ws.Workers(2), callbacks=callbacks)
    (folder / f"end-{rank}").write_text(weights)
    if stage == "after":
        wait_in(stage, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
