"""Whole epochs over 60,000 rows of the MLP's data, in memory: what a training loop costs besides its steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays
from benchmarks.cases import mlp

if TYPE_CHECKING:
    import wholestep as ws

ROWS = 60_000  # as many as MNIST has
OPTIMIZER = "adam"


@dataclass(frozen=True)
class EpochCell:
    """A batch size, and how many times as fast as each kind of loop we want to be."""

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
    """Centred, as the batches of `mlp`, and for the same reason."""
    rng = np.random.default_rng(1)
    return {
        "x": rng.standard_normal((rows, mlp.INPUTS), dtype=np.float32),
        "labels": rng.integers(0, mlp.CLASSES, rows).astype(np.int32),
    }


def wholestep_model() -> ws.nn.Module:
    """The network of `mlp` as a user of `ws.fit` writes it, with the same weights."""
    import wholestep as ws

    start = mlp.weights()
    layers = ws.nn.Linear(mlp.INPUTS, mlp.HIDDEN), ws.nn.ReLU(), ws.nn.Linear(mlp.HIDDEN, mlp.CLASSES)
    model = ws.nn.Sequential(*layers)
    named = {f"{layer}.weight": start[f"w{i}"].T for layer, i in ((0, 1), (2, 2))}
    model.load_state_dict(named | {f"{layer}.bias": start[f"b{i}"] for layer, i in ((0, 1), (2, 2))})
    return model
