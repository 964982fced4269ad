"""Eight replicas of the MNIST perceptron compared with one: the time of a step of all eight, as a multiple of one's."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

COUNT, ROWS, ROUNDS = 8, 4096, 15


def run(threads: int) -> dict[str, float]:
    """The multiples for batches of 32 and 8 rows: medians of ratios within interleaved rounds."""
    import numpy as np

    rng = np.random.default_rng(0)
    data = {"x": rng.random((ROWS, 784), dtype=np.float32), "labels": rng.integers(0, 10, ROWS)}
    result = {}
    for batch in (32, 8):
        one = _session(batch, threads, 0)
        replicas = [_session(batch, 1, seed) for seed in range(COUNT)]
        with ThreadPoolExecutor(threads) as pool:
            ratios = [_together(pool, replicas, data) / _together(pool, [one], data) for _ in range(ROUNDS)]
        result[f"batch_{batch}"] = median(ratios[1:])
    return result


def _session(batch: int, threads: int, seed: int) -> Any:
    import wholestep as ws

    model = ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))
    shapes = {"inputs": ws.Spec(("batch", 784)), "targets": ws.Spec(("batch",), "int64")}
    optimizer = ws.Adam(lr=1e-3)
    return ws.build_session(
        model, **shapes, loss="cross_entropy", optimizer=optimizer, batch_size=batch, threads=threads, seed=seed
    )


def _together(pool: ThreadPoolExecutor, sessions: list[Any], data: dict[str, Any]) -> float:
    began = time.perf_counter()
    list(pool.map(lambda session: session.run(**data), sessions))
    return time.perf_counter() - began


def show(result: dict[str, float]) -> None:
    """A line per batch size."""
    for name, ratio in result.items():
        print(f"{COUNT} replicas, {name.replace('_', ' ')}: {ratio:.2f} times one")
