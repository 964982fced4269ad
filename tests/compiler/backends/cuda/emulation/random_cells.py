"""Random cells of scans: products of the carried values, gates sliced out of them, one or two carries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws

STEPS, RESULTS = 4, 5
AFTER: tuple[Callable[[ws.Tensor], ws.Tensor], ...] = (ws.tanh, ws.sigmoid, lambda v: v * 0.5)
JOIN: tuple[Callable[[ws.Tensor, ws.Tensor], ws.Tensor], ...] = (lambda a, b: a + b, lambda a, b: a * b)


class Cell(ws.nn.Module):
    """A network around a cell that a seed decides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.seed, self.units, self.carries = seed, rng.choice([8, 12, 16]), rng.choice([1, 2])
        self.gates = [rng.choice([1, 2, 3]) for _ in range(rng.choice([1, 2]))]
        self.products = ws.nn.ModuleList([ws.nn.Linear(self.units, q * self.units) for q in self.gates])
        self.out = ws.nn.Linear(self.units, RESULTS)

    def after(self, held: list[ws.Tensor], x: ws.Tensor) -> tuple[list[ws.Tensor], ws.Tensor]:
        """What is carried on, and what a step gives."""
        rng, made = random.Random(self.seed + 1), [*held, x]
        for product, gates in zip(self.products, self.gates, strict=True):
            wide = product(rng.choice([*held, made[-1]]))
            for q in range(gates):
                gate = wide[:, q * self.units : (q + 1) * self.units]
                made.append(rng.choice(AFTER)(rng.choice(JOIN)(gate, rng.choice(made))))
        carried = [ws.tanh(made[-1 - i] + rng.choice(made) * 0.3) for i in range(self.carries)]
        return carried, carried[0] * rng.choice(made)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        def step(held: Any, x: ws.Tensor) -> tuple[Any, ws.Tensor]:
            carried, result = self.after(list(held) if self.carries > 1 else [held], x)
            return (tuple(carried) if self.carries > 1 else carried[0]), result

        rows = x.permute(1, 0, 2)
        first = rows[0] * 0.0 + 0.1
        return self.out(ws.scan(step, (first, first) if self.carries > 1 else first, rows)[1].permute(1, 0, 2))


def session_of(seed: int, device: str) -> ws.Session:
    g, cell = ws.Graph(), Cell(seed)
    x, y = g.input("x", ("batch", STEPS, cell.units)), g.input("y", ("batch", STEPS, RESULTS))
    g.set_outputs({"loss": ((cell(x) - y) ** 2).mean()})
    given = {"optimizer": ws.SGD(lr=0.1, momentum=0.9), "batch_size": 9, "seed": 3}
    return ws.build_session(g, device=device, options=ws.CompileOptions(verify=False, egraph=False), **given)


def batches(seed: int) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Two whole ones and a smaller one."""
    rng, units = np.random.default_rng(seed), Cell(seed).units
    sizes = {"x": units, "y": RESULTS}
    return [{n: rng.standard_normal((rows, STEPS, e), np.float32) for n, e in sizes.items()} for rows in (9, 9, 4)]
