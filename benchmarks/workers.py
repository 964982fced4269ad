"""`python -m benchmarks workers`: two ranks of one thread against one process of two threads, and torch's DDP."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.contender import ROOT, Contender, cpu_seconds, end, environment
from benchmarks.frameworks import OURS, OURS_RANKS
from benchmarks.harness import (
    Measurements,
    check_same_work,
    log_line,
    one_round,
    prepare,
    report_idle,
    rotated,
)

RANKS = 2
PEERS = ("torch_ddp", "torch_ddp_compile")
LAUNCH = (
    sys.executable,
    "-m",
    "wholestep.cli",
    "launch",
    "-n",
    str(RANKS),
    str(ROOT / "benchmarks" / "rank_worker.py"),
)


@dataclass(frozen=True)
class Goal:
    """Targets relative to the throughput of one process with as many threads: the goal, and the minimum."""

    target: float
    least: float


GOALS = {"gpt": Goal(0.9, 0.8), "bigmlp": Goal(0.7, 0.55)}


class Ranked(Contender):
    """A contender of several processes: rank 0 gets requests like any contender, each other rank has a pipe."""

    def __init__(self, name: str, case: str, cache: Path, launcher: Sequence[str] = (), ranks: int = RANKS) -> None:
        pipes = cache / f"{name}-{case}"
        pipes.mkdir()
        for rank in range(1, ranks):
            os.mkfifo(pipes / str(rank))
        # Opened for reading and writing, so that opening does not block; closing it still ends the reader's input.
        self.pipes = [os.open(pipes / str(rank), os.O_RDWR) for rank in range(1, ranks)]
        more = ("--ranks", str(ranks), "--requests", str(pipes))
        self.others = (
            [] if launcher else [self._other(rank, ranks, name, case, cache, more) for rank in range(1, ranks)]
        )
        super().__init__(
            name,
            case,
            1,
            cache,
            "benchmarks.rank_worker",
            more,
            {} if launcher else _variables(0, ranks, pipes),
            launcher=launcher,
        )

    def _other(
        self, rank: int, ranks: int, name: str, case: str, cache: Path, more: Sequence[str]
    ) -> subprocess.Popen[bytes]:
        """Starts a rank without a launcher."""
        return subprocess.Popen(
            [sys.executable, "-m", "benchmarks.rank_worker", case, name, "--threads", "1", *more],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
            env={**environment(1, cache), **_variables(rank, ranks, Path(more[-1]))},
        )

    def send(self, line: str) -> None:
        for pipe in self.pipes:
            os.write(pipe, f"{line}\n".encode())
        super().send(line)

    def cpu_seconds(self) -> float:
        return sum(map(cpu_seconds, [p for start in (self.process, *self.others) for p in descendants(start.pid)]))

    def close(self) -> None:
        for pipe in self.pipes:
            os.close(pipe)
        super().close()
        for other in self.others:
            end(other)


def _variables(rank: int, ranks: int, pipes: Path) -> Mapping[str, str]:
    """The rendezvous of torch's ranks; ours have a launcher."""
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "MEETING_FILE": str(pipes / "meeting")}


def descendants(pid: int) -> list[int]:
    """A process and all of its descendants, as far as /proc lists them."""
    pids = [pid]
    for parent in pids:
        children = Path(f"/proc/{parent}/task/{parent}/children")
        pids += map(int, children.read_text().split()) if children.exists() else []
    return pids


def run(names: Sequence[str], rounds: int, peers: Sequence[str] = PEERS) -> dict[str, Any]:
    """Measures each case separately, with four contenders at a time."""
    return {"case": "workers", "ranks": RANKS, "cases": {name: one_case(CASES[name], rounds, peers) for name in names}}


def one_case(case: Case, rounds: int, peers: Sequence[str]) -> dict[str, Any]:
    """Measure one process of two threads, our ranks and the ranks of other libraries, in interleaved rounds."""
    result = Measurements(case.name)
    with tempfile.TemporaryDirectory() as cache, ExitStack() as stack:
        contenders: list[Contender] = []
        for name in (OURS, OURS_RANKS, *peers):
            contenders.append(contender(name, case, Path(cache)))
            stack.callback(contenders[-1].close)
        prepared = {c.name: prepare(c, case, result) for c in contenders}
        check_same_work(case, contenders, prepared)
        for number in range(rounds):
            log_line(f"{case.name}: round {number + 1} of {rounds}")
            one_round(case, rotated(contenders, number), prepared, result)
        report_idle(contenders)
    return summary(case, result)


def contender(name: str, case: Case, cache: Path) -> Contender:
    """A contender of one process with the threads of all ranks, or of ranks with one thread each."""
    if name == OURS:
        return Contender(name, case.name, RANKS, cache)
    return Ranked(name, case.name, cache, LAUNCH if name == OURS_RANKS else ())


def summary(case: Case, measured: Measurements) -> dict[str, Any]:
    """Times of a step, the throughput of our ranks relative to one process, and the ratio of DDP's time to ours.

    Ratios are medians within rounds.
    """
    (cell,) = case.cells
    times = {name: cells[cell.name] for name, cells in measured.rounds_us.items()}
    ours, goal = times[OURS_RANKS], GOALS[case.name]

    def beside(name: str) -> float:
        return round(median(t / o for t, o in zip(times[name], ours, strict=True)), 3)

    return {
        "step_us": {name: round(median(values), 1) for name, values in times.items()},
        "of_one_process": beside(OURS),
        "target": goal.target,
        "least": goal.least,
        "ahead_of": {name: beside(name) for name in times if name not in (OURS, OURS_RANKS)},
        "predicted": {ranks: predicted(case, ranks) for ranks in (2, 4)},
    }


def predicted(case: Case, ranks: int) -> dict[str, Any]:
    """The estimate of `ws.estimate` for ranks of one thread over shared memory."""
    import wholestep as ws
    from benchmarks.frameworks.with_wholestep import optimizer_of

    (cell,) = case.cells
    report = ws.estimate(
        case.models["wholestep"](),
        optimizer=optimizer_of(cell),
        batch_size=cell.batch,
        threads=1,
        workers=ranks,
        network="shm",
    )
    return {
        "wire_bytes": report.wire_bytes,
        "compute_us": round(1e6 * report.compute_seconds, 1),
        "exchange_us": round(1e6 * report.exchange_seconds, 1),
        "step_us": round(1e6 * report.step_seconds, 1),
    }


def show(result: dict[str, Any]) -> None:
    """A table per case."""
    for name, case_result in result["cases"].items():
        print(f"{name}: {result['ranks']} ranks of one thread, one process of {result['ranks']} threads")
        for who, us in case_result["step_us"].items():
            print(f"  {who:<20}{us:>12,.1f} us a step")
        print(
            f"  ranks have {case_result['of_one_process']:.2f} of one process's throughput "
            f"(target {case_result['target']}, least {case_result['least']})"
        )
        for who, ratio in case_result["ahead_of"].items():
            print(f"  {who} takes {ratio:.2f} times as long")
        for ranks, estimate in case_result["predicted"].items():
            print(
                f"  predicted of {ranks} ranks: {estimate['step_us']:,.1f} us a step, "
                f"{estimate['exchange_us']:,.1f} of them "
                f"exchanging {estimate['wire_bytes']:,} bytes a rank"
            )
