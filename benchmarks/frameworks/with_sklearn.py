"""scikit-learn: one `partial_fit` per batch. `models["sklearn"](cell) -> MLPClassifier`."""

from __future__ import annotations

import numpy as np

from benchmarks.case import Case, Cell


class SklearnTrainer:
    """Trains with `partial_fit`; BLAS takes its threads from the environment that the harness sets."""

    def __init__(self, case: Case, cell: Cell) -> None:
        self.batches = [(batch["x"], batch["labels"]) for batch in case.batches(cell)]
        weights = case.weights()
        self.classifier = case.models["sklearn"](cell)
        # The first call only creates the arrays; then they get the common weights, and the optimizer restarts.
        self.classifier.partial_fit(*self.batches[0], classes=np.arange(len(weights["b2"])))
        self.classifier.coefs_ = [weights["w1"], weights["w2"]]
        self.classifier.intercepts_ = [weights["b1"], weights["b2"]]
        del self.classifier._optimizer

    def step(self, index: int) -> None:
        self.classifier.partial_fit(*self.batches[index % len(self.batches)])

    def loss(self) -> float:
        return float(self.classifier.loss_)


def start(contender: str, case: Case, cell: Cell, threads: int) -> SklearnTrainer:
    """A classifier ready for its first step."""
    return SklearnTrainer(case, cell)
