"""A script for `wholestep launch` in test_owners.py: workers that divide the optimizer's state.

`sharded.py folder`: a run into `folder/together`, which all of them see, and one where each has a folder of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.runtime.state.partitioned_state import Parts
from wholestep.train.checkpoint import load_checkpoint


def train(folder: str, *, epochs: int = 2, read: bool = True, **where: Any) -> dict[str, np.ndarray[Any, Any]]:
    """A run that keeps its last two checkpoints; what the optimizer knows at its end."""
    rng = np.random.default_rng(5)
    data = rng.standard_normal((37, 12)).astype(np.float32), rng.integers(0, 4, 37)
    model = ws.nn.Sequential(ws.nn.Linear(12, 65), ws.nn.ReLU(), ws.nn.Linear(65, 4))
    told = {"optimizer": ws.AdamW(lr=1e-2), "epochs": epochs, "batch_size": 16, "seed": 3, "progress": False}
    keeper = ws.ModelCheckpoint(folder, best=0, last=2)
    told["nonfinite"] = "ignore"  # else a copy of so small a state is kept, whole, to look at a loss again
    ws.fit(model, data, loss="cross_entropy", callbacks=[keeper], options=quick(), threads=1, **told, **where)
    return dict(load_checkpoint(folder).arrays) if read else {}


def main(folder: Path) -> None:
    """Says how often this worker had a whole state of what is divided while it trained and saved."""
    gathered = 0
    read = Parts.read

    def counted(self: Parts) -> Any:
        nonlocal gathered
        gathered += 1
        return read(self)

    Parts.read = counted  # type: ignore[method-assign]
    workers = ws.Workers(shard="optimizer")
    train(os.fspath(folder / "together"), workers=workers)
    sys.stdout.write(f"gathered {gathered}\n")
    (own := folder / f"machine-{workers.rank}").mkdir()
    os.chdir(own)
    train("alone", workers=workers, read=workers.rank == 0)
    sys.stdout.write(f"then {gathered}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
