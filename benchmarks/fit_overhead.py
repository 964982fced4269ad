"""The overhead of `ws.fit` with a progress bar and a metric over the native loop with the same step.

Both train the MNIST MLP at batch 128 in one process, alternately.  `fit_percent` is the median over rounds of the
additional time of `fit`: if other programs share the machine, its noise exceeds its value.  So the time that each
spends outside of native calls is measured too: `fit_python_percent` is the difference of these times, relative to the
time of the bare loop, and has little noise.  It includes the progress bar, which is drawn between native calls.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.cases.epoch import CELLS, ROWS, data
from benchmarks.terminal import terminal_as_stderr

if TYPE_CHECKING:
    import wholestep as ws

EPOCHS, ROUNDS, THREADS = 5, 12, 2


@dataclass
class Taken:
    """The seconds of each round: in total, and inside native calls."""

    whole: list[float] = field(default_factory=list)
    native: list[float] = field(default_factory=list)

    @property
    def outside(self) -> list[float]:
        return [w - n for w, n in zip(self.whole, self.native, strict=True)]


def measure(rows: int = ROWS, rounds: int = ROUNDS) -> str:
    """The JSON of `fit_percent` and `fit_python_percent`."""
    from benchmarks.frameworks.loops_wholestep import Fit

    arrays = data(rows)
    fit = Fit(CELLS["b128"], arrays, THREADS, progress=True, metrics=("accuracy",))
    work: dict[str, Callable[[], object]] = {
        "bare": lambda: fit.trainer.session.run(**arrays, epochs=EPOCHS),
        "fit": lambda: fit.epochs(EPOCHS),
    }
    taken = {name: Taken() for name in work}
    with terminal_as_stderr(), native_seconds(fit.trainer.session) as native:
        for number in range(rounds + 1):
            for name in sorted(work, reverse=bool(number % 2)):
                native[0], began = 0.0, time.perf_counter()
                work[name]()
                taken[name].whole.append(time.perf_counter() - began)
                taken[name].native.append(native[0])
    return json.dumps(summary(taken["fit"], taken["bare"]))


def summary(fit: Taken, bare: Taken) -> dict[str, float]:
    """Medians over rounds, of which the first is a warm-up."""
    whole = [f / b - 1 for f, b in zip(fit.whole, bare.whole, strict=True)]
    python = [(f - o) / b for f, o, b in zip(fit.outside, bare.outside, bare.whole, strict=True)]
    return {"fit_percent": 100 * median(whole[1:]), "fit_python_percent": 100 * median(python[1:])}


@contextmanager
def native_seconds(session: ws.Session) -> Iterator[list[float]]:
    """Accumulates the time of the native loop in its only element."""
    library: Any = session._programs.main.program.library
    spent, run_loop = [0.0], library.run_loop

    def timed(loop: Any) -> int:
        began = time.perf_counter()
        done: int = run_loop(loop)
        spent[0] += time.perf_counter() - began
        return done

    library.run_loop = timed
    try:
        yield spent
    finally:
        library.run_loop = run_loop
