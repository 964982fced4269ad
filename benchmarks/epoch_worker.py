"""The process of one contender of `python -m benchmarks epoch`: whole epochs over data in memory.

`{"do": "start", "cell": c}`                 -> `{"form", "loss"}`: an epoch in order, from the common weights
`{"do": "measure", "cell": c, "epochs": n}`  -> `{"seconds", "loss"}`: shuffled epochs, each with its mean loss
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Protocol

from benchmarks.cases.epoch import CELLS, EpochCell, data
from benchmarks.terminal import terminal_as_stderr
from benchmarks.worker import limit_processors, serve


class EpochLoop(Protocol):
    """A network in training, with the loop that users of the framework write, in the fastest form that we found."""

    def epochs(self, count: int, shuffled: bool = True) -> float:
        """Runs epochs over all rows, each in another order; returns the mean loss of the last one."""


Forms = dict[str, Callable[[], EpochLoop]]
PROGRESS = "wholestep_progress"


def wholestep_forms(cell: EpochCell, threads: int, progress: bool = False) -> Forms:
    from benchmarks.frameworks.loops_wholestep import Fit

    return {"fit, progress bar" if progress else "fit": lambda: Fit(cell, data(), threads, progress)}


def torch_forms(cell: EpochCell, threads: int) -> Forms:
    from benchmarks.frameworks.loops_torch import InMemory

    return {
        "rows of each batch gathered": lambda: InMemory(cell, data(), threads, permute=False),
        "data permuted, then slices": lambda: InMemory(cell, data(), threads, permute=True),
    }


def loader_forms(cell: EpochCell, threads: int, workers: int) -> Forms:
    from benchmarks.frameworks.loops_torch import Loaded

    return {f"DataLoader(TensorDataset), {workers} workers": lambda: Loaded(cell, data(), threads, workers)}


def jax_forms(cell: EpochCell, threads: int) -> Forms:
    from benchmarks.frameworks.loops_jax import StepByStep

    return {
        "rows gathered inside the step": lambda: StepByStep(cell, data(), permute=False),
        "data permuted, sliced inside the step": lambda: StepByStep(cell, data(), permute=True),
    }


def jax_scan_forms(cell: EpochCell, threads: int) -> Forms:
    from benchmarks.frameworks.loops_jax import Scanned

    return {"lax.scan over the epoch": lambda: Scanned(cell, data())}


FORMS: dict[str, Callable[[EpochCell, int], Forms]] = {
    "wholestep": wholestep_forms,
    PROGRESS: lambda cell, threads: wholestep_forms(cell, threads, progress=True),
    "torch_loop": torch_forms,
    "torch_loader": lambda cell, threads: loader_forms(cell, threads, workers=0),
    "torch_loader_2": lambda cell, threads: loader_forms(cell, threads, workers=2),
    "jax_loop": jax_forms,
    "jax_scan": jax_scan_forms,
}


class Worker:
    """Runs a loop for each cell, in its fastest form."""

    def __init__(self, contender: str, threads: int) -> None:
        self.contender, self.threads = contender, threads
        self.loops: dict[str, EpochLoop] = {}

    def start(self, cell: str) -> dict[str, Any]:
        """The fastest form of the contender, and the mean loss of its first epoch, taken in order."""
        forms = FORMS[self.contender](CELLS[cell], self.threads)
        form = min(forms, key=lambda name: trial_seconds(forms[name])) if len(forms) > 1 else next(iter(forms))
        self.loops[cell] = forms[form]()
        return {"form": form, "loss": self.loops[cell].epochs(1, shuffled=False)}

    def measure(self, cell: str, epochs: int) -> dict[str, Any]:
        """Seconds of `epochs` shuffled epochs."""
        began = time.perf_counter()
        loss = self.loops[cell].epochs(epochs)
        return {"seconds": time.perf_counter() - began, "loss": loss}


def trial_seconds(make: Callable[[], EpochLoop]) -> float:
    loop, times = make(), []
    for _ in range(4):  # the first compiles
        began = time.perf_counter()
        loop.epochs(1)
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    """Serves requests until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("case", choices=["epoch"])
    parser.add_argument("contender", choices=FORMS)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    limit_processors(arguments.threads)
    # Opened once: starting the process that reads the terminal takes longer than drawing to it.
    with terminal_as_stderr() if arguments.contender == PROGRESS else nullcontext():
        serve(lambda: Worker(arguments.contender, arguments.threads))


if __name__ == "__main__":
    main()
