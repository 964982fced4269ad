"""Small models and data that the session tests share."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws

Array = np.ndarray[Any, Any]


def mlp(*, inputs: int = 20, hidden: int = 24, classes: int = 5, batch: object = "batch") -> ws.Graph:
    """A classifier whose outputs are the loss and the logits."""
    g = ws.Graph()
    x = g.input("x", (batch, inputs))
    labels = g.input("labels", (batch,), dtype="int32")
    w1, b1 = g.parameter("w1", (inputs, hidden)), g.parameter("b1", (hidden,))
    w2, b2 = g.parameter("w2", (hidden, classes)), g.parameter("b2", (classes,))
    logits = ws.relu(x @ w1 + b1) @ w2 + b2
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels), "logits": logits})
    return g


def data(rows: int, *, inputs: int = 20, classes: int = 5, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, inputs)).astype(np.float32),
        "labels": rng.integers(0, classes, rows).astype(np.int32),
    }


def trained(graph: ws.Graph, steps: int = 5, rows: int = 13, **arguments: Any) -> tuple[list[float], dict[str, Array]]:
    """Losses and final numbers of a few steps on random batches."""
    session = ws.build_session(graph, **{"optimizer": ws.Adam(lr=1e-2), "batch_size": 16, **arguments})
    losses = [float(session.step(**data(rows, seed=i))) for i in range(steps)]
    return losses, session.state_dict()


def assert_same_bits(a: dict[str, Array], b: dict[str, Array]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].tobytes() == b[name].tobytes(), f"{name} differs"
