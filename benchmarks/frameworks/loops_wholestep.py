"""Wholestep: the loop of `ws.fit`, with a progress bar (if standard error is a terminal) or without."""

from __future__ import annotations

import wholestep as ws
from benchmarks.case import LEARNING_RATES, Arrays
from benchmarks.cases.epoch import OPTIMIZER, EpochCell, wholestep_model
from wholestep.train.fitting import trainer_for


class Fit:
    """The trainer and the loader that `ws.fit` creates, reused in every round: only the first one builds a session."""

    def __init__(self, cell: EpochCell, arrays: Arrays, threads: int, progress: bool, metrics: tuple[str, ...] = ()):
        self.trainer, self.loader = trainer_for(
            wholestep_model(),
            (arrays["x"], arrays["labels"]),
            loss="cross_entropy",
            optimizer=ws.Adam(lr=LEARNING_RATES[OPTIMIZER]),
            metrics=list(metrics),
            batch_size=cell.batch,
            threads=threads,
        )
        self.arrays, self.progress, self.done = arrays, progress, 0

    def epochs(self, count: int, shuffled: bool = True) -> float:
        if not shuffled:
            loader = ws.data.DataLoader(self.arrays["x"], self.arrays["labels"], self.loader.batch_size, shuffle=False)
            return self.trainer.train(loader, count).epochs[-1].avg_loss
        self.trainer.callbacks.callbacks[:] = [ws.Progress()] if self.progress else []
        history = self.trainer.train(self.loader, self.done + count, self.done)
        self.done += count
        return history.epochs[-1].avg_loss
