"""Interleaved rounds on the GPU, and their report."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Timer
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contender import BenchmarkError, Contender
from benchmarks.frameworks import OURS
from benchmarks.gpu.cases import GpuCase
from benchmarks.harness import log_line, rotated

SAME_LOSS_WITHIN = {"float32": 5e-3, "bfloat16": 5e-2}  # relative: peers' products are tf32; losses are about 2 and 11
SAME_EXACT_LOSS_WITHIN = 1e-3  # float32 on both sides; AdamW takes a step of its full rate where a gradient is rounding
COMPARED_STEPS = {"network": 5}
PLATFORM = {"JAX_PLATFORMS": "cuda", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# The measurements of `session.step` and `session.run`, by kind of case, with their numbers of steps.
OF_CALLS = {
    "step": {"calls": 200, "host": 64, "host_after_wait": 64, "host_copy": 64},
    "epochs": {"host_in_epochs": 20_000},
    "update": {},
    "network": {},
}
NAMED = 3  # slow kernels that are named
CLOCKS = "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu"


@dataclass(frozen=True)
class Rounds:
    """How cases are measured."""

    rounds: int = 9
    seconds: float = 0.25  # of a contender in a round
    peers: Sequence[str] | None = None  # those alone
    at_once: int = 1  # cases whose contenders compile side by side, before the rounds of the first of them
    alone: bool = True  # does ours compile before the peers, and is nothing prepared during a measurement?
    limit: float = 600.0  # seconds of a contender's first step; a slower contender is left out


@dataclass
class Started:
    """The contenders of a case that have compiled, ours first, and what the others died of."""

    case: GpuCase
    contenders: list[Contender]
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def run(cases: Iterable[GpuCase], how: Rounds, results: Path | None = None) -> dict[str, Any]:
    """Measures every case; a failed case is reported with its reason, and the rest continues.

    results: a file of JSON lines to which each case is appended; cases that it has are not measured again.
    """
    cases = list(cases)
    cells = read_results(results)
    missing = [case for case in cases if case.name not in cells]
    device = clocks() if missing or not cells else {"name": "the GPU of the file"}
    for name, cell in measure_groups(missing, how):
        cells[name] = cell
        log_line(json.dumps({name: cell}))  # printed now, in case the run is interrupted
        if results is not None:
            with results.open("a") as lines:
                lines.write(json.dumps({name: cell}) + "\n")
    return {"case": "cuda", "device": device, "cells": {c.name: cells[c.name] for c in cases if c.name in cells}}


def read_results(file: Path | None) -> dict[str, Any]:
    """The cases in a file, without failed ones."""
    lines = file.read_text().splitlines() if file is not None and file.exists() else []
    cells = {name: cell for line in lines for name, cell in json.loads(line).items()}
    return {name: cell for name, cell in cells.items() if "error" not in cell}


def clocks() -> dict[str, str]:
    """The current state of the GPU, from nvidia-smi."""
    command = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise BenchmarkError(f"nvidia-smi does not answer ({error}); this benchmark needs an NVIDIA GPU") from error
    return dict(zip(CLOCKS.split(","), said.split(", "), strict=True))


def measure_groups(cases: Sequence[GpuCase], how: Rounds) -> Iterable[tuple[str, dict[str, Any]]]:
    """Group by group: compiles all contenders side by side, then measures one case after the other.

    Meanwhile the contenders of the next group import their packages and build their networks, without the GPU.
    """
    groups = [cases[first : first + how.at_once] for first in range(0, len(cases), how.at_once)]
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack, ThreadPoolExecutor(64) as pool:
        following = [contenders_of(case, how, Path(cache), stack) for case in groups[0]] if groups else []
        for number in range(len(groups)):
            started = following
            compile_all(started, how)
            following = [contenders_of(c, how, Path(cache), stack) for each in groups[number + 1 :][:1] for c in each]
            early = [] if how.alone else [c for each in following for c in each.contenders]
            prepared = [pool.submit(prepare, contender) for contender in early]
            for each in started:
                try:
                    yield each.case.name, measure(each, how)
                except BenchmarkError as error:
                    log_line(f"{each.case.name}: {error}")
                    yield each.case.name, {"error": str(error)}
                list(pool.map(Contender.close, each.contenders))
            wait(prepared)


def contenders_of(case: GpuCase, how: Rounds, cache: Path, stack: ExitStack) -> Started:
    """Starts a process for each."""
    peers = [peer for peer in case.peers if how.peers is None or peer in how.peers]
    cores = max(2, (os.cpu_count() or 1) // how.at_once)
    variables = {**PLATFORM, "TORCHINDUCTOR_COMPILE_THREADS": str(cores)}
    contenders = []
    for name in (OURS, *peers):
        folder = cache / case.name / name
        contender = Contender(name, case.name, 2, folder, worker="benchmarks.gpu.worker", variables=variables)
        stack.callback(contender.close)
        contenders.append(contender)
    return Started(case, contenders)


def prepare(contender: Contender) -> None:
    try:
        contender.ask("prepare")
    except BenchmarkError as error:
        log_line(str(error))  # the first step will fail, too


def compile_all(started: Sequence[Started], how: Rounds) -> None:
    """First steps: ours one after the other if they are measured alone, all others side by side."""
    waiting = [(each, contender) for each in started for contender in each.contenders]
    if how.alone:
        for each, contender in [pair for pair in waiting if pair[1].name == OURS]:
            compile_one(each, contender, how.limit)
        waiting = [pair for pair in waiting if pair[1].name != OURS]
    with ThreadPoolExecutor(max(1, len(waiting))) as pool:
        list(pool.map(lambda pair: compile_one(*pair, how.limit), waiting))
    for each in started:
        for contender in [c for c in each.contenders if c.name not in each.answers]:
            contender.close()  # it holds memory of the GPU
            each.contenders.remove(contender)


def compile_one(started: Started, contender: Contender, limit: float) -> None:
    late = Timer(limit, contender.kill)
    late.start()
    try:
        started.answers[contender.name] = contender.ask("compile")
    except BenchmarkError as error:
        started.left_out[contender.name] = str(error).splitlines()[-1]
        log_line(f"{started.case.name}: {error}")
    finally:
        late.cancel()


def measure(started: Started, how: Rounds) -> dict[str, Any]:
    """Checks that the contenders of a case train equally, and measures them alternately."""
    case, contenders = started.case, started.contenders
    if OURS in started.left_out:
        raise BenchmarkError(started.left_out[OURS])
    losses = first_losses(started)
    started.left_out |= check_same_work(case, losses)
    contenders = [c for c in contenders if c.name in losses and c.name not in started.left_out]
    steps = {c.name: filling(c, how.seconds) for c in contenders}
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    for number in range(how.rounds):
        for c in rotated(contenders, number):
            times[c.name].append(microseconds(c, steps[c.name]))
    ours, hot = contenders[0], clocks()
    calls = {kind: round(microseconds(ours, count, kind), 2) for kind, count in OF_CALLS[case.kind].items()}
    return {
        **summary(case, times),
        "ours_call_us": calls,
        "losses": {name: [values[0], values[-1]] for name, values in losses.items()},
        **seconds_of_starts(started.answers),
        "device_bytes": {c.name: c.ask("held")["device_bytes"] for c in contenders},
        **(ours.ask("profile") if case.kind in ("network", "step") else {}),
        "left_out": started.left_out,
        "clocks": hot,
    }


def first_losses(started: Started) -> dict[str, list[float]]:
    """The losses of the first steps, by contender; a peer that fails is left out."""
    losses, steps = dict[str, list[float]](), COMPARED_STEPS.get(started.case.kind, 10)
    for contender in started.contenders:
        try:
            losses[contender.name] = contender.ask("start", steps=steps)["losses"]
        except BenchmarkError as error:
            if contender.name == OURS:
                raise
            started.left_out[contender.name] = str(error).splitlines()[-1]
            log_line(f"{started.case.name}: {error}")
    return losses


def seconds_of_starts(answers: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The seconds of imports and first steps."""
    imported = answers[OURS]["import_s"]
    return {
        "import_s": None if imported is None else round(imported, 2),
        "first_step_s": {name: round(answer["first_step_s"], 2) for name, answer in answers.items()},
    }


