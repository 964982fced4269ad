"""The time of every kernel of a case's plan, compared with the machine's limits.

`session.profile` measures the times; the least time of each kernel is compared with peak arithmetic and bandwidth.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import limits
from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.contender import BenchmarkError
from benchmarks.harness import log_line
from wholestep.compiler.plan.model.kernel import Kernel
from wholestep.session.inspect.profile import BARRIER

if TYPE_CHECKING:
    from benchmarks.frameworks.with_wholestep import WholestepTrainer

STEPS = 30


@dataclass(frozen=True)
class Row:
    """Equal kernels of a plan: their number, and their total microseconds per step, averaged over the threads."""

    kind: str
    axes: str
    ops: str
    count: int
    us: float
    gflops_core: float
    gb_s: float
    of_flops: float  # fraction of the machine's peak of multiply-adds
    of_memory: float  # fraction of its memory bandwidth; above 1 if the bytes come from caches


def measure(trainer: WholestepTrainer, threads: int, steps: int = STEPS) -> np.ndarray[Any, Any]:
    """Nanoseconds of each (thread, kernel) in a step: the least of several, because noise only adds time."""
    profile = trainer.session.profile(trainer.batches[0], steps=steps)
    seconds: dict[tuple[int, int], list[float]] = {}
    for _, event in profile.timeline:
        if event.kernel != BARRIER:
            seconds.setdefault((event.thread, event.kernel), []).append(event.seconds)
    least = np.zeros((threads, len(trainer.session.plan.kernels)))
    for place, duration in seconds.items():  # in order; a kernel of a loop runs equally often in every step
        least[place] = np.reshape(duration, (steps, -1)).sum(axis=1).min() * 1e9
    return least


def rows(kernels: Sequence[Kernel], spent: np.ndarray[Any, Any], machine: limits.Limits) -> list[Row]:
    """Groups of equal kernels, the longest first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        key = (kernel.kind.value, str(kernel.axes), ", ".join(dict.fromkeys(kernel.origin)))
        groups.setdefault(key, []).append(i)
    groups_of_kernels = [row(key, [kernels[i] for i in ids], spent[:, ids], machine) for key, ids in groups.items()]
    return sorted(groups_of_kernels, key=lambda r: -r.us)


def row(
    key: tuple[str, str, str], kernels: Iterable[Kernel], spent: np.ndarray[Any, Any], machine: limits.Limits
) -> Row:
    threads, count = spent.shape
    kernels = list(kernels)
    processor_ns = max(1, int(spent.sum()))
    gflops = sum(k.flops for k in kernels) / processor_ns
    gb_s = sum(k.bytes for k in kernels) / processor_ns * threads
    return Row(
        *key,
        count,
        us=processor_ns / threads / 1e3,
        gflops_core=gflops,
        gb_s=gb_s,
        of_flops=gflops / machine.gflops_core,
        of_memory=gb_s / machine.gb_s,
    )


def run_all(names: Sequence[str], threads: int, precision: str = "float32") -> dict[str, Any]:
    """The profiles of the cases named, or of all."""
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise BenchmarkError(f"kernels: there is no case {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    machine = limits.measure(threads)
    log_line(f"this machine: {machine.gflops_core:.0f} GFLOP/s a core, {machine.gb_s:.0f} GB/s in place")
    cases = [run(CASES[name], threads, machine, precision) for name in names or CASES]
    return {"threads": threads, "machine": asdict(machine), "cases": cases}


def run(case: Case, threads: int, machine: limits.Limits, precision: str = "float32") -> dict[str, Any]:
    """The profile of a case's first cell."""
    from benchmarks.frameworks.with_wholestep import WholestepTrainer

    cell = case.cells[0]
    trainer = WholestepTrainer(case, cell, threads, precision)
    kernel_rows = rows(trainer.session.plan.kernels, measure(trainer, threads), machine)
    return {
        "case": case.name,
        "cell": cell.name,
        "us": sum(r.us for r in kernel_rows),
        "kernels": [asdict(r) for r in kernel_rows],
    }
