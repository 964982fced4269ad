"""The cost of values of single rows and of private training: a step with each of them, compared with the plain step.

Figures are medians, over interleaved rounds, of the ratio to the plain step of the same round.  Opacus, where it is
installed, is measured in the same way against torch's own eager step; it has no hooks for GPT-2's weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

STEPS, NOISE, CLIP = 10, 1.0, 1.0
CASES = {"mlp": 128, "lenet": 64, "gpt": 16}  # rows of a batch
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "row losses": {"per_row": ["loss"]},
    "row norms": {"per_row": ["loss", "gradient_norm"]},
    "private": {},
}
Step = Callable[[], object]


def run(cases: list[str], rounds: int, threads: int) -> dict[str, dict[str, float]]:
    """The ratios to the plain step, by case and variant."""
    return {case: _ratios(case, rounds, threads) for case in cases}


def show(result: Mapping[str, Mapping[str, float]]) -> None:
    """Print a table; the limits are in docs/benchmarks.md."""
    columns = ["row losses", "row norms", "private", "Opacus"]
    print("time of a step, divided by the plain step's")
    print("case   " + "".join(f"{name:>12}" for name in columns))
    for case, ratios in result.items():
        print(f"{case:<7}" + "".join(f"{f'{ratios[c]:.2f}x' if c in ratios else '-':>12}" for c in columns))


def _ratios(case: str, rounds: int, threads: int) -> dict[str, float]:
    steps = {name: _ours(case, name, threads) for name in VARIANTS}
    if find_spec("opacus") is not None and case != "gpt":
        steps |= {"torch": _torch(case, threads, private=False), "Opacus": _torch(case, threads, private=True)}
    taken = [{name: _seconds(step) for name, step in steps.items()} for _ in range(rounds + 1)][1:]
    base = {"Opacus": "torch"}
    return {n: median(t[n] / t[base.get(n, "plain")] for t in taken) for n in steps if n not in ("plain", "torch")}


def _seconds(step: Step) -> float:
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    return time.perf_counter() - began


def _batch(case: str) -> tuple[Any, Any]:
    rng, rows = np.random.default_rng(0), CASES[case]
    if case == "gpt":
        tokens = rng.integers(0, 65, (rows, 65)).astype(np.int32)
        return tokens[:, :-1].copy(), tokens[:, 1:].copy()
    shape = (rows, 784) if case == "mlp" else (rows, 1, 28, 28)
    return rng.random(shape, dtype=np.float32), rng.integers(0, 10, rows).astype(np.int32)


def _ours(case: str, variant: str, threads: int) -> Step:
    import wholestep as ws

    x, y = _batch(case)
    models: dict[str, Callable[[], ws.nn.Module]] = {
        "mlp": lambda: ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10)),
        "lenet": ws.models.lenet5,
        "gpt": lambda: ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=65, context=64),
    }
    session = ws.build_session(
        models[case](),
        inputs=ws.Spec(("batch", *x.shape[1:]), str(x.dtype)),
        targets=ws.Spec(("batch", *y.shape[1:]), str(y.dtype)),
        loss="cross_entropy",
        optimizer=ws.Adam(),
        batch_size=CASES[case],
        threads=threads,
        privacy=ws.Privacy(noise=NOISE, clip=CLIP) if variant == "private" else None,
        **VARIANTS[variant],
    )
    return lambda: float(session.step(x=x, labels=y))


def _torch(case: str, threads: int, *, private: bool) -> Step:
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    x, y = (torch.from_numpy(a) for a in _batch(case))
    dense: list[nn.Module] = [nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)]
    pooled = [nn.ReLU(), nn.MaxPool2d(2)]
    images: list[nn.Module] = [nn.Conv2d(1, 6, 5, padding=2), *pooled, nn.Conv2d(6, 16, 5), *pooled, nn.Flatten()]
    images += [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    model: Any = nn.Sequential(*(dense if case == "mlp" else images))
    optimizer: Any = torch.optim.Adam(model.parameters())
    if private:
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        model = GradSampleModule(model)
        optimizer = DPOptimizer(optimizer, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=len(x))

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y.long())
        loss.backward()
        optimizer.step()
        return float(loss)

    return step
