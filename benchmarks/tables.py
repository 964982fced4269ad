"""Results as text tables."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.frameworks import OURS, OURS_FLOAT32

PEER_UPDATES = ("torch", "optax")


def show_case(result: dict[str, Any]) -> None:
    """Microseconds per step, and in brackets the ratio to ours."""
    times = {OURS: result["ours_us"]} if result["ours_us"] else {}
    times |= ({OURS_FLOAT32: result["float32_us"]} if "float32_us" in result else {}) | result["peers_us"]
    cells = list(next(iter(times.values())))
    table = Table(title=f"{result['case']}: microseconds a step, median of interleaved rounds (times ours)")
    for heading in ["", *cells, "geomean", "first step"]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, by_cell in times.items():
        faster = result["ratios"].get(name, {})
        row = [f"{by_cell[cell]:.0f}" + (f" ({faster[cell]:.2f}x)" if faster else "") for cell in cells]
        geomean = f"{faster['geomean']:.2f}x" if faster else ""
        table.add_row(name, *row, geomean, f"{result['first_step_s'][name]:.2f} s")
    console = Console()
    console.print(table)
    show_bytes(result, cells, console)
    for cell, size in result["peak_bytes"].items():
        console.print(f"peak memory of {OURS}, {cell}: {size:,} bytes")


def show_bytes(result: dict[str, Any], cells: list[str], console: Console) -> None:
    """The bytes of a step's tensors, if they are known, and in brackets the ratio to ours."""
    held = result["tensor_bytes"]
    ours = held.get(OURS, {})
    table = Table(title=f"{result['case']}: bytes of tensors in a step at their peak (times ours)")
    for heading in ["", *cells]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, sizes in held.items():
        times = {cell: f" ({sizes[cell] / ours[cell]:.2f}x)" if name != OURS and cell in ours else "" for cell in cells}
        table.add_row(name, *(f"{sizes[cell]:,}{times[cell]}" for cell in cells))
    console.print(table)


def show_overhead(result: dict[str, Any]) -> None:
    """A table with one row per quantity, whose name includes the unit."""
    _show_quantities("fixed costs", result)


def show_metrics(result: dict[str, Any]) -> None:
    """A table with one row per metric."""
    _show_quantities("metrics inside the step: how much slower it gets", result)


def show_updates(result: dict[str, Any]) -> None:
    """Milliseconds per update, the ratio to ours, and the bandwidth compared with the limit of memory."""
    limit = result["in_place_limit_gb_s"]
    table = Table(title=f"updates of ten million parameters, milliseconds; memory allows {limit} GB/s in place")
    for heading in ("", OURS, "torch", "optax", "GB/s", "target"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in result["updates"].items():
        ms, faster = row["ms"], row["ratios"]
        cells = [f"{ms[who]:.2f} ({faster[who]:.2f}x)" if who in ms else "" for who in PEER_UPDATES]
        table.add_row(name, f"{ms[OURS]:.2f}", *cells, f"{row['gb_s']:.0f}", f"{row['target']:.0f}x")
    Console().print(table)


def show_adamw(result: dict[str, Any]) -> None:
    """The case, then the time that the update adds to the steps of two networks."""
    show_case(result)
    table = Table(title="AdamW inside a training step: microseconds that the update adds")
    for heading in ("", OURS, "torch, fused", "times ours", "target"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, row in result["inside"].items():
        ours, theirs = row["update_us"].values()
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}x"
        table.add_row(name, f"{ours:.0f}", f"{theirs:.0f}", ratio, f"{row['target']:g}x")
    Console().print(table)


def show_epochs(result: dict[str, Any]) -> None:
    """Seconds per epoch, the ratio to ours, and the target."""
    for name, cell in result["cells"].items():
        table = Table(title=f"whole epochs over 60,000 rows, {name}: seconds, median of interleaved rounds")
        for heading in ("", "seconds", "times ours", "target", "form"):
            table.add_column(heading, justify="left" if heading in ("", "form") else "right")
        for who, spent in cell["seconds"].items():
            ratio = f"{cell['ratios'][who]:.2f}x" if who in cell["ratios"] else ""
            target = f"{cell['targets'][who]:g}x" if who in cell["targets"] else ""
            table.add_row(who, f"{spent:.3f}", ratio, target, cell["forms"][who])
        Console().print(table)


def show_kernels(result: dict[str, Any]) -> None:
    """A table per case: groups of equal kernels, the longest first, relative to the machine's limits."""
    machine = result["machine"]
    allowed = f"{machine['gflops_core']:.0f} GFLOP/s a core, {machine['gb_s']:.0f} GB/s in place"
    for case in result["cases"]:
        table = Table(title=f"{case['case']} {case['cell']}: {case['us']:.0f} us in kernels; the machine has {allowed}")
        for heading in ("us", "x", "GFLOP/s a core", "GB/s", "kind", "axes", "ops"):
            table.add_column(heading, justify="left" if heading in ("kind", "axes", "ops") else "right")
        for k in case["kernels"]:
            flops, bytes = f"{k['gflops_core']:.1f} ({k['of_flops']:.0%})", f"{k['gb_s']:.1f} ({k['of_memory']:.0%})"
            table.add_row(f"{k['us']:.1f}", str(k["count"]), flops, bytes, k["kind"], k["axes"], k["ops"])
        Console().print(table)


def _show_quantities(title: str, result: dict[str, Any]) -> None:
    table = Table(title=title)
    table.add_column("what")
    table.add_column("measured", justify="right")
    for name, value in result.items():
        table.add_row(name, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
    Console().print(table)


def show_estimators(result: dict[str, dict[str, float]]) -> None:
    """A table with one row per data set: our fit, the ratio of theirs, and the accuracies."""
    table = Table(title="a fit: wholestep.sklearn.Classifier against MLPClassifier (plain: without a StandardScaler)")
    headings = {
        "fit_s": "fit, s",
        "ratio": "theirs",
        "plain_ratio": "plain",
        "accuracy": "accuracy",
        "sklearn_accuracy": "theirs",
        "plain_accuracy": "plain",
    }
    table.add_column("")
    for heading in headings.values():
        table.add_column(heading, justify="right")
    for name, row in result.items():
        cells = [f"{row[key]:.1f}x" if key.endswith("ratio") else f"{row[key]:.4f}" for key in headings]
        table.add_row(name, *cells)
    Console().print(table)
