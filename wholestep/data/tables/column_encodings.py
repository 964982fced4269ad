"""Fitted encodings of one column: numbers, dates, categories, words and targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wholestep.data.tables.column import Array, Column, need_finite
from wholestep.data.tables.frame_data import need_targets
from wholestep.errors import InputError

MOST_WORDS = 32  # the most words of a text; later words are ignored
UNSEEN = 0  # the code of values that the training rows do not have
WORD = re.compile(r"\w+")
Label = bool | int | float | str

ISO, DAY_FIRST, MONTH_FIRST = "year-month-day", "day/month/year", "month/day/year"

_TIME = r"(?:[T ](?P<time>\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?))?"
_PATTERNS = {
    ISO: re.compile(r"(?P<year>\d{4})[-/.](?P<month>\d{1,2})[-/.](?P<day>\d{1,2})" + _TIME),
    DAY_FIRST: re.compile(r"(?P<day>\d{1,2})[-/.](?P<month>\d{1,2})[-/.](?P<year>\d{4})" + _TIME),
    MONTH_FIRST: re.compile(r"(?P<month>\d{1,2})[-/.](?P<day>\d{1,2})[-/.](?P<year>\d{4})" + _TIME),
}
NOTATIONS = tuple(_PATTERNS)


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: standardised, and with `gaps` a second column that is 1 where the value is missing."""

    name: str
    mean: float
    std: float
    gaps: bool

    def encode(self, column: Column) -> list[Array]:
        values = np.where(column.missing, self.mean, column.values).astype(np.float64)
        scaled = (values - self.mean) / self.std
        return [scaled, column.missing] if self.gaps else [scaled]


@dataclass(frozen=True)
class Dates:
    """A column of dates: seconds, standardised; sine and cosine of the position in the year, the week and, if the
    column has times, the day."""

    name: str
    mean: float
    std: float
    gaps: bool
    clock: bool
    notation: str = ISO  # the notation of dates given as text: one of `NOTATIONS`

    def encode(self, column: Column) -> list[Array]:
        dates = np.where(column.missing, np.datetime64(0, "us"), column.values)
        since, clock = parts_of_dates(dates)
        days = dates.astype("M8[D]")
        year = (days - dates.astype("M8[Y]").astype("M8[D]")).astype(np.int64) / 365.25
        week = (days.astype(np.int64) + 3) % 7 / 7.0  # 1970 began on a Thursday
        phases = [year, week, clock / 86400.0] if self.clock else [year, week]
        waves = [f(2 * np.pi * phase) for phase in phases for f in (np.sin, np.cos)]
        features = [np.where(column.missing, 0.0, part) for part in ((since - self.mean) / self.std, *waves)]
        return [*features, column.missing] if self.gaps else features


def parts_of_dates(values: Array) -> tuple[Array, Array]:
    """The seconds since 1970, and the seconds since midnight."""
    micro = values.astype("M8[us]").astype(np.int64)
    return micro / 1e6, micro % 86_400_000_000 / 1e6


@dataclass(frozen=True)
class Categories:
    """A column of categories: codes from 1 for the values of the training rows; 0 is a value that they do not have.

    With `gaps`, missing values form a separate category, the last one.
    """

    name: str
    values: tuple[Label, ...]
    gaps: bool

    @property
    def size(self) -> int:
        return len(self.values) + self.gaps

    def encode(self, column: Column) -> Array:
        numbers = {value: i for i, value in enumerate(self.values, 1)}
        codes = np.array([numbers.get(value, UNSEEN) for value in column.values.tolist()], np.int64)
        return np.where(column.missing, self.size if self.gaps else UNSEEN, codes)


