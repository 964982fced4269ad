"""A small network and how it is trained, for estimates and the ranks that they are held against."""

from __future__ import annotations

import wholestep as ws

PARAMETERS = 12 * 64 + 64 + 64 * 4 + 4
LOSS = 4  # bytes of a float32
ABOUT = {
    "inputs": ws.Spec(("batch", 12)),
    "targets": ws.Spec(("batch",), "int32"),
    "loss": "cross_entropy",
    "optimizer": "adam",
    "batch_size": 64,
    "threads": 1,
}


def network(split: bool = False) -> ws.nn.Module:
    columns, rows = ("columns", "rows") if split else (None, None)
    return ws.nn.Sequential(ws.nn.Linear(12, 64, split=columns), ws.nn.ReLU(), ws.nn.Linear(64, 4, split=rows))
