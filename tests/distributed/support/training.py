"""Runs that workers make together, by name.  As a script for `wholestep launch` it trains those that it is told of, and
rank 0 prints what became of each: a fingerprint of the weights and the numbers of the last epoch."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws
from tests.metrics.groups import OF_NUMBERS
from tests.support.compilers import quick

Numbers = dict[str, Any]


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def digits(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """Dropout, metrics, validation, and a last batch of 37 rows."""
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 32), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(32, 10))
    data = (x[:700], y[:700])
    return model, fit(model, data, loss="cross_entropy", metrics=["accuracy"], validation=0.1, batch_size=60, **where)


def pixels(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """Of MNIST's shape, clipped, with weights of rows and a schedule."""
    x, y = drawn(260, 784), np.arange(260) % 10
    model = ws.nn.Sequential(ws.nn.Linear(784, 24), ws.nn.ReLU(), ws.nn.Linear(24, 10))
    data = (x, y, np.abs(drawn(260, seed=1)))
    schedule = ws.schedules.cosine(warmup=2)
    return model, fit(model, data, loss="cross_entropy", batch_size=64, clip_norm=0.5, schedule=schedule, **where)


def batch_norm(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    model = ws.nn.Sequential(
        ws.nn.Conv2d(1, 4, 3), ws.nn.BatchNorm2d(4), ws.nn.ReLU(), ws.nn.Flatten(), ws.nn.Linear(144, 3)
    )
    return model, fit(model, (drawn(50, 1, 8, 8), np.arange(50) % 3), loss="cross_entropy", batch_size=16, **where)


class Reader(ws.nn.Module):
    """The last output of an LSTM, read."""

    def __init__(self) -> None:
        self.lstm, self.head = ws.nn.LSTM(3, 8, batch_first=True), ws.nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.head(self.lstm(x)[0][:, -1])


def lstm(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    model = Reader()
    return model, fit(model, (drawn(40, 5, 3), drawn(40, 2, seed=1)), loss="mse", batch_size=12, **where)


def gpt(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """Targets that are left out count for nobody."""
    model = ws.models.GPT2(layers=1, width=16, heads=2, vocabulary=19, context=8, dropout=0.1)
    tokens = np.random.default_rng(2).integers(0, 19, (24, 9))
    targets = np.where(tokens[:, 1:] == 3, -100, tokens[:, 1:])

    def loss(output: Any, target: Any) -> Any:
        return ws.losses.cross_entropy(output, target, ignore_index=-100)

    return model, fit(model, (tokens[:, :-1], targets), loss=loss, batch_size=8, **where)


def accumulate(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    model = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.Tanh(), ws.nn.Linear(8, 1))
    return model, fit(model, (drawn(55, 6), drawn(55, 1, seed=1)), loss="mse", batch_size=8, accumulate=3, **where)


def classes(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """All metrics of classes, which count rows by their weights; some of them keep rows."""
    model, rows = ws.nn.Sequential(ws.nn.Linear(6, 3)), 29
    data = (drawn(rows, 6), np.random.default_rng(1).integers(0, 3, rows), np.abs(drawn(rows, seed=2)))
    from tests.metrics.groups import (
        OF_IMAGES,
        OF_NUMBERS,
    )  # imported here, and where numbers are: ranks of other cases start faster
    from wholestep.metrics.table import METRICS

    metrics = [
        ws.metrics.TopKAccuracy(k=2),
        *(n for n in METRICS if n not in ("top_k_accuracy", *OF_NUMBERS, *OF_IMAGES)),
    ]
    return model, fit(model, data, loss="cross_entropy", metrics=metrics, validation=0.4, batch_size=8, **where)


def median_error(predictions: Any, targets: Any) -> float:
    """By NumPy, of all rows."""
    return float(np.median(np.abs(predictions - targets)))


def numbers(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """All metrics of numbers, and a function of all rows; micro-batches."""
    model, data = ws.nn.Sequential(ws.nn.Linear(6, 1)), (drawn(29, 6), drawn(29, 1, seed=1))
    metrics = [*OF_NUMBERS, ws.metrics.OverEpoch(median_error)]
    return model, fit(model, data, loss="mse", metrics=metrics, validation=0.4, batch_size=4, accumulate=2, **where)


class Items:
    """A data set that is read row by row."""

    def __len__(self) -> int:
        return 45

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return drawn(45, 6)[row], drawn(45, 1, seed=1)[row]


def read_rows(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    """With noise, which belongs to a row; micro-batches too."""
    model = ws.nn.Sequential(ws.nn.Linear(6, 4), ws.nn.Tanh(), ws.nn.Linear(4, 1))
    data = ws.DataLoader(Items(), batch_size=14, shuffle=True, seed=4, transform=ws.data.Noise(0.1))
    return model, fit(model, data, loss="mse", accumulate=2, **where)


class Tired(ws.Callback):
    """Ends a run by itself, in one of the workers."""

    every = 2

    def on_slice(self, steps: int, loss: float) -> None:
        if self.run is not None and ws.Workers().rank == 1 and self.run.position.epoch == 1:
            self.run.stop("worker 1 is tired")


def stopped(**where: Any) -> tuple[ws.nn.Module, ws.TrainHistory]:
    x, y = ws.datasets.digits()
    model = ws.nn.Sequential(ws.nn.Linear(64, 10))
    callbacks = [Tired(), ws.TimeBudget(600.0)]
    return model, fit(model, (x, y), loss="cross_entropy", batch_size=100, epochs=50, callbacks=callbacks, **where)


CASES: dict[str, Callable[..., tuple[ws.nn.Module, ws.TrainHistory]]] = {
    made.__name__: made for made in (digits, pixels, batch_norm, lstm, gpt, accumulate, read_rows, classes, numbers)
}


def fit(model: ws.nn.Module, data: Any, **settings: Any) -> ws.TrainHistory:
    common = {"epochs": 2, "seed": 3, "progress": False, "threads": 1, "options": quick()}
    return ws.fit(model, data, **{**common, **settings})


def fingerprint(model: ws.nn.Module) -> str:
    arrays = sorted(model.state_dict().items())
    return hashlib.sha256(b"".join(name.encode() + np.asarray(a).tobytes() for name, a in arrays)).hexdigest()[:16]


def trained(case: str, **where: Any) -> Numbers:
    """What became of a run."""
    model, history = (stopped if case == "stopped" else CASES[case])(**where)
    return {"weights": fingerprint(model), "logs": dict(history.epochs[-1].logs), "stopped": history.stopped_by}


if __name__ == "__main__":
    workers = ws.Workers(model=int(sys.argv[2])) if sys.argv[2:] else ws.Workers()
    found = {case: trained(case, workers=workers) for case in sys.argv[1].split(",")}
    sys.stdout.write(json.dumps(found) + "\n")
