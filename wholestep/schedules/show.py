"""Schedules as a table, a plot in the terminal, or a plot in a file."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from os import PathLike, fspath
from typing import Any

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
        fail(UsageError, f"plot takes the name of a file, e.g. 'lr.png', or nothing for text; received {file!r}.")
    try:
        figure_module = importlib.import_module("matplotlib.figure")
    except ImportError:
        fail(
            UsageError,
            "drawing into a file needs matplotlib: pip install matplotlib. plot() gives text without it.",
        )
    figure = figure_module.Figure(figsize=(7, 3))
    axes = figure.add_subplot()
    axes.plot([n for n, _ in points], [v for _, v in points])
    axes.set_xlabel(unit)
    axes.set_xscale("log" if log else "linear")
    axes.set_title(title, fontsize=8)
    figure.savefig(fspath(file), bbox_inches="tight")
    return fspath(file)
