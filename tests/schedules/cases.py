"""One row per schedule: how it is made, torch's form of it where there is one, and for how long they agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler as lr

from wholestep import schedules as S
from wholestep.schedules import Schedule

RATE = 0.1
Oracle = Callable[[Any], Any]


@dataclass(frozen=True)
class Case:
    schedule: Schedule
    oracle: Oracle | None = None
    steps: int = 300


def _sequential(o: Any) -> Any:
    first, second = lr.ConstantLR(o, 1.0, 1), lr.CosineAnnealingLR(o, 90)
    return lr.SequentialLR(o, [first, second], [10])


CASES = {
    "constant": Case(S.Constant(RATE), lambda o: lr.LambdaLR(o, lambda n: 1.0)),
    "linear": Case(S.Linear(RATE, 0.02, 70), lambda o: lr.LinearLR(o, 1.0, 0.2, 70)),
    "polynomial": Case(S.Polynomial(RATE, 120, 2.5), lambda o: lr.PolynomialLR(o, 120, 2.5)),
    "cosine": Case(S.Cosine(RATE, 200, 1e-3), lambda o: lr.CosineAnnealingLR(o, 200, 1e-3), 201),
    "exponential": Case(S.Exponential(RATE, 0.97), lambda o: lr.ExponentialLR(o, 0.97)),
    "step": Case(S.StepDecay(RATE, 30, 0.5), lambda o: lr.StepLR(o, 30, 0.5)),
    "multi_step": Case(S.MultiStep(RATE, (20, 50, 51), 0.3), lambda o: lr.MultiStepLR(o, [20, 50, 51], 0.3)),
    "one_cycle": Case(S.OneCycle(RATE, 300), lambda o: lr.OneCycleLR(o, RATE, 300, cycle_momentum=False), 299),
    "one_cycle_three": Case(
        S.OneCycle(RATE, 200, 0.25, 10, 1e3, "linear", True),
        lambda o: lr.OneCycleLR(o, RATE, 200, None, None, 0.25, "linear", False, 0, 0, 10, 1e3, True),
        199,
    ),
    "sgdr": Case(S.WarmRestarts(RATE, 7), lambda o: lr.CosineAnnealingWarmRestarts(o, 7)),
    "sgdr_growing": Case(S.SGDR(RATE, 10, 2, 1e-3), lambda o: lr.CosineAnnealingWarmRestarts(o, 10, 2, 1e-3)),
    "sequence": Case(S.Sequence((S.Constant(RATE), S.Cosine(RATE, 90)), (10,)), _sequential, 100),
    # Formulas that torch has only as user-defined functions.
    "inverse_sqrt": Case(S.InverseSqrt(RATE, 40), lambda o: lr.LambdaLR(o, lambda n: (40.0 / (n + 40.0)) ** 0.5)),
    "warmup": Case(
        S.Warmup(S.Exponential(RATE, 0.9), 25),
        lambda o: lr.LambdaLR(o, lambda n: (n + 1) / 25 if n < 25 else 0.9 ** (n - 25)),
    ),
    "warmup_stable_decay": Case(
        S.WarmupStableDecay(RATE, 20, 50, 30),
        lambda o: lr.LambdaLR(o, lambda n: (n + 1) / 20 if n < 20 else 1 - min(max(n - 70, 0) / 30, 1)),
    ),
    "warmup_stable_sqrt": Case(
        S.WarmupStableDecay(RATE, 0, 10, 90, 0.01, "sqrt"),
        lambda o: lr.LambdaLR(o, lambda n: 0.1 + 0.9 * (1 - min(max(n - 10, 0) / 90, 1) ** 0.5)),
    ),
    "cyclic": Case(
        S.Cyclic(RATE, 0.01, 20, 30),
        lambda o: lr.CyclicLR(o, 0.01, RATE, 20, 30, cycle_momentum=False),
    ),
    "cyclic_halved": Case(
        S.Cyclic(RATE, 0.01, 7, None, "triangular2"),
        lambda o: lr.CyclicLR(o, 0.01, RATE, 7, mode="triangular2", cycle_momentum=False),
    ),
    "cyclic_shrinking": Case(
        S.Cyclic(RATE, 0.01, 7, 4, "exp_range", 0.99),
        lambda o: lr.CyclicLR(o, 0.01, RATE, 7, 4, "exp_range", 0.99, cycle_momentum=False),
    ),
    "chained": Case(
        S.Chained((S.Exponential(RATE, 0.99), S.StepDecay(RATE, 30, 0.5), S.Linear(0.01, RATE, 20)), RATE),
        lambda o: lr.ChainedScheduler(
            [lr.ExponentialLR(o, 0.99), lr.StepLR(o, 30, 0.5), lr.LinearLR(o, 0.1, total_iters=20)]
        ),
    ),
    "table": Case(
        S.Table(RATE, (1.0, 0.5, 0.7), (11, 30)),
        lambda o: lr.LambdaLR(o, lambda n: 1.0 if n < 11 else 0.5 if n < 30 else 0.7),
    ),
    "lambda": Case(S.Lambda(lambda n: 0.97**n, RATE), lambda o: lr.LambdaLR(o, lambda n: 0.97**n)),
    "plateau": Case(S.ReduceOnPlateau(RATE, 0.5, 3)),
}


def oracle_values(make: Oracle, steps: int) -> list[float]:
    """The lr of each of torch's first updates."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler, values = make(optimizer), []
    for _ in range(steps):
        values.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return values
