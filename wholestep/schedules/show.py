"""Schedules as a table, a plot in the terminal, or a plot in a file."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from wholestep.charts import Chart, draw, plot_text
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
    lines = [f"{label:>10} │{row}" for label, row in plot_text([v for _, v in points], WIDTH, HEIGHT)]
    first, last, columns = f"{points[0][0]}", f"{points[-1][0]}", min(WIDTH, len(points))
    axis = f"{first}{last:>{max(1, columns - len(first))}}"
    return "\n".join([*lines, f"{'':>10} └{'─' * columns}", f"{unit:>10}  {axis}"])


def plot_to_file(unit: str, points: Points, file: Any, title: str, *, log: bool = False) -> str:
    """Draw the curve to an image file; return its name."""
    if not isinstance(file, str | PathLike):
        fail(UsageError, f"plot takes the name of a file, e.g. 'lr.svg', or nothing for text; received {file!r}.")
    chart = Chart(title, unit, {title: [(float(n), v) for n, v in points]}, log=log, legend=False)
    draw([chart], Path(file))
    return fspath(file)
