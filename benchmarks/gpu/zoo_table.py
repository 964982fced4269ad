"""`python -m benchmarks cuda-zoo`: the rows of the zoo, their geometric mean, and their table."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contender import BenchmarkError
from benchmarks.frameworks import OURS
from benchmarks.gpu import run as rounds
from benchmarks.gpu.cases import GpuCase
from benchmarks.gpu.zoo import ZOO

TARGET = 1.1  # geometric mean of the ratios to the best peers


def cases(names: Sequence[str]) -> list[GpuCase]:
    """The rows whose names begin so; all of them if there is no name."""
    for name in names:
        if not any(row.startswith(name) for row in ZOO):
            raise BenchmarkError(f"no network {name!r} in the zoo; expected some of {', '.join(ZOO)}")
    return [case for row, case in ZOO.items() if not names or row.startswith(tuple(names))]


def run(names: Sequence[str], how: rounds.Rounds, results: Path | None) -> dict[str, Any]:
    result = rounds.run(cases(names), how, results)
    return {**result, "case": "cuda-zoo", **overall(result["cells"])}


def overall(cells: dict[str, Any]) -> dict[str, Any]:
    """The geometric mean over the networks that were compared."""
    ratios = {name: cell["best_ratio"] for name, cell in cells.items() if cell.get("best_ratio")}
    mean = round(exp(sum(map(log, ratios.values())) / len(ratios)), 3) if ratios else None
    return {"geomean": mean, "compared": len(ratios), "target": TARGET}


def show(result: dict[str, Any]) -> None:
    """A table with one row per network, then the kernels far above their price."""
    table = Table(title=f"networks that nobody tuned for, on {result['device']['name']}: ms a step (times ours)")
    for heading in ("", "ours", "peers", "best", "target", "", "GiB: ours, peers", "import, first steps"):
        table.add_column(heading)
    for name, cell in result["cells"].items():
        table.add_row(*_line(name, cell))
    console = Console(width=150)
    console.print(table)
    console.print(f"geometric mean of {result['compared']}: {result['geomean']}x (target {TARGET}x)")
    for name, cell in result["cells"].items():
        rounds.show_notes(console, name, cell)


def _line(name: str, cell: dict[str, Any]) -> list[str]:
    if "error" in cell:
        return [name, "failed", cell["error"].splitlines()[-1][:60]]
    ms = {contender: f"{us / 1e3:.2f}" for contender, us in cell["us"].items()}
    peers = "\n".join(f"{n} {ms[n]} ({ratio:.2f}x)" for n, ratio in cell["ratios"].items())
    best = "" if cell["best_ratio"] is None else f"{cell['best_ratio']:.2f}x"
    unit = " us" if cell["unit"] == "us" else "x"
    target = f"{cell['target']:g} ({cell['line']:g}){unit}"
    memory = ", ".join(f"{held / 2**30:.2f}" for held in cell["device_bytes"].values())
    first = ", ".join(f"{seconds:.1f}" for seconds in cell["first_step_s"].values())
    imported = "" if cell["import_s"] is None else f"{cell['import_s']:.1f} s, "
    return [name, ms[OURS], peers, best, target, cell["verdict"], memory, f"{imported}{first} s"]
