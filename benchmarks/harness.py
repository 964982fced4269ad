"""Interleaved rounds: every contender in its own process, one active at a time, medians at the end."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case
from benchmarks.contender import BenchmarkError, Contender
from benchmarks.frameworks import OURS, OURS_FLOAT32

ROUND_SECONDS = 0.25
STABLE_ROUNDS, STABLE_WITHIN, MOST_WARM_UP_ROUNDS = 3, 0.10, 15
# All start from the same weights, so their first losses differ by rounding only (7e-7 measured); a missing update
# would differ by 2e-4 or more.
SAME_LOSS_WITHIN = 2e-5
# In half precision frameworks round at different points, by half an eps at most, and losses may differ by that much.
SAME_HALF_LOSS_WITHIN = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
IDLE_SHARE_LIMIT = 0.05


@dataclass
class Measurements:
    """All measurements: `rounds_us[contender][cell]` has one value per round, in the order of the rounds."""

    case: str
    rounds_us: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    first_step_s: dict[str, float] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    tensor_bytes: dict[str, dict[str, int]] = field(default_factory=dict)  # bytes of tensors by contender and cell
    left_out: dict[str, str] = field(default_factory=dict)  # peer -> its losses, which differ from ours


def log_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(
    case: Case,
    names: Sequence[str],
    rounds: int,
    threads: int,
    worker: str = "benchmarks.worker",
    precision: str = "float32",
    within: float = SAME_LOSS_WITHIN,
    leave_out: bool = False,
) -> Measurements:
    """Warms up every contender in every cell, then measures them alternately.

    A peer with other losses than ours is refused; with `leave_out` it is named and the others continue.
    """
    more = () if precision == "float32" else ("--precision", precision)
    result = Measurements(case.name)
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders = []
        for name in names:
            contenders.append(Contender(name, case.name, threads, Path(cache), worker, more))
            stack.callback(contenders[-1].close)
        steps = {contender.name: prepare(contender, case, result) for contender in contenders}
        result.left_out = apart(case, contenders, steps, SAME_HALF_LOSS_WITHIN.get(precision, within))
        for reason in result.left_out.values():
            log_line(reason)
            if not leave_out or len(result.left_out) == len(contenders) - 1:
                raise BenchmarkError(reason)
        contenders = [contender for contender in contenders if contender.name not in result.left_out]
        for number in range(rounds):
            log_line(f"round {number + 1} of {rounds}")
            one_round(case, rotated(contenders, number), steps, result)
        report_idle(contenders)
    return result


@dataclass(frozen=True)
class Prepared:
    """The results of a cell's warm-up."""

    steps: int
    losses: list[float]


def prepare(contender: Contender, case: Case, result: Measurements) -> dict[str, Prepared]:
    """Starts every cell and warms it up."""
    prepared = {}
    for cell in case.cells:
        started = contender.ask("start", cell=cell.name)
        # Only the first cell's first step is cold: for later cells libraries are loaded and pools are running.
        result.first_step_s.setdefault(contender.name, started["first_step_s"])
        if started["peak_bytes"] is not None:
            result.peak_bytes.setdefault(cell.name, started["peak_bytes"])  # the first contender is Wholestep
        if started["tensor_bytes"] is not None:
            result.tensor_bytes.setdefault(contender.name, {})[cell.name] = started["tensor_bytes"]
        prepared[cell.name] = Prepared(warm_up(contender, cell.name), started["losses"])
    return prepared


def warm_up(contender: Contender, cell: str) -> int:
    """Measure until three rounds in a row agree; return the number of steps per round."""
    steps, recent = 10, list[float]()
    for _ in range(MOST_WARM_UP_ROUNDS):
        us = microseconds(contender, cell, steps)
        steps = max(10, round(ROUND_SECONDS * 1e6 / us))
        recent = [*recent, us][-STABLE_ROUNDS:]
        if len(recent) == STABLE_ROUNDS and max(recent) <= (1 + STABLE_WITHIN) * min(recent):
            log_line(f"{contender.name} {cell}: {us:.0f} us a step")
            return steps
    log_line(f"{contender.name} {cell}: {us:.0f} us a step, not stable after {MOST_WARM_UP_ROUNDS} warm-up rounds")
    return steps


