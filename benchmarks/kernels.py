"""Where a step's time goes: every kernel of a case's plan beside what the machine allows.

The plan's own C is compiled once more with a clock around each kernel; nothing of it is in what users run.
"""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from benchmarks import limits
from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.contender import BenchmarkError
from benchmarks.harness import log_line
from wholestep.compiler.plan.kernel import Kernel
from wholestep.compiler.runtime.cache import Cache
from wholestep.compiler.runtime.compiler import compile_c
from wholestep.compiler.runtime.cpu import CpuProgram, PlanObject

if TYPE_CHECKING:
    from benchmarks.frameworks.with_wholestep import WholestepTrainer

WARM_UP_STEPS, STEPS = 3, 30
CALL = re.compile(r"\bws_k\d+\(call, .*?\);")
CLOCK = """\
#include <time.h>
WS_EXPORT long ws_spent[{threads}][{kernels}];
static inline long ws_now(void) {{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000L + t.tv_nsec;
}}
"""


@dataclass(frozen=True)
class Row:
    """Equal kernels of a plan: their number, and microseconds a step of all of them, on average over the threads."""

    kind: str
    axes: str
    ops: str
    count: int
    us: float
    gflops_core: float
    gb_s: float
    of_flops: float  # of the machine's multiply-adds
    of_memory: float  # of its bandwidth; beyond 1 where the bytes come from caches


def timed_source(source: str, threads: int) -> str:
    """A plan's C with the nanoseconds of each kernel, in the plan's order, added up per thread in `ws_spent`."""
    start = source.index("WS_EXPORT void ws_entry")
    end = source.index("\n}\n", start)
    count = 0

    def timed(call: re.Match[str]) -> str:
        nonlocal count
        count += 1
        return f"{{ const long began = ws_now(); {call[0]} ws_spent[id][{count - 1}] += ws_now() - began; }}"

    entry = CALL.sub(timed, source[start:end])
    return source[:start] + CLOCK.format(threads=threads, kernels=max(1, count)) + entry + source[end:]


def measure(trainer: WholestepTrainer, threads: int, steps: int = STEPS) -> np.ndarray[Any, Any]:
    """Nanoseconds of each (thread, kernel) in a step: the least of several, since noise only adds."""
    program = cast(CpuProgram, trainer.session._main.program)  # the one program of a benchmark case
    with tempfile.TemporaryDirectory() as folder:
        path = compile_c(timed_source(program.source, threads), cache=Cache(Path(folder)))
        program._object = PlanObject(path)
        shape = (threads, max(1, len(program.plan.kernels)))
        address = ctypes.addressof((ctypes.c_long * (shape[0] * shape[1])).in_dll(ctypes.CDLL(str(path)), "ws_spent"))
        spent = np.ctypeslib.as_array((ctypes.c_long * (shape[0] * shape[1])).from_address(address)).reshape(shape)
        least = np.full(shape, np.iinfo(np.int64).max)
        for index in range(WARM_UP_STEPS + steps):
            spent[:] = 0
            trainer.step(index)
            trainer.loss()
            if index >= WARM_UP_STEPS:
                np.minimum(least, spent, out=least)
        return least


def rows(kernels: Sequence[Kernel], spent: np.ndarray[Any, Any], machine: limits.Limits) -> list[Row]:
    """Kernels that do the same, together; the longest first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for i, kernel in enumerate(kernels):
        key = (kernel.kind.value, str(kernel.axes), ", ".join(dict.fromkeys(kernel.origin)))
        groups.setdefault(key, []).append(i)
    found = [row(key, [kernels[i] for i in ids], spent[:, ids], machine) for key, ids in groups.items()]
    return sorted(found, key=lambda r: -r.us)


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


def run_all(names: Sequence[str], threads: int) -> dict[str, Any]:
    """The profiles of the cases named, or of all."""
    unknown = sorted(set(names) - set(CASES))
    if unknown:
        raise BenchmarkError(f"kernels: there is no case {', '.join(unknown)}; expected some of {', '.join(CASES)}")
    machine = limits.measure(threads)
    log_line(f"this machine: {machine.gflops_core:.0f} GFLOP/s a core, {machine.gb_s:.0f} GB/s in place")
    cases = [run(CASES[name], threads, machine) for name in names or CASES]
    return {"threads": threads, "machine": asdict(machine), "cases": cases}


def run(case: Case, threads: int, machine: limits.Limits) -> dict[str, Any]:
    """The profile of a case's first cell."""
    from benchmarks.frameworks.with_wholestep import WholestepTrainer

    cell = case.cells[0]
    trainer = WholestepTrainer(case, cell, threads)
    found = rows(trainer.session.plan.kernels, measure(trainer, threads), machine)
    return {
        "case": case.name,
        "cell": cell.name,
        "us": sum(r.us for r in found),
        "kernels": [asdict(r) for r in found],
    }
