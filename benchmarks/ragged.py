"""Training on packed sequences compared with padding to the longest: elements per second, padding not counted.

The lengths are those of the lines of "tiny Shakespeare", next-token prediction in each line; both arms train the same
model by the same optimizer on as many positions per step.  The figure is the median, over interleaved rounds, of the
ratio of both throughputs in the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

LINES = 4000  # drawn from the distribution
VOCABULARY, CAPACITY, POSITIONS, BATCHES = 65, 128, 2048, 8
# Lines of "tiny Shakespeare" with 2 to 64 characters, the end of the line included; empty lines predict nothing.
COUNTS = (
    0, 2, 28, 84, 157, 683, 892, 1099, 1353, 819, 645, 149, 262, 457, 820, 577, 422, 368, 250, 213, 228, 210, 201, 219,
    234, 212, 198, 194, 172, 180, 171, 234, 236, 377, 478, 659, 890, 1061, 1285, 1593, 1631, 1673, 1644, 1603, 1390,
    1310, 1138, 971, 901, 803, 627, 415, 129, 66, 43, 29, 32, 20, 13, 10, 10, 3, 4,
)  # fmt: skip
MODELS = ("gpt", "lstm")
Step = Callable[[], int]


def run(rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """For each model the ratio of throughputs, the elements per second of both arms, and their padding."""
    return {model: _compare(model, rounds, threads) for model in MODELS}


def show(result: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table."""
    print(f"{'model':<7}{'packed':>10}{'padded':>10}{'ratio':>8}   padding of a batch")
    for model, r in result.items():
        speeds = "".join(f"{f'{r[arm] / 1e3:.1f} k/s':>10}" for arm in ("packed", "padded"))
        shares = f"{100 * r['packed_padding']:.1f} % beside {100 * r['padded_padding']:.1f} %"
        ratio = f"{r['ratio']:.2f}x"
        print(f"{model:<7}{speeds}{ratio:>8}   {shares}")


def sequences() -> list[Any]:
    """Random tokens of the lengths of lines."""
    rng = np.random.default_rng(0)
    lengths = rng.choice(np.arange(2, 2 + len(COUNTS)), LINES, p=np.array(COUNTS) / sum(COUNTS))
    return [rng.integers(0, VOCABULARY, n).astype(np.int32) for n in lengths]


def _compare(model: str, rounds: int, threads: int) -> dict[str, float]:
    tables = {"packed": _packed(), "padded": _padded()}
    steps = {arm: _steps(model, table, threads) for arm, table in tables.items()}
    taken = [{arm: _speed(step) for arm, step in steps.items()} for _ in range(rounds + 1)][1:]
    padding = {f"{arm}_padding": 1.0 - float((table["sample_weight"] > 0).mean()) for arm, table in tables.items()}
    speeds = {arm: median(t[arm] for t in taken) for arm in steps}
    return {"ratio": median(t["packed"] / t["padded"] for t in taken), **speeds, **padding}


def _packed() -> dict[str, Any]:
    import wholestep as ws

    return ws.data.Ragged(sequences(), "next", capacity=CAPACITY).table.columns


def _padded() -> dict[str, Any]:
    lines = sequences()
    longest = max(map(len, lines)) - 1
    x, y = np.zeros((2, len(lines), longest), np.int32)
    weight = np.zeros((len(lines), longest), np.float32)
    for i, line in enumerate(lines):
        n = len(line) - 1
        x[i, :n], y[i, :n], weight[i, :n] = line[:-1], line[1:], 1.0
    return {"x": x, "labels": y, "sample_weight": weight}


def _steps(model: str, table: Mapping[str, Any], threads: int) -> list[Step]:
    """Training steps on different batches; each returns the number of its targets."""
    import wholestep as ws

    rows = POSITIONS // table["x"].shape[1]
    specs = {name: ws.Spec(("batch", *a.shape[1:]), str(a.dtype)) for name, a in table.items()}
    targets = {name: specs.pop(name) for name in ("labels", "sample_weight")}
    net = (
        ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=VOCABULARY, context=CAPACITY)
        if model == "gpt"
        else ws.models.lstm_lm(VOCABULARY, width=256, layers=2)
    )
    session = ws.build_session(
        net,
        inputs=specs if len(specs) > 1 else specs["x"],
        targets=targets,
        loss="cross_entropy",
        optimizer=ws.AdamW(),
        batch_size=rows,
        threads=threads,
    )
    order = np.random.default_rng(1).permutation(len(table["x"]))

    def step(chosen: Any) -> Step:
        batch = {name: np.ascontiguousarray(a[chosen]) for name, a in table.items()}
        count = int((batch["sample_weight"] > 0).sum())
        return lambda: (float(session.step(batch)), count)[1]

    return [step(order[i * rows : (i + 1) * rows]) for i in range(BATCHES)]


def _speed(steps: list[Step]) -> float:
    """Elements per second over one pass."""
    began = time.perf_counter()
    count = sum(step() for step in steps)
    return count / (time.perf_counter() - began)
