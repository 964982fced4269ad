"""Dates written as text: which notation a column uses, and its values as datetime64."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from wholestep.data.column import Array

ISO, DAY_FIRST, MONTH_FIRST = "year-month-day", "day/month/year", "month/day/year"

_TIME = r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?"
_PATTERNS = {
    ISO: re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})" + _TIME),
    DAY_FIRST: re.compile(r"(?P<day>\d{1,2})[-/.](?P<month>\d{1,2})[-/.](?P<year>\d{4})" + _TIME),
    MONTH_FIRST: re.compile(r"(?P<month>\d{1,2})[-/.](?P<day>\d{1,2})[-/.](?P<year>\d{4})" + _TIME),
}
NOTATIONS = tuple(_PATTERNS)


def parse_dates(cells: Sequence[str], notation: str) -> Array | None:
    """The dates as datetime64[us]; None if one of the cells is no date of the calendar in this notation."""
    texts = []
    for cell in cells:
        match = _PATTERNS[notation].fullmatch(cell)
        if match is None:
            return None
        year, month, day, time = match.group("year", "month", "day", "time")
        texts.append(f"{year}-{month:0>2}-{day:0>2}T{time or '00:00'}")
    try:
        return np.array(texts, "M8[us]")
    except ValueError:  # the 31st of April, the 13th month, 25 o'clock
        return None


def possible_notations(cells: Sequence[str]) -> list[str]:
    """The notations in which every cell is a date: two where no day is above 12, none for other text."""
    return [notation for notation in NOTATIONS if parse_dates(cells, notation) is not None]
