"""What a benchmark case says: the cells it measures, the data, and the same network in each framework's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Arrays = dict[str, np.ndarray]

# So small that a whole benchmark does not memorise its batches: gradients keep their size, no unit dies, and no
# optimizer state decays into denormals, which some contenders flush to zero and others compute with.
LEARNING_RATES = {"sgd": 1e-5, "adam": 1e-6, "adamw": 1e-6}
WEIGHT_DECAY = 0.01  # of AdamW, on every parameter: what torch does by itself


@dataclass(frozen=True)
class Cell:
    """One column of the result: a batch size and an optimizer."""

    name: str
    batch: int
    optimizer: Literal["sgd", "adam", "adamw", "none"]  # none: gradients are computed and kept, nothing is updated
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of products; everything else is float32


class Trainer(Protocol):
    """A network in training, ready to step through batches that its framework already holds."""

    def step(self, index: int) -> None:
        """Starts one training step on batch `index` (they rotate). Need not wait for its end."""

    def loss(self) -> float:
        """Waits for all steps under way; the loss of the last one, taken before its update."""


@dataclass(frozen=True)
class Case:
    """One network. `models` has one entry per framework; each framework's module documents what it expects there."""

    name: str
    cells: tuple[Cell, ...]
    weights: Callable[[], Arrays]
    batches: Callable[[Cell], list[Arrays]]
    models: Mapping[str, Callable[..., Any]]

    def cell(self, name: str) -> Cell:
        """The cell of that name."""
        return next(cell for cell in self.cells if cell.name == name)
