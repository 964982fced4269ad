"""A script for `wholestep launch` in test_split_training.py: workers that divide layers.

`threads.py folder network model`: rank 0 alone predicts at the end, and writes what it has.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import wholestep as ws
from tests.support.compilers import quick

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(7)
ROWS = 29  # in batches of 8: the last one has 5
VECTORS = RNG.standard_normal((ROWS, 16)).astype(np.float32)
LABELS = RNG.integers(0, 4, ROWS).astype(np.int32)
TOKENS = RNG.integers(0, 40, (ROWS, 7)).astype(np.int32)


def perceptron() -> ws.nn.Module:
    columns, rows = ws.nn.Linear(16, 64, split="columns"), ws.nn.Linear(64, 4, split="rows")
    return ws.nn.Sequential(columns, ws.nn.GELU(), rows)


def gpt(split: bool = True, dtype: str = "float32") -> ws.nn.Module:
    return ws.models.gpt2(layers=1, width=16, heads=4, vocabulary=40, context=6, split=split, dtype=dtype)


class Grouped(ws.nn.Module):
    """Four heads of queries share two of keys and values, in one matrix."""

    def __init__(self) -> None:
        self.attention = ws.nn.MultiHeadAttention(16, 4, kv_heads=2, split="heads")
        self.scores = ws.nn.Linear(16, 4)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        scores: ws.Tensor = self.scores(self.attention(x)).mean(1)
        return scores


SEQUENCES = RNG.standard_normal((ROWS, 3, 16)).astype(np.float32)
NETWORKS = {
    "perceptron": (perceptron, (VECTORS, LABELS)),
    "gpt": (gpt, (TOKENS[:, :-1], TOKENS[:, 1:])),
    "grouped": (Grouped, (SEQUENCES, LABELS)),
}


def train(network: str, **settings: Any) -> tuple[ws.nn.Module, Any]:
    """A run with validation: the model, and what `fit` gives."""
    make, data = NETWORKS[network]
    model = make()
    told = {"optimizer": ws.SGD(lr=0.05, momentum=0.9), "epochs": 2, "batch_size": 8, "seed": 3, "clip_norm": 0.5}
    held = tuple(a[: 8 if network == "gpt" else 9] for a in data)  # in one part, or in two
    told |= {"validation": held, "progress": False, "options": quick()}
    made = ws.fit(model, data, loss="cross_entropy", **{**told, **settings})
    return model, made


if __name__ == "__main__":
    folder, network, ranks = sys.argv[1:]
    workers = ws.Workers(model=int(ranks))
    model, _ = train(network, checkpoint=folder, threads=1, workers=workers)
    if workers.rank == 0:
        given = NETWORKS[network][1][0][:4]
        np.savez(f"{folder}/found.npz", predicted=model.predict(given), **model.state_dict())
