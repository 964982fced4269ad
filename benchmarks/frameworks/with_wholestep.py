"""Ours: NumPy batches handed to `session.step`, as a user would. `models["wholestep"]() -> Graph`."""

from __future__ import annotations

from functools import partial

import wholestep as ws
from benchmarks.case import LEARNING_RATES, WEIGHT_DECAY, Case, Cell

OPTIMIZERS = {
    "sgd": ws.SGD,
    "adam": ws.Adam,
    "adamw": partial(ws.AdamW, weight_decay=WEIGHT_DECAY, decay_on=("*",)),
}


class WholestepTrainer:
    """Steps through NumPy batches; the session reads them in place."""

    def __init__(self, case: Case, cell: Cell, threads: int) -> None:
        self.session = ws.build_session(
            case.models["wholestep"](),
            optimizer=OPTIMIZERS[cell.optimizer](lr=LEARNING_RATES[cell.optimizer]),
            batch_size=cell.batch,
            seed=0,
            threads=threads,
        )
        for name, value in case.weights().items():
            self.session.set(name, value)
        self.batches = case.batches(cell)

    @property
    def peak_bytes(self) -> int:
        """State, arena and workspaces: everything the session maps."""
        return int(self.session.report().peak_bytes)

    def tensor_bytes(self) -> int:
        """All tensors of a step, exact from the plan: what is mapped but for rounding and the room for inputs."""
        held = self.session.report().footprint
        return held.state + held.copies + held.arena + held.workspace + held.outputs + held.constants

    def step(self, index: int) -> None:
        self.result = self.session.step(**self.batches[index % len(self.batches)])

    def loss(self) -> float:
        return float(self.result.loss)


def start(contender: str, case: Case, cell: Cell, threads: int) -> WholestepTrainer:
    """A session ready for its first step."""
    return WholestepTrainer(case, cell, threads)
