"""`python -m benchmarks adamw`: AdamW on ten million parameters, separately and inside a training step.

Alone it is a case like the others, with given gradients.  Inside a step its cost is the difference between the step and
a step that stores the same gradients and updates nothing, of the same network in the same process, round by round.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case, Cell
from benchmarks.cases import INSIDE
from benchmarks.cases.optimizers import UPDATES, gradients, weights
from benchmarks.contender import Contender
from benchmarks.frameworks import OURS
from benchmarks.harness import (
    Measurements,
    check_same_work,
    log_line,
    microseconds,
    prepare,
    rotated,
    run,
    summary,
)

PEERS = ("torch_fused", "torch_foreach", "torch_compile", "optax")
FUSED = "torch_eager"  # the step of PyTorch with its fused optimizer
ASKED_INSIDE = 1.3
ROUNDS_INSIDE = 3  # per requested round
CASE = Case(
    name="adamw",
    cells=(Cell("adamw", 1, "adamw"),),
    weights=lambda: {"w0": weights(UPDATES["adamw"])[0]},
    batches=lambda cell: [{"d0": gradients(UPDATES["adamw"])[0]}],
    models={},  # `benchmarks.update_worker` implements it for every framework
)


def run_all(rounds: int, threads: int, peers: tuple[str, ...] = PEERS) -> dict[str, Any]:
    """Measures the case, and its update inside the steps of two networks."""
    alone = run(CASE, (OURS, *peers), rounds, threads, worker="benchmarks.update_worker")
    inside = {name: update_cost(run_inside(case, ROUNDS_INSIDE * rounds, threads)) for name, case in INSIDE.items()}
    return {**summary(alone), "inside": inside}


def run_inside(case: Case, rounds: int, threads: int) -> Measurements:
    """Alternates steps with and without the update: their difference is smaller than the machine's drift."""
    result = Measurements(case.name)
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders = [Contender(name, case.name, threads, Path(cache)) for name in (OURS, FUSED)]
        for contender in contenders:
            stack.callback(contender.close)
        prepared = {contender.name: prepare(contender, case, result) for contender in contenders}
        check_same_work(case, contenders, prepared)
        for number in range(rounds):
            log_line(f"{case.name}: round {number + 1} of {rounds}")
            for contender in rotated(contenders, number):
                times = result.rounds_us.setdefault(contender.name, {})
                for cell in case.cells if number % 2 else reversed(case.cells):
                    steps = max(2, prepared[contender.name][cell.name].steps // 2)
                    times.setdefault(cell.name, []).append(microseconds(contender, cell.name, steps))
    return result


def update_cost(measured: Measurements) -> dict[str, Any]:
    """Microseconds that the update adds to a step, ours and torch's, and the ratio of torch's to ours.

    Differences are taken within rounds and their medians divided: a difference may be near zero in a single round.
    """
    added = {
        name: median(w - n for w, n in zip(cells["adamw"], cells["none"], strict=True))
        for name, cells in measured.rounds_us.items()
    }
    return {
        "step_us": {name: round(median(cells["adamw"]), 1) for name, cells in measured.rounds_us.items()},
        "update_us": {name: round(us, 1) for name, us in added.items()},
        "ratio": round(added[FUSED] / added[OURS], 3) if added[OURS] > 0 else None,  # None: ours is below the noise
        "target": ASKED_INSIDE,
    }