def microseconds(contender: Contender, steps: int, kind: str = "") -> float:
    return float(contender.ask("measure", steps=steps, **({"kind": kind} if kind else {}))["seconds"]) / steps * 1e6


def filling(contender: Contender, seconds: float) -> int:
    """The number of steps of a round, after a warm-up."""
    us = min(microseconds(contender, 10) for _ in range(3))
    log_line(f"{contender.name}: {us:.1f} us a step")
    return max(3, round(seconds * 1e6 / us))


def check_same_work(case: GpuCase, losses: dict[str, list[float]]) -> dict[str, str]:
    """The peers whose losses differ from ours, with the losses; refuses a comparison with such peers alone."""
    exact = case.cell.precision == "float32" and not case.tf32 and not case.peers_tf32
    within = SAME_EXACT_LOSS_WITHIN if exact else SAME_LOSS_WITHIN[case.cell.precision]
    differing = dict[str, str]()
    for name, values in losses.items():
        for index, (received, expected) in enumerate(zip(values, losses[OURS], strict=True)):
            if not abs(received - expected) <= within and name not in differing:  # also true for NaN
                differing[name] = (
                    f"{case.name}, step {index}: the loss of {name} is {received}, that of {OURS} {expected}; "
                    "the two do not train the same network"
                )
                log_line(differing[name])
    if differing and len(differing) >= len(losses) - 1:
        raise BenchmarkError(next(iter(differing.values())))
    return differing


