"""Run by every rank of test_divided_gpus.py: states and layers that GPUs, which are none, have divided among them.

python -m tests.distributed.scripts.divided_on_gpus CODE FOLDER MODEL     what each rank ends with is in FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import wholestep as ws
from tests.compiler.backends.cuda.emulation.models import device_bytes
from tests.distributed.scripts import on_gpus, split

Array = np.ndarray[Any, Any]
STATES = ("0.weight.adam.m", "0.weight")  # of a session: divided, and whole or divided
FULL = 8
STEPS = (FULL, 5, FULL)  # rows of batches


# Of grids: the runs of their ranks.  Three ranks also keep the optimizer's state whole, to compare with.
PARTS = {"shard": "optimizer"}
CASES: dict[tuple[int, int], list[tuple[str, dict[str, Any]]]] = {
    (2, 1): [(case, PARTS) for case in on_gpus.CASES],
    (3, 1): [(case, settings) for case in on_gpus.CASES for settings in ({}, PARTS)],
    (2, 2): [("gpt", {}), ("grouped", PARTS), ("perceptron", {}), ("perceptron", PARTS)],
}


def file_of(case: str, settings: Mapping[str, Any], rank: int | None = None) -> str:
    return f"{case}-{settings.get('shard')}" + ("" if rank is None else f"-{rank}.npz")


def fitted(case: str, **settings: Any) -> dict[str, Array]:
    """The weights, and what epochs have told."""
    if case in on_gpus.CASES:
        return on_gpus.trained(case, **settings)
    model, history = split.train(case, **{"options": on_gpus.OPTIONS, **settings})
    told = [name for name in history.scalars if not name.endswith("seconds")]
    return {**{n: np.asarray(v) for n, v in model.state_dict().items()}, **{n: np.array(history[n]) for n in told}}


def kept(folder: Path, epochs: int, **settings: Any) -> dict[str, Array]:
    """A run that keeps its checkpoints."""
    model = split.perceptron()
    told = {"optimizer": ws.AdamW(lr=1e-2), "epochs": epochs, "batch_size": 8, "seed": 3, "progress": False}
    told |= {"options": on_gpus.OPTIONS, "nonfinite": "ignore", "checkpoint": folder}
    ws.fit(model, (split.VECTORS, split.LABELS), loss="cross_entropy", **told, **settings)
    return {name: np.asarray(array) for name, array in model.state_dict().items()}


def built(**where: Any) -> ws.Session:
    about = {"inputs": ws.Spec(("batch", 16)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    told = {"optimizer": ws.Adam(lr=0.01), "batch_size": 8, "seed": 3, "options": on_gpus.OPTIONS}
    return ws.build_session(split.perceptron(), **about, **told, **where)


def stepped(session: ws.Session, batches: Sequence[int]) -> list[float]:
    return [float(session.step(x=split.VECTORS[:rows], labels=split.LABELS[:rows])) for rows in batches]


def main(code: Path, folder: Path, model: int) -> None:
    with on_gpus.machine(code) as (rank, ranks, nccl):
        for case, settings in CASES[ranks // model, model]:
            workers = ws.Workers(model=model, **settings)
            np.savez(folder / file_of(case, settings, rank), **fitted(case, device="cuda", workers=workers))
        workers, before = ws.Workers(model=model, shard="optimizer"), device_bytes()
        session = built(device="cuda", workers=workers)
        found = {"losses": stepped(session, STEPS), "held": device_bytes() - before, "told": session.peak_bytes}
        sent = nccl.sent
        stepped(session, [FULL])
        found |= {"sent": nccl.sent - sent, "exchanged": session.report().collectives}
        (folder / f"counted-{rank}.json").write_text(json.dumps(found))
        states = {**session.state_dict(), **{f"got {name}": session.get(name) for name in STATES}}
        np.savez(folder / f"states-{rank}.npz", **states)
        kept(folder / "run", 2, device="cuda", workers=workers)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
