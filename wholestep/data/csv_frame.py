"""`read_frame`: a file of text with named columns, gaps, words, categories and dates."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wholestep.data.column import Array, Column
from wholestep.data.frame import Frame, _refuse_twins
from wholestep.data.sources import Path_, read_lines
from wholestep.errors import InputError

GAPS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-"})
ANSWERS = {"true": True, "false": False}
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?$")


def read_frame(path: Path_, *, header: bool = True, delimiter: str = ",") -> Frame:
    """A table from a CSV file: columns of numbers, text, dates (2024-03-31, with or without a time) or true and false.

    Empty cells, `NA`, `NaN`, `null`, `None`, `?` and the like are gaps.  A column is of numbers where every value in it
    is one.  The first line names the columns; without `header` they are called "0", "1" and so on.

    Example: `frame = ws.data.read_frame("passengers.csv")`.
    """
    lines = read_lines(path, delimiter)
    if len(lines) <= header:
        raise InputError(f"{path} has no rows of data.")
    names = [name.strip() for name in lines[0][1]] if header else [str(i) for i in range(len(lines[0][1]))]
    _refuse_twins(names)
    rows = lines[1:] if header else lines
    for number, row in rows:
        if len(row) != len(names):
            raise InputError(f"{path}, line {number}: {len(row)} values; expected {len(names)} as in the first line.")
    cells = zip(*(row for _, row in rows), strict=True)
    return Frame({name: _column(values) for name, values in zip(names, cells, strict=True)})


def _column(cells: Sequence[str]) -> Column:
    text = [cell.strip() for cell in cells]
    missing = np.array([cell.lower() in GAPS for cell in text], bool)
    present = [cell for cell, gap in zip(text, missing.tolist()) if not gap]
    for read in (_answers, _whole, _numbers, _dates):
        found = read(present) if present else np.zeros(0)
        if found is not None:
            values: Array = np.zeros(len(text), found.dtype)
            values[~missing] = found
            return Column(values, missing)
    words = np.full(len(text), "", object)
    words[~missing] = present
    return Column(words, missing)


def _answers(cells: Sequence[str]) -> Array | None:
    found = [ANSWERS.get(cell.lower()) for cell in cells]
    return None if None in found else np.array(found, bool)


def _whole(cells: Sequence[str]) -> Array | None:
    if not all(cell.lstrip("+-").isdecimal() for cell in cells):
        return None
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (OverflowError, ValueError):
        return None


def _numbers(cells: Sequence[str]) -> Array | None:
    if any("_" in cell for cell in cells):  # Python reads 1_0 as 10; a file that has it means something else
        return None
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _dates(cells: Sequence[str]) -> Array | None:
    if not all(DATE.match(cell) for cell in cells):
        return None
    try:
        return np.array(cells, "M8[us]")
    except ValueError:  # the 31st of April
        return None
