"""`read_frame`: a CSV file with named columns of numbers, text and dates, and with missing values."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wholestep.data.column import Array, Column
from wholestep.data.frame import Frame, refuse_duplicates
from wholestep.data.sources import Path_, read_lines, split_header

GAPS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-"})
ANSWERS = {"true": True, "false": False}
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?$")


def read_frame(path: Path_, *, header: bool | None = None, delimiter: str = ",") -> Frame:
    """A table from a CSV file: columns of numbers, text, dates (2024-03-31, with or without a time) or true and false.

    Empty cells, `NA`, `NaN`, `null`, `None`, `?` and the like are missing values.  A column is numeric if each of its
    values is a number.  Dates in other notations (31/03/2024) stay text, which `ws.data.Encoder` reads as dates.

    Args:
        header: does the first line name the columns?  Without a header they are called "0", "1" and so on.  None: it
            does, unless its cells are all numbers and two of them are equal, which names cannot be; different numbers
            are an error that asks, except 0, 1, 2, …, which are names.

    Example: `frame = ws.data.read_frame("passengers.csv")`.
    """
    names, rows = split_header(path, read_lines(path, delimiter), header)
    refuse_duplicates(names)
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
