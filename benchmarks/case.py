"""A benchmark case: the cells it measures, its data, and the same network in every framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]

# So small that no network memorises its batches during a benchmark: gradients keep their magnitude, no unit dies, and
# no optimizer state decays to denormals, which some contenders flush to zero and others compute with.
LEARNING_RATES = {"sgd": 1e-5, "adam": 1e-6, "adamw": 1e-6}
WEIGHT_DECAY = 0.01  # weight decay of AdamW, on every parameter: torch's default


@dataclass(frozen=True)
class Cell:
    """One column of the result: a batch size and an optimizer."""

    name: str
    batch: int
    optimizer: Literal["sgd", "adam", "adamw", "none"]  # none: gradients are computed and stored, nothing is updated
    # precision of products; everything else is float32
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    rate: float | None = None  # learning rate; None: the rate in `LEARNING_RATES`

    @property
    def learning_rate(self) -> float:
        return LEARNING_RATES[self.optimizer] if self.rate is None else self.rate


class Trainer(Protocol):
    """Trains a network over batches that are already tensors of its framework."""

    def step(self, index: int) -> None:
        """Starts one training step on batch `index` (batches rotate); it may return before the step ends."""

    def loss(self) -> float:
        """Waits for all steps in flight; returns the loss of the last one, computed before its update."""


@dataclass(frozen=True)
class Case:
    """One network. `models` has one entry per framework; each framework's module documents what it expects there."""

    name: str
    cells: tuple[Cell, ...]
    weights: Callable[[], Arrays]
    batches: Callable[[Cell], list[Arrays]]
    models: Mapping[str, Callable[..., Any]]
    prepare: Callable[[], object] | None = None  # what exists before any clock starts, e.g. a module of another library

    def cell(self, name: str) -> Cell:
        """The cell with that name."""
        return next(cell for cell in self.cells if cell.name == name)