def microseconds(contender: Contender, cell: str, steps: int) -> float:
    return float(contender.ask("measure", cell=cell, steps=steps)["seconds"]) / steps * 1e6


def check_same_work(
    case: Case,
    contenders: Sequence[Contender],
    prepared: dict[str, dict[str, Prepared]],
    within: float = SAME_LOSS_WITHIN,
) -> None:
    """Refuses a comparison in which a contender computes other values."""
    for reason in apart(case, contenders, prepared, within).values():
        raise BenchmarkError(reason)


def apart(
    case: Case, contenders: Sequence[Contender], prepared: dict[str, dict[str, Prepared]], within: float
) -> dict[str, str]:
    """The contenders whose losses differ from the first contender's, with their losses."""
    reference, differing = contenders[0].name, dict[str, str]()
    for cell in case.cells:
        for contender in contenders[1:]:
            pairs = zip(prepared[reference][cell.name].losses, prepared[contender.name][cell.name].losses, strict=True)
            for index, (expected, received) in enumerate(pairs):
                if not abs(expected - received) <= within:  # also true for NaN
                    reason = (
                        f"{cell.name}, step {index}: the loss of {contender.name} is {received}, that of {reference} "
                        f"{expected}; the two do not train the same network"
                    )
                    differing.setdefault(contender.name, reason)
    return differing


def rotated(contenders: Sequence[Contender], by: int) -> list[Contender]:
    """The contenders in rotated order, so that none always runs after the same one."""
    by %= len(contenders)
    return [*contenders[by:], *contenders[:by]]


def one_round(
    case: Case, contenders: Sequence[Contender], prepared: dict[str, dict[str, Prepared]], result: Measurements
) -> None:
    """Measures each contender once in each cell; contenders of a cell run one after the other, because noise drifts."""
    for cell in case.cells:
        for contender in contenders:
            us = microseconds(contender, cell.name, prepared[contender.name][cell.name].steps)
            result.rounds_us.setdefault(contender.name, {}).setdefault(cell.name, []).append(us)


def report_idle(contenders: Sequence[Contender]) -> None:
    for contender in contenders:
        if contender.idle_share > IDLE_SHARE_LIMIT:
            log_line(
                f"warning: {contender.name} used {contender.idle_share:.0%} of a processor while others were measured; "
                "the other contenders' times are too high"
            )


def summary(measured: Measurements) -> dict[str, Any]:
    """The JSON result. A ratio is the median over rounds of (peer's time / our time in the same round)."""
    medians = {
        name: {cell: round(median(values), 2) for cell, values in cells.items()}
        for name, cells in measured.rounds_us.items()
    }
    ours = measured.rounds_us.get(OURS)
    peers = [name for name in medians if name not in (OURS, OURS_FLOAT32)]
    beside = {"float32_us": medians[OURS_FLOAT32]} if OURS_FLOAT32 in medians else {}
    compared = [*peers, *([OURS_FLOAT32] if beside else [])]
    return {
        "case": measured.case,
        "ours_us": medians.get(OURS, {}),
        **beside,
        "peers_us": {peer: medians[peer] for peer in peers},
        "ratios": {peer: ratios(measured.rounds_us[peer], ours) for peer in compared} if ours else {},
        "first_step_s": {name: round(seconds, 4) for name, seconds in measured.first_step_s.items()},
        "peak_bytes": measured.peak_bytes,
        "tensor_bytes": measured.tensor_bytes,
    }


def ratios(peer: dict[str, list[float]], ours: dict[str, list[float]]) -> dict[str, float]:
    """The ratio of the peer's time to ours, by cell and as geometric mean over the cells."""
    by_cell = {cell: median(p / o for p, o in zip(peer[cell], ours[cell], strict=True)) for cell in ours}
    geomean = exp(sum(map(log, by_cell.values())) / len(by_cell))
    return {name: round(value, 3) for name, value in {**by_cell, "geomean": geomean}.items()}
