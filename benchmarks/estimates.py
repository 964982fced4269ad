"""Compares the time of a step that `ws.estimate` predicts with the measured time, on every cell of the cases."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

SECONDS = 1.0  # of measuring per cell, after a warm-up


def run(threads: int) -> dict[str, Any]:
    """Milliseconds of each cell, and the median and largest error of the predictions in percent."""
    from benchmarks.cases import CASES
    from benchmarks.frameworks.with_wholestep import WholestepTrainer
    from wholestep.session.inspect.estimate import step_seconds

    rows = {}
    for case in CASES.values():
        for cell in case.cells:
            trainer = WholestepTrainer(case, cell, threads)
            session = trainer.session
            predicted = step_seconds(session.plan, session.target, threads)
            measured = _measure(trainer, time.thread_time if threads == 1 else time.perf_counter)
            error = 100 * (predicted / measured - 1)
            rows[f"{case.name} {cell.name}"] = {
                "predicted_ms": 1e3 * predicted,
                "measured_ms": 1e3 * measured,
                "error_percent": error,
            }
            session.close()
    errors = [abs(row["error_percent"]) for row in rows.values()]
    return {"cells": rows, "median_error_percent": median(errors), "largest_error_percent": max(errors)}


def _measure(trainer: Any, clock: Callable[[], float]) -> float:
    """The median time of a step; with one thread its processor time, which other programs hardly change."""
    trainer.step(0)
    trainer.loss()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < SECONDS or len(times) < 5:
        began = clock()
        trainer.step(len(times))
        trainer.loss()
        times.append(clock() - began)
    return median(times)


def show(result: dict[str, Any]) -> None:
    """A line per cell."""
    print(f"{'':<20}{'predicted':>12}{'measured':>12}{'error':>9}")
    for name, row in result["cells"].items():
        predicted, measured = f"{row['predicted_ms']:.3f} ms", f"{row['measured_ms']:.3f} ms"
        print(f"{name:<20}{predicted:>12}{measured:>12}{row['error_percent']:>8.0f}%")
    print(f"median error {result['median_error_percent']:.0f} %, largest {result['largest_error_percent']:.0f} %")
