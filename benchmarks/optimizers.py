"""`python -m benchmarks optimizers`: each update on ten million parameters against torch's fastest form and optax."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases.optimizers import UPDATES, Update
from benchmarks.contender import BenchmarkError, Contender
from benchmarks.frameworks import OURS
from benchmarks.harness import log_line, rotated

ROUND_SECONDS = 0.15
SAME_WITHIN = 2e-5  # relative, of the mean magnitude of a thousand weights


def run(names: Sequence[str] | None, rounds: int, threads: int) -> dict[str, Any]:
    """Measures all updates one after the other; the contenders of one update alternate."""
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders = {}
        for who in (OURS, "torch", "optax"):
            contenders[who] = Contender(who, "optimizers", threads, Path(cache), worker="benchmarks.update_worker")
            stack.callback(contenders[who].close)
        limit = contenders[OURS].ask("limit")["gigabytes_per_second"]
        rows = {name: one_update(name, UPDATES[name], contenders, rounds) for name in names or UPDATES}
    return {"case": "optimizers", "in_place_limit_gb_s": round(limit, 1), "updates": rows}


def one_update(name: str, update: Update, everyone: dict[str, Contender], rounds: int) -> dict[str, Any]:
    """Starts the update in every contender, checks that all compute the same, and measures in interleaved rounds."""
    chosen = [everyone[OURS]]
    chosen += [everyone["torch"]] if update.torch else []
    chosen += [everyone["optax"]] if update.optax else []
    started = {c.name: c.ask("start", cell=name) for c in chosen}
    check_same_work(name, update, started)
    times: dict[str, list[float]] = {c.name: [] for c in chosen}
    steps = {c.name: max(1, round(ROUND_SECONDS / one_step(c, name))) for c in chosen}
    for number in range(rounds):
        for c in rotated(chosen, number):
            times[c.name].append(c.ask("measure", cell=name, steps=steps[c.name])["seconds"] / steps[c.name])
    result = summary(update, times, {who: answer["form"] for who, answer in started.items()})
    log_line(f"{name}: {result}")
    return result


def one_step(contender: Contender, name: str) -> float:
    return float(contender.ask("measure", cell=name, steps=3)["seconds"]) / 3


def check_same_work(name: str, update: Update, started: dict[str, dict[str, Any]]) -> None:
    """Refuses a comparison in which a contender computes other values."""
    if not update.same_numbers:
        return
    reference = started[OURS]["checks"]
    for who, answer in started.items():
        for step, (ours, theirs) in enumerate(zip(reference, answer["checks"], strict=True)):
            if not abs(ours - theirs) <= SAME_WITHIN * abs(ours):  # also true for NaN
                raise BenchmarkError(f"{name}, step {step}: {who} has {theirs}, {OURS} {ours}; they do not agree")


def summary(update: Update, times: dict[str, list[float]], forms: dict[str, str]) -> dict[str, Any]:
    """Milliseconds, ratios within rounds, and the bandwidth that follows from the minimum traffic."""
    ours = times[OURS]
    least = 4 * sum(size(shape) for shape in update.shapes) * update.passes
    return {
        "ms": {who: round(median(values) * 1e3, 3) for who, values in times.items()},
        "ratios": {
            who: round(median(t / o for t, o in zip(values, ours, strict=True)), 3)
            for who, values in times.items()
            if who != OURS
        },
        "gb_s": round(least / median(ours) / 1e9, 1),
        "target": 1.0 if update.fused else 2.0,
        "forms": {who: form for who, form in forms.items() if who != OURS},
    }


def size(shape: tuple[int, ...]) -> int:
    out = 1
    for extent in shape:
        out *= extent
    return out
