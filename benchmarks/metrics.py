"""The cost of metrics inside the step: the MLP's step with each metric, compared with the step without."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

STEPS, ROUNDS, ROWS, CAPACITY = 20, 30, 64, 40_000  # CAPACITY: the number of rows that the rounds write


def run(threads: int) -> dict[str, float]:
    """The slowdown of a step in percent, per metric: medians of ratios within interleaved rounds."""
    import numpy as np

    import wholestep as ws

    metrics = {
        name: ws.metrics.get(name).with_capacity(CAPACITY) for name in ws.metrics.METRICS if name not in _NUMBERS
    }
    sessions = {"none": _session(ws, None, threads), **{n: _session(ws, m, threads) for n, m in metrics.items()}}
    rng = np.random.default_rng(0)
    batch = {
        "x": rng.random((ROWS, 784), dtype=np.float32),
        "labels": rng.integers(0, 10, ROWS).astype(np.int32),
    }
    rounds = [{name: _seconds(session, batch) for name, session in sessions.items()} for _ in range(ROUNDS + 1)][1:]
    return {f"{name}_percent": 100 * (median(r[name] / r["none"] for r in rounds) - 1) for name in metrics}


_NUMBERS = ("mse", "rmse", "mae", "r2")  # regression metrics, which do not apply to a classifier


def _session(ws: Any, metric: Any, threads: int) -> Any:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 784)), g.input("labels", ("batch",), "int32")
    hidden = ws.relu(x @ g.parameter("w1", (784, 128)) + g.parameter("b1", (128,)))
    logits = hidden @ g.parameter("w2", (128, 10)) + g.parameter("b2", (10,))
    loss = ws.losses.cross_entropy(logits, labels)
    if metric is not None:
        metric.record(g, loss if metric.takes_loss else logits, labels)
    g.set_outputs([loss, logits])
    return ws.build_session(g, optimizer=ws.Adam(), batch_size=ROWS, threads=threads)


def _seconds(session: Any, batch: dict[str, Any]) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        session.step(**batch)
    session.read_loss()
    return time.perf_counter() - began
