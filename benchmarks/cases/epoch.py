"""Whole epochs over 60,000 rows of the MLP's data, in memory: the cost of a training loop besides its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays
from benchmarks.cases import mlp

if TYPE_CHECKING:
    import wholestep as ws

ROWS = 60_000  # the size of MNIST
OPTIMIZER = "adam"


@dataclass(frozen=True)
class EpochCell:
    """A batch size, and the target ratio for each kind of loop."""

    name: str
    batch: int
    targets: dict[str, float]


CELLS = {
    cell.name: cell
    for cell in (
        EpochCell("b128", 128, {"torch_loop": 2.5, "torch_loader": 8.0, "jax_loop": 2.0, "jax_scan": 1.6}),
        EpochCell("b32", 32, {"torch_loop": 3.0, "torch_loader": 12.0, "jax_loop": 2.5, "jax_scan": 1.6}),
    )
}


def data(rows: int = ROWS) -> Arrays:
    """Centred data, for the same reason as in `mlp`."""
    rng = np.random.default_rng(1)
    return {
        "x": rng.standard_normal((rows, mlp.INPUTS), dtype=np.float32),
        "labels": rng.integers(0, mlp.CLASSES, rows).astype(np.int32),
    }


def wholestep_model() -> ws.nn.Module:
    """The network of `mlp`, written for `ws.fit`, with the same weights."""
    import wholestep as ws

    start = mlp.weights()
    layers = ws.nn.Linear(mlp.INPUTS, mlp.HIDDEN), ws.nn.ReLU(), ws.nn.Linear(mlp.HIDDEN, mlp.CLASSES)
    model = ws.nn.Sequential(*layers)
    named = {f"{layer}.weight": start[f"w{i}"].T for layer, i in ((0, 1), (2, 2))}
    model.load_state_dict(named | {f"{layer}.bias": start[f"b{i}"] for layer, i in ((0, 1), (2, 2))})
    return model
