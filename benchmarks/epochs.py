"""`python -m benchmarks epoch`: whole epochs of `ws.fit` against the loops that users of torch and JAX write."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases.epoch import CELLS, EpochCell
from benchmarks.contender import BenchmarkError, Contender
from benchmarks.epoch_worker import FORMS, PROGRESS
from benchmarks.frameworks import OURS
from benchmarks.harness import log_line, report_idle, rotated

ROUND_SECONDS, WARM_UP = 0.5, 2
# Relative difference of an epoch's mean loss after hundreds of updates; a contender without updates differs by 1e-2.
SAME_LOSS_WITHIN = 1e-4
PEERS = tuple(name for name in FORMS if not name.startswith(OURS))
LOADERS = ("torch_loader", "torch_loader_2")  # these share one target, which refers to the faster of the two


def run(rounds: int, threads: int, names: Sequence[str] = PEERS, cells: Sequence[str] = tuple(CELLS)) -> dict[str, Any]:
    """Measure all contenders in every cell, in interleaved rounds."""
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders = []
        for name in (OURS, PROGRESS, *names):
            contenders.append(Contender(name, "epoch", threads, Path(cache), worker="benchmarks.epoch_worker"))
            stack.callback(contenders[-1].close)
        cell_results = {cell: one_cell(CELLS[cell], contenders, rounds) for cell in cells}
        report_idle(contenders)
    return {"case": "epoch", "cells": cell_results}


def one_cell(cell: EpochCell, contenders: Sequence[Contender], rounds: int) -> dict[str, Any]:
    """Starts all contenders, checks that they train equally, and measures them alternately."""
    started = {c.name: c.ask("start", cell=cell.name) for c in contenders}
    check_same_work(cell, {name: answer["loss"] for name, answer in started.items()})
    epochs = {c.name: filling(warm_epoch(c, cell.name)) for c in contenders}
    times: dict[str, list[float]] = {c.name: [] for c in contenders}
    for number in range(rounds):
        log_line(f"{cell.name}: round {number + 1} of {rounds}")
        for c in rotated(contenders, number):
            times[c.name].append(seconds(c, cell.name, epochs[c.name]))
    return summary(cell, times, {name: answer["form"] for name, answer in started.items()})


def warm_epoch(contender: Contender, cell: str) -> float:
    fastest = min(seconds(contender, cell, 1) for _ in range(WARM_UP))
    log_line(f"{contender.name} {cell}: {fastest:.3f} s an epoch")
    return fastest


def filling(epoch_seconds: float) -> int:
    """The number of epochs of a round."""
    return max(1, round(ROUND_SECONDS / epoch_seconds))


def seconds(contender: Contender, cell: str, epochs: int) -> float:
    return float(contender.ask("measure", cell=cell, epochs=epochs)["seconds"]) / epochs


def check_same_work(cell: EpochCell, losses: dict[str, float]) -> None:
    """Refuses a comparison if the mean losses of the first epoch, taken in order, differ between contenders."""
    for name, loss in losses.items():
        if not abs(loss - losses[OURS]) <= SAME_LOSS_WITHIN:  # also true for NaN
            raise BenchmarkError(
                f"{cell.name}: the mean loss of {name} is {loss}, that of {OURS} {losses[OURS]}; they do not train the "
                "same network"
            )


def summary(cell: EpochCell, times: dict[str, list[float]], forms: dict[str, str]) -> dict[str, Any]:
    """Seconds per epoch, ratios to ours (medians within rounds), and targets."""
    ratios = {
        name: round(median(t / o for t, o in zip(values, times[OURS], strict=True)), 3)
        for name, values in times.items()
        if name != OURS
    }
    reached = {name: ratio for name, ratio in ratios.items() if name in cell.targets}
    if loader_ratios := [ratios[name] for name in LOADERS if name in ratios]:
        reached["torch_loader"] = min(loader_ratios)
    return {
        "batch": cell.batch,
        "seconds": {name: round(median(values), 4) for name, values in times.items()},
        "ratios": ratios,
        "reached": reached,
        "targets": cell.targets,
        "forms": forms,
    }
