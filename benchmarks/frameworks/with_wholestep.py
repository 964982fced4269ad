"""Wholestep: `session.step` with NumPy batches, as a user calls it.  `models["wholestep"]() -> Graph`."""

from __future__ import annotations

import wholestep as ws
from benchmarks.case import WEIGHT_DECAY, Case, Cell
from benchmarks.frameworks import OURS_FLOAT32, OURS_RANKS

OPTIMIZERS = {  # optimizers are imported on demand: the first step's time includes the import of one
    "sgd": lambda lr: ws.SGD(lr=lr),
    "adam": lambda lr: ws.Adam(lr=lr),
    "adamw": lambda lr: ws.AdamW(lr=lr, weight_decay=WEIGHT_DECAY, decay_on=("*",)),
}


def optimizer_of(cell: Cell) -> ws.Optimizer:
    if cell.optimizer == "none":
        from benchmarks.frameworks.kept_gradients import KeepGradients

        return KeepGradients()
    return OPTIMIZERS[cell.optimizer](lr=cell.learning_rate)


class WholestepTrainer:
    """Steps through NumPy batches; the session reads them in place."""

    def __init__(
        self, case: Case, cell: Cell, threads: int, precision: str = "float32", workers: ws.Workers | None = None
    ) -> None:
        self.session = ws.build_session(
            case.models["wholestep"](),
            optimizer=optimizer_of(cell),
            batch_size=cell.batch,
            seed=0,
            threads=threads,
            precision=precision,
            workers=workers,
        )
        for name, value in case.weights().items():
            self.session.set(name, value)
        self.batches = case.batches(cell)

    @property
    def peak_bytes(self) -> int:
        """All bytes that the session maps: state, arena and workspaces."""
        return int(self.session.report().peak_bytes)

    def tensor_bytes(self) -> int:
        """All tensors of a step, exact from the plan: the mapped bytes without page rounding and space for inputs."""
        held = self.session.report().footprint
        return held.state + held.copies + held.arena + held.workspace + held.outputs + held.constants

    def step(self, index: int) -> None:
        self.result = self.session.step(**self.batches[index % len(self.batches)])

    def loss(self) -> float:
        return float(self.result.loss)


def start(contender: str, case: Case, cell: Cell, threads: int) -> WholestepTrainer:
    """A session ready for its first step."""
    precision = "float32" if contender == OURS_FLOAT32 else cell.precision
    return WholestepTrainer(case, cell, threads, precision, ws.Workers() if contender == OURS_RANKS else None)
