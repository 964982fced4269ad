"""`python -m benchmarks zoo`: steps of torch's networks, in torch and imported by `ws.from_torch`."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import harness
from benchmarks.cases.zoo import ZOO
from benchmarks.contender import BenchmarkError
from benchmarks.frameworks import OURS

PEERS = ("torch_eager", "torch_compile")
# Targets: the geometric mean over the fastest peers, the least ratio, and the first step of the largest networks
TARGET, LEAST, FIRST_STEP_S = 1.5, 1.0, 30.0
SAME_LOSS_WITHIN = 1e-4  # batch norms over few values amplify rounding; a missing update still differs by twice as much


def run(names: Sequence[str], rounds: int, threads: int, peers: Sequence[str] = PEERS) -> dict[str, Any]:
    """Measures every network; failures, and peers with other losses, are named, and the rest continues."""
    results: dict[str, Any] = {}
    for name in names:
        try:
            measured = harness.run(ZOO[name], [OURS, *peers], rounds, threads, within=SAME_LOSS_WITHIN, leave_out=True)
        except BenchmarkError as error:
            harness.log_line(f"{name}: {error}")
            results[name] = {"error": str(error)}
            continue
        said = harness.summary(measured)
        cell = ZOO[name].cells[0].name
        results[name] = {
            "ours_us": said["ours_us"][cell],
            "peers_us": {peer: by_cell[cell] for peer, by_cell in said["peers_us"].items()},
            "ratios": {peer: by_cell[cell] for peer, by_cell in said["ratios"].items()},
            "best_ratio": min(by_cell[cell] for by_cell in said["ratios"].values()),
            "first_step_s": said["first_step_s"],
            "left_out": measured.left_out,
        }
    return {"case": "zoo", "networks": results, **overall(results)}


def overall(found: dict[str, Any]) -> dict[str, Any]:
    """The ratio to the fastest peer of each network."""
    best = {name: row["best_ratio"] for name, row in found.items() if "error" not in row}
    if not best:
        return {"geomean": None, "least": None, "target": TARGET}
    geomean = exp(sum(map(log, best.values())) / len(best))
    return {"geomean": round(geomean, 3), "least": min(best.items(), key=lambda item: item[1]), "target": TARGET}


def show(result: dict[str, Any]) -> None:
    """A table with one row per network."""
    table = Table(title="networks that torch built: microseconds a step (times ours), first step cold")
    for heading in ("", "ours", *PEERS, "first steps"):
        table.add_column(heading)
    for name, row in result["networks"].items():
        if "error" in row:
            table.add_row(name, "failed", row["error"].splitlines()[-1][:60])
            continue
        times = {peer: f"{us:.0f} ({row['ratios'][peer]:.2f}x)" for peer, us in row["peers_us"].items()}
        peers = [times.get(peer, "trains another" if peer in row["left_out"] else "") for peer in PEERS]
        first = ", ".join(f"{seconds:.1f} s" for seconds in row["first_step_s"].values())
        table.add_row(name, f"{row['ours_us']:.0f}", *peers, first)
    console = Console(width=130)
    console.print(table)
    console.print(f"over the best peer: {result['geomean']}x (target {TARGET}), least {result['least']}")