def summary(case: GpuCase, times: dict[str, list[float]]) -> dict[str, Any]:
    """The medians of a case; a ratio is the median over rounds of (peer's time / our time in the same round)."""
    ours = times[OURS]
    ratios = {n: round(median(t / o for t, o in zip(v, ours, strict=True)), 3) for n, v in times.items() if n != OURS}
    best = min(ratios.values()) if ratios else None
    reached = median(ours) if case.unit == "us" else best
    return {
        "us": {name: round(median(values), 2) for name, values in times.items()},
        "ratios": ratios,
        "best_ratio": best,
        "unit": case.unit,
        "target": case.target,
        "line": case.line,
        "verdict": verdict(case, reached),
    }


def verdict(case: GpuCase, reached: float | None) -> str:
    """The verdict `target` (reached), `done` (between target and limit) or `not done`."""
    if reached is None:
        return "not compared"
    sign = -1 if case.unit == "us" else 1
    if sign * reached >= sign * case.target:
        return "target"
    return "done" if sign * reached >= sign * case.line else "not done"


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
    console = Console(width=150)
    console.print(table)
    for name, cell in result["cells"].items():
        show_notes(console, name, cell)


def show_notes(console: Console, name: str, cell: dict[str, Any]) -> None:
    """Lines about a case: peers that are left out, and kernels that take several times their price."""
    for peer, reason in cell.get("left_out", {}).items():
        console.print(f"{name}: {peer} is left out: {reason}")
    slow = cell.get("slow_kernels", [])
    for kernel in slow[:NAMED]:
        times = kernel["us"] / max(kernel["price_us"], 0.1)
        said = f"takes {kernel['us']} us, {times:.0f} times its price: {kernel['name']}"
        console.print(f"{name}: kernel {kernel['kernel']} {said}", kernel.get("why", ""))
    if len(slow) > NAMED:
        console.print(f"{name}: {len(slow) - NAMED} more kernels take more than 5 times their price")
