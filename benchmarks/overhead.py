"""The costs of a step besides arithmetic: Python in `step()` and `fit`, the import, the first step."""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gpt2_small
from benchmarks.contender import ROOT, BenchmarkError, environment

REPEATS = 9
IMPORT = "import time; t = time.perf_counter(); import wholestep; print(time.perf_counter() - t)"
FIRST_STEP = "from benchmarks import overhead; print(overhead.first_step())"
PYTHON_SHARE = "from benchmarks import overhead; print(overhead.python_share())"
FIT = "from benchmarks import fit_overhead; print(fit_overhead.measure())"
STEPS, ROWS = 2000, 32


def run(cache_dir: Path | None, gpt2: bool = False) -> dict[str, float]:
    """Measures in new processes that share one cache folder, empty at first; GPT-2's have one each.

    The package's bytecode exists, as for an installed package.
    """
    if cache_dir is not None and cache_dir.exists() and any(cache_dir.iterdir()):
        raise BenchmarkError(
            f"--cache-dir {cache_dir} holds files, expected an empty folder: the first start is a cold one"
        )
    compileall.compile_dir(ROOT / "wholestep", quiet=1)
    compileall.compile_dir(ROOT / "benchmarks", quiet=1)
    with tempfile.TemporaryDirectory() as temporary:
        cache = cache_dir or Path(temporary)
        cold = in_new_process(FIRST_STEP, cache)
        return {
            "first_step_cold_s": cold,
            "first_step_warm_s": median(in_new_process(FIRST_STEP, cache) for _ in range(REPEATS)),
            "import_s": median(in_new_process(IMPORT, cache) for _ in range(REPEATS)),
            **in_new_process(PYTHON_SHARE, cache),
            **(gpt2_small.run(in_new_process, cache) if gpt2 else {}),
            **in_new_process(FIT, cache),
        }


def in_new_process(program: str, cache: Path) -> Any:
    """The output of the program, parsed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment(2, cache),
        check=False,
    )
    if done.returncode != 0:
        raise BenchmarkError(f"`{program}` failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def first_step() -> float:
    """Seconds from building the graph to a readable loss, after `import wholestep`."""
    import wholestep  # noqa: F401  (only this import is excluded: imports that it postpones are part of the first step)
    from benchmarks.cases.mlp import CASE

    batch = CASE.batches(CASE.cells[0])[0]
    began = time.perf_counter()
    from benchmarks.frameworks import with_wholestep

    trainer = with_wholestep.start("wholestep", CASE, CASE.cells[0], threads=2)
    float(trainer.session.step(**batch).loss)
    return time.perf_counter() - began


def python_share() -> str:
    """Microseconds of Python in `step()`: a network with almost no arithmetic, in single steps and in native loops.

    `run` executes the same steps in few native calls, so the difference per step is the time of Python.
    """
    import numpy as np

    import wholestep as ws

    g = ws.Graph()
    x = g.input("x", ("batch", 4))
    labels = g.input("labels", ("batch",), dtype="int32")
    logits = x @ g.parameter("w", (4, 2)) + g.parameter("b", (2,))
    g.set_outputs([ws.losses.cross_entropy(logits, labels), logits])
    session = ws.build_session(g, optimizer=ws.SGD(lr=1e-5), batch_size=ROWS, seed=0, threads=1)
    rng = np.random.default_rng(0)
    data = {
        "x": rng.random((ROWS * STEPS, 4), dtype=np.float32),
        "labels": rng.integers(0, 2, ROWS * STEPS).astype(np.int32),
    }
    batch = {name: np.ascontiguousarray(array[:ROWS]) for name, array in data.items()}

    def step_by_step() -> None:
        for _ in range(STEPS):
            session.step(**batch)
        session.read_loss()

    one_by_one = per_step_us(step_by_step)
    natively = per_step_us(lambda: session.run(**data, epochs=1, shuffle=False))
    return json.dumps({"step_us": one_by_one, "native_us": natively, "python_us": one_by_one - natively})


def per_step_us(work: Callable[[], object]) -> float:
    """The median over repeats; the first one is a warm-up."""
    times = []
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        work()
        times.append((time.perf_counter() - began) / STEPS * 1e6)
    return median(times[1:])
