"""A script for `wholestep launch` in test_faults.py: a run that takes a while and keeps checkpoints.

`long_run.py folder timeout [optimizer|layers]`, which workers then divide; the weights that it ends with are in
`folder/end-<rank>`.  Its last epoch begins when there is a file `folder/disturbed`: whoever disturbs it is in time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

import wholestep as ws
from tests.distributed.support.training import fingerprint
from tests.support.compilers import quick

EPOCHS, ROWS, BATCH = 20, 600, 20


class Slowly(ws.Callback):
    """A tiny network's epochs would be over before anybody could disturb them."""

    every = 10

    def __init__(self, until: Path | None) -> None:
        self.until = until

    def on_slice(self, steps: int, loss: float) -> None:
        time.sleep(0.01)

    def on_epoch_begin(self, epoch: int) -> None:
        while self.until is not None and epoch == EPOCHS - 1 and not self.until.exists():
            time.sleep(0.01)


def main(folder: Path, **where: object) -> str:
    x, y = ws.datasets.digits()
    slowly = Slowly(folder / "disturbed" if "workers" in where else None)
    first, last = ws.nn.Linear(64, 16, split="columns"), ws.nn.Linear(16, 10, split="rows")
    model = ws.nn.Sequential(first, ws.nn.ReLU(), ws.nn.Dropout(0.1), last)
    ws.fit(
        model,
        (x[:ROWS], y[:ROWS]),
        loss="cross_entropy",
        epochs=EPOCHS,
        batch_size=BATCH,
        seed=5,
        threads=1,
        progress=False,
        callbacks=[slowly, ws.CSVLogger(folder / "log.csv")],
        checkpoint=folder / "run",
        options=quick(),
        optimizer=ws.Adam(),
        **where,
    )
    return fingerprint(model)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    divided = next(iter(sys.argv[3:]), None)
    how = {"model": 2} if divided == "layers" else {"shard": divided}
    workers = ws.Workers(timeout=float(sys.argv[2]), **how)  # type: ignore[arg-type]
    found = main(place, workers=workers, resume=True)
    (place / f"end-{ws.Workers().rank}").write_text(found)
    np.testing.assert_equal(len((place / "log.csv").read_text().splitlines()), EPOCHS + 1)
