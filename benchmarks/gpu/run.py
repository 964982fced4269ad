"""Interleaved rounds on the GPU, and their report."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contender import BenchmarkError, Contender
from benchmarks.frameworks import OURS
from benchmarks.gpu.cases import CASES, SLOW_PEERS, GpuCase
from benchmarks.harness import log_line, rotated

ROUND_SECONDS = 0.25
SAME_LOSS_WITHIN = {"float32": 5e-3, "bfloat16": 5e-2}  # relative: peers' products are tf32; losses are about 2 and 11
PLATFORM = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# The measurements of `session.step` and `session.run`, by kind of case, with their numbers of steps.
OF_CALLS = {
    "step": {"calls": 200, "host": 64, "host_after_wait": 64, "host_copy": 64},
    "epochs": {"host_in_epochs": 20_000},
    "update": {},
}
CLOCKS = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"


def run(names: Sequence[str], rounds: int, slow: bool = False, peers: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures every case; a failed case is reported with its reason, and the rest continues."""
    results: dict[str, Any] = {"case": "cuda", "device": clocks(), "cells": {}}
    for name in names:
        try:
            results["cells"][name] = one_case(CASES[name], rounds, slow, peers)
            log_line(json.dumps({name: results["cells"][name]}))  # printed now, in case the run is interrupted
        except BenchmarkError as error:
            log_line(f"{name}: {error}")
            results["cells"][name] = {"error": str(error)}
    return results


def clocks() -> dict[str, str]:
    """The current state of the GPU, from nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise BenchmarkError(f"nvidia-smi does not answer ({error}); this benchmark needs an NVIDIA GPU") from error
    return dict(zip(CLOCKS.split(","), said.split(", "), strict=True))


def one_case(found: GpuCase, rounds: int, slow: bool, only: Sequence[str] | None) -> dict[str, Any]:
    """Starts all contenders, checks that they train equally, and measures them alternately."""
    peers = [*found.peers, *(SLOW_PEERS.get(found.name, ()) if slow else ())]
    peers = [peer for peer in peers if only is None or peer in only]
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders = []
        for name in (OURS, *peers):
            contender = Contender(name, found.name, 2, Path(cache), worker="benchmarks.gpu.worker", variables=PLATFORM)
            stack.callback(contender.close)
            contenders.append(contender)
        started = {OURS: contenders[0].ask("start")}
        with ThreadPoolExecutor() as peers_start:  # the peers' first steps may take minutes: run them concurrently
            answers = peers_start.map(lambda c: c.ask("start"), contenders[1:])
            started |= dict(zip((c.name for c in contenders[1:]), answers, strict=True))
        check_same_work(found, {name: answer["losses"] for name, answer in started.items()})
        steps = {c.name: filling(c) for c in contenders}
        times: dict[str, list[float]] = {c.name: [] for c in contenders}
        for number in range(rounds):
            for c in rotated(contenders, number):
                times[c.name].append(microseconds(c, steps[c.name]))
        ours, hot = contenders[0], clocks()
        calls = {kind: round(microseconds(ours, count, kind), 2) for kind, count in OF_CALLS[found.kind].items()}
        held = {c.name: c.ask("held")["device_bytes"] for c in contenders}
    first = {name: round(answer["first_step_s"], 2) for name, answer in started.items()}
    return {**summary(found, times), "ours_call_us": calls, "first_step_s": first, "device_bytes": held, "clocks": hot}


def microseconds(contender: Contender, steps: int, kind: str = "") -> float:
    return float(contender.ask("measure", steps=steps, **({"kind": kind} if kind else {}))["seconds"]) / steps * 1e6


def filling(contender: Contender) -> int:
    """The number of steps of a round, after a warm-up."""
    us = min(microseconds(contender, 10) for _ in range(3))
    log_line(f"{contender.name}: {us:.1f} us a step")
    return max(10, round(ROUND_SECONDS * 1e6 / us))


def check_same_work(found: GpuCase, losses: dict[str, list[float]]) -> None:
    """Refuses a comparison in which the losses of a contender differ."""
    within = SAME_LOSS_WITHIN[found.cell.precision]
    for name, values in losses.items():
        for index, (received, expected) in enumerate(zip(values, losses[OURS], strict=True)):
            if not abs(received - expected) <= within:  # also true for NaN
                raise BenchmarkError(
                    f"{found.name}, step {index}: the loss of {name} is {received}, that of {OURS} {expected}; "
                    "the two do not train the same network"
                )


def summary(found: GpuCase, times: dict[str, list[float]]) -> dict[str, Any]:
    """The medians of a case; a ratio is the median over rounds of (peer's time / our time in the same round)."""
    ours = times[OURS]
    ratios = {n: round(median(t / o for t, o in zip(v, ours, strict=True)), 3) for n, v in times.items() if n != OURS}
    best = min(ratios.values()) if ratios else None
    reached = median(ours) if found.unit == "us" else best
    return {
        "us": {name: round(median(values), 2) for name, values in times.items()},
        "ratios": ratios,
        "best_ratio": best,
        "unit": found.unit,
        "target": found.target,
        "line": found.line,
        "verdict": verdict(found, reached),
    }


def verdict(found: GpuCase, reached: float | None) -> str:
    """The verdict `target` (reached), `done` (between target and limit) or `not done`."""
    if reached is None:
        return "not compared"
    sign = -1 if found.unit == "us" else 1
    if sign * reached >= sign * found.target:
        return "target"
    return "done" if sign * reached >= sign * found.line else "not done"


def show(result: dict[str, Any]) -> None:
    """A table with one row per case."""
    table = Table(title=f"microseconds a step on {result['device']['name']} (times ours)")
    for heading in ("", "ours", "peers", "target", "", "a call, its host", "GiB", "first step"):
        table.add_column(heading)
    for name, cell in result["cells"].items():
        if "error" in cell:
            table.add_row(name, "failed", cell["error"].splitlines()[-1][:60])
            continue
        peers = "\n".join(f"{n} {us:.1f} ({cell['ratios'][n]:.2f}x)" for n, us in cell["us"].items() if n != OURS)
        unit = " us" if cell["unit"] == "us" else "x"
        target = f"{cell['target']:g} ({cell['line']:g}){unit}"
        calls = "\n".join(f"{kind} {us:.1f}" for kind, us in cell["ours_call_us"].items())
        held = "\n".join(f"{bytes / 2**30:.2f}" for bytes in cell["device_bytes"].values())
        first = "\n".join(f"{seconds:.1f} s" for seconds in cell["first_step_s"].values())
        table.add_row(name, f"{cell['us'][OURS]:.1f}", peers, target, cell["verdict"], calls, held, first)
    Console(width=150).print(table)
