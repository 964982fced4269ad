"""A frame as text: the size, the names and types of its columns, and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from wholestep.data.column import Column

if TYPE_CHECKING:
    from wholestep.data.frame import Frame

ROWS, COLUMNS, LETTERS = 5, 10, 20  # that are shown
MISSING = "-"


def table_text(frame: Frame) -> str:
    """A head line, names, types, numbers of missing values, and the first rows."""
    names = list(frame)[:COLUMNS]
    head = [_shown(frame[name]) for name in names]
    lines = [
        ["", *map(_short, names)],
        ["type", *(frame[name].type_name for name in names)],
        ["missing", *(str(int(frame[name].missing.sum())) for name in names)],
        *([str(row), *(cells[row] for cells in head)] for row in range(min(ROWS, len(frame)))),
    ]
    left_out = [f"{len(frame) - ROWS} more rows"] if len(frame) > ROWS else []
    left_out += [f"{len(frame.columns) - COLUMNS} more columns"] if len(frame.columns) > COLUMNS else []
    text = f"{len(frame)} rows, {len(frame.columns)} columns\n{aligned(lines)}"
    return f"{text}\n… {', '.join(left_out)}" if left_out else text


def _shown(column: Column) -> list[str]:
    head = zip(column.values[:ROWS], column.missing[:ROWS].tolist())
    return [MISSING if missing else _short(_value_text(value)) for value, missing in head]


def _value_text(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.removesuffix(".000000").removesuffix("T00:00:00")  # of datetime64[us]


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)).rstrip() for row in rows)
