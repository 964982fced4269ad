"""The process of one contender: reads one JSON request per line, answers with one JSON line, sleeps in between.

`{"do": "start", "cell": c}`               -> `{"first_step_s", "losses", "peak_bytes", "tensor_bytes"}`
`{"do": "measure", "cell": c, "steps": n}` -> `{"seconds", "loss"}`
A failure is answered with `{"error": traceback}`. The end of standard input ends the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TextIO

from benchmarks.case import Case, Trainer
from benchmarks.cases import CASES, INSIDE
from benchmarks.cases.zoo import ZOO
from benchmarks.frameworks import MODULES

COMPARED_STEPS = 20
# Untimed steps at the start of a measurement: they wake the pool and warm the caches.
LEAD_IN_STEPS = 5


class Worker:
    """Trainers of one contender, one per cell, created on request."""

    def __init__(self, contender: str, case: Case, threads: int) -> None:
        self.contender, self.case, self.threads = contender, case, threads
        self.framework = importlib.import_module(f"benchmarks.frameworks.{MODULES[contender]}")
        self.trainers: dict[str, Trainer] = {}

    def start(self, cell: str) -> dict[str, Any]:
        """Builds the cell and times its first step, from the network's description to a readable loss."""
        began = time.perf_counter()
        trainer = self.framework.start(self.contender, self.case, self.case.cell(cell), self.threads)
        losses = [stepped_loss(trainer, 0)]
        first_step_s = time.perf_counter() - began
        losses += [stepped_loss(trainer, index) for index in range(1, COMPARED_STEPS)]
        self.trainers[cell] = trainer
        return {
            "first_step_s": first_step_s,
            "losses": losses,
            "peak_bytes": getattr(trainer, "peak_bytes", None),
            "tensor_bytes": trainer.tensor_bytes() if hasattr(trainer, "tensor_bytes") else None,
        }

    def measure(self, cell: str, steps: int) -> dict[str, Any]:
        """Seconds of `steps` steps with one wait at the end."""
        trainer = self.trainers[cell]
        for index in range(LEAD_IN_STEPS):
            trainer.step(index)
        trainer.loss()
        began = time.perf_counter()
        for index in range(steps):
            trainer.step(index)
        loss = trainer.loss()
        return {"seconds": time.perf_counter() - began, "loss": loss}


def stepped_loss(trainer: Trainer, index: int) -> float:
    trainer.step(index)
    return trainer.loss()


def private_stdout() -> TextIO:
    """Reserves standard output for answers: the output of frameworks goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def limit_processors(threads: int) -> None:
    """Pins every contender to the same `threads` processors, which also limits pools that ignore other settings."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def serve(make: Callable[[], Any]) -> None:
    """Answers requests with the methods of the object that `make` returns, until standard input ends.

    The object is created at the first request, so that a missing framework is also an answer.
    """
    answers = private_stdout()
    worker: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            worker = worker or make()
            answer = getattr(worker, request.pop("do"))(**request)
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers, flush=True)


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    cases = {**CASES, **INSIDE, **{case.name: case for case in ZOO.values()}}
    parser.add_argument("case", choices=cases)
    parser.add_argument("contender", choices=MODULES)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--precision", default="float32")
    arguments = parser.parse_args()
    limit_processors(arguments.threads)
    case = cases[arguments.case]
    case = replace(case, cells=tuple(replace(cell, precision=arguments.precision) for cell in case.cells))
    serve(lambda: Worker(arguments.contender, case, arguments.threads))


if __name__ == "__main__":
    main()