@dataclass(frozen=True)
class Words:
    """A column of text: codes of its first `length` words, from 1 for the words of the vocabulary; 0 is padding."""

    name: str
    values: tuple[str, ...]
    length: int

    @property
    def size(self) -> int:
        return len(self.values)

    def encode(self, column: Column) -> Array:
        numbers = {word: i for i, word in enumerate(self.values, 1)}
        out = np.zeros((len(column), self.length), np.int64)
        for row, (text, gap) in enumerate(zip(column.values.tolist(), column.missing.tolist())):
            codes = [] if gap else [numbers[word] for word in words_of(text) if word in numbers][: self.length]
            out[row, : len(codes)] = codes
        return out


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case."""
    return WORD.findall(text.lower())


Part = Numbers | Dates | Categories | Words


@dataclass(frozen=True)
class Classes:
    """Labels of any type, sorted: a class is encoded as its index."""

    values: tuple[Label, ...]
    answers: bool = False  # is the target binary with a single score?  The second class is positive

    def encode(self, column: Column) -> Array:
        need_targets(column)
        numbers = {value: i for i, value in enumerate(self.values)}
        labels = column.values.tolist()
        for row, value in enumerate(labels):
            if value not in numbers:
                raise InputError(
                    f"the label {value!r} in row {row} was not among the classes that the model was trained with: "
                    f"{shorten_labels(self.values)}. Leave such rows out, or train with all classes."
                )
        return np.array([numbers[value] for value in labels], np.float32 if self.answers else np.int32)


def shorten_labels(values: Sequence[Label]) -> str:
    """The first eight labels, for errors and reports."""
    return f"{', '.join(map(repr, values[:8]))}{', …' * (len(values) > 8)}"


@dataclass(frozen=True)
class Target:
    """Numbers to be predicted, in their own units: a model's output is scaled by their mean and standard deviation."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def encode(self, target: Column | Array) -> Array:
        if isinstance(target, Column):
            need_targets(target)
            if target.kind != "number":
                raise InputError(f"the targets are {target.kind}; the model was trained to predict numbers.")
            return target.values.astype(np.float32)
        return np.asarray(target, np.float32)


def as_in_training(part: Part, column: Column) -> Column:
    """The column with the type that it had in training; InputError for any other type."""
    if isinstance(part, Dates) and column.kind == "text" and not column.missing.all():
        column = dates_from_text(part.name, column, part.notation)
    expected = {Numbers: "number", Dates: "date", Words: "text"}.get(type(part))
    if isinstance(part, Categories) and part.values:
        expected = "text" if isinstance(part.values[0], str) else "number"
    if column.missing.all() or column.kind == expected:
        values = column.values if column.kind == expected or expected != "text" else np.full(len(column), "", object)
        if column.kind == "number" and isinstance(part, Numbers):
            need_finite(part.name, column)
        elif isinstance(part, Dates):
            values = values if column.kind == "date" else np.zeros(len(column), "M8[us]")
        return Column(values, column.missing, column.categorical)
    raise InputError(
        f"the column {part.name!r} holds {column.kind}, e.g. {column.present[0]!r}; in training it held {expected}. "
        "Convert it, or read both tables in the same way."
    )


# -- dates that are written as text -----------------------------------------------------------------------------


def parse_dates(cells: Sequence[str], notation: str) -> Array | None:
    """The dates as datetime64[us]; None if a cell is not a valid date in this notation."""
    texts = []
    for cell in cells:
        match = _PATTERNS[notation].fullmatch(cell)
        if match is None:
            return None
        year, month, day, time = match.group("year", "month", "day", "time")
        texts.append(f"{year}-{month:0>2}-{day:0>2}T{time or '00:00'}")
    try:
        return np.array(texts, "M8[us]")
    except ValueError:  # e.g. the 31st of April, the 13th month, 25 o'clock
        return None


def possible_notations(cells: Sequence[str]) -> list[str]:
    """The notations in which every cell is a date: two if no day is above 12, none for text that is not a date."""
    return [notation for notation in NOTATIONS if parse_dates(cells, notation) is not None]


def dates_from_text(name: str, column: Column, notation: str) -> Column:
    """A column of text as dates; InputError names the first cell that is not a date."""
    dates = parse_dates(column.present.tolist(), notation)
    if dates is None:
        row = next(i for i in np.flatnonzero(~column.missing) if parse_dates([column.values[i]], notation) is None)
        raise InputError(
            f"the column {name!r} holds {column.values[row]!r} in row {row}; expected a date written as {notation}, "
            f"e.g. {_EXAMPLES[notation]!r}. Correct it, or convert the column: pd.to_datetime(frame[{name!r}])."
        )
    values = np.zeros(len(column), "M8[us]")
    values[~column.missing] = dates
    return Column(values, column.missing)


_EXAMPLES = dict(zip(NOTATIONS, ("2024-03-31", "31/03/2024", "03/31/2024"), strict=True))
