"""Schedules as a table, a plot in the terminal, or a plot in a file."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from wholestep.charts import Chart, draw
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError

Points = Sequence[tuple[Any, float]]  # position, value
WIDTH, HEIGHT = 64, 12


def table_text(unit: str, points: Points) -> str:
    """A table with one row per point."""
    rows = [f"{unit:>10}  value", *(f"{n:>10}  {value:.8g}" for n, value in points)]
    return "\n".join(rows)


def terminal_plot(unit: str, points: Points) -> str:
    """The curve drawn in characters, `HEIGHT` lines high."""
    low, high = min(v for _, v in points), max(v for _, v in points)
    span = high - low or 1.0
    columns = min(WIDTH, len(points))
    grid = [[" "] * columns for _ in range(HEIGHT)]
    for column in range(columns):
        value = points[column * (len(points) - 1) // max(1, columns - 1)][1]
        grid[HEIGHT - 1 - round((value - low) / span * (HEIGHT - 1))][column] = "•"
    labels = [f"{high:.4g}", *[""] * (HEIGHT - 2), f"{low:.4g}"]
    lines = [f"{label:>10} │{''.join(row)}" for label, row in zip(labels, grid, strict=True)]
    last = f"{points[-1][0]}"
    first = f"{points[0][0]}"
    axis = f"{first}{last:>{max(1, columns - len(first))}}"
    return "\n".join([*lines, f"{'':>10} └{'─' * columns}", f"{unit:>10}  {axis}"])


def plot_to_file(unit: str, points: Points, file: Any, title: str, *, log: bool = False) -> str:
    """Draw the curve to an image file; return its name."""
    if not isinstance(file, str | PathLike):
        fail(UsageError, f"plot takes the name of a file, e.g. 'lr.svg', or nothing for text; received {file!r}.")
    chart = Chart(title, unit, {title: [(float(n), v) for n, v in points]}, log=log, legend=False)
    draw([chart], Path(file))
    return fspath(file)
