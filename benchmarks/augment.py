"""The cost of augmentations inside the step: a step of LeNet-5 with each augmentation, compared with the plain step.

Figures are medians, over interleaved rounds, of the ratio to the plain step of the same round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import numpy as np

ROWS, STEPS = 64, 10
Step = Callable[[], object]


def run(rounds: int, threads: int) -> dict[str, float]:
    """The ratio to the plain step, by augmentation."""
    steps = {name: _step(augment, threads) for name, augment in _variants().items()}
    taken = [{name: _seconds(step) for name, step in steps.items()} for _ in range(rounds + 1)][1:]
    return {name: median(t[name] / t["plain"] for t in taken) for name in steps if name != "plain"}


def show(result: Mapping[str, float]) -> None:
    """Print a table; the limit is 1.10, for bilinear interpolation 1.30."""
    print("time of a step of LeNet-5, batch 64, divided by the plain step's")
    for name, ratio in result.items():
        print(f"{name:<28}{ratio:>6.2f}x")


def _variants() -> dict[str, Any]:
    import wholestep as ws

    return {
        "plain": None,
        "RandomFlip": [ws.data.RandomFlip()],
        "RandomErasing": [ws.data.RandomErasing()],
        "Cutout": [ws.data.Cutout(8)],
        "RandomAffine": [ws.data.RandomAffine(15, 0.1, (0.9, 1.1), 5)],
        "RandomAffine, bilinear": [ws.data.RandomAffine(15, 0.1, (0.9, 1.1), 5, mode="bilinear")],
        "ColorJitter": [ws.data.ColorJitter(0.2, 0.2)],
        "MixUp": [ws.data.MixUp(0.2)],
        "CutMix": [ws.data.CutMix()],
        "flip, erasing, mixup": [ws.data.RandomFlip(), ws.data.RandomErasing(), ws.data.MixUp(0.2)],
    }


def _step(augment: Any, threads: int) -> Step:
    import wholestep as ws
    from wholestep.data.augment import Augmentations

    rng = np.random.default_rng(0)
    batch = {
        "x": rng.random((ROWS, 1, 28, 28), dtype=np.float32),
        "labels": rng.integers(0, 10, ROWS).astype(np.int32),
        "row_numbers": np.arange(ROWS, dtype=np.int32),
    }
    if augment is None:
        del batch["row_numbers"]
    specs = {name: ws.Spec(("batch", *a.shape[1:]), str(a.dtype)) for name, a in batch.items()}
    labels = specs.pop("labels")
    session = ws.build_session(
        ws.models.lenet5(),
        inputs=specs if augment else specs["x"],
        targets=labels,
        loss="cross_entropy",
        augment=None if augment is None else Augmentations.of(augment, 0),
        optimizer=ws.Adam(),
        batch_size=ROWS,
        threads=threads,
    )
    return lambda: float(session.step(batch))


def _seconds(step: Step) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - began
