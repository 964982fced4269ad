"""`Encoder`: fits to the training rows how each column of a frame is encoded as numbers."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.frontend.trace import user_line
from wholestep.compiler.ir.graph import SourceLine
from wholestep.data.tables.column import Array, Column, need_finite
from wholestep.data.tables.column_encodings import (
    DAY_FIRST,
    ISO,
    MONTH_FIRST,
    MOST_WORDS,
    Categories,
    Classes,
    Dates,
    Numbers,
    Part,
    Target,
    Words,
    dates_from_text,
    parts_of_dates,
    possible_notations,
    words_of,
)
from wholestep.data.tables.encoding import ColumnSummary, Encoding
from wholestep.data.tables.frame_data import need_framed, need_targets
from wholestep.errors import InputError, OptionError, TrainingWarning, UnknownNameError

LARGEST_VOCABULARY = 2000
FEWEST_IDENTIFIERS = 20  # rows; in a shorter column, quantities may all differ by chance
KINDS = ("numbers", "categories", "text", "dates", "ignore")  # arguments that list columns
_ID_NAME = re.compile(r"(?i:(?:^|[_\W])(?:id|uuid|guid|key|index))$|[a-z](?:Id|ID)$")
IDENTIFIER, AMBIGUOUS_DATES = "identifier?", "day or month first?"
ADVICE = {
    IDENTIFIER: "a different value in every row, as identifiers do: what a model learns from it holds for no other "
    "row. Leave it out: encoder=ws.data.Encoder(ignore={names}), or drop it from the frame. If it is a quantity, name "
    "it in Encoder(numbers=...).",
    AMBIGUOUS_DATES: "dates that can be read with the day first or the month first; until you say which, they are "
    "encoded as text: encoder=ws.data.Encoder(dayfirst=True), or dayfirst=False.",
}
# a cross-validation warns once for all folds, although `warnings` forgets in between
_WARNED: set[tuple[str, SourceLine]] = set()


@dataclass(frozen=True)
class Encoder:
    """How the columns of a frame become numbers: `ws.fit(..., encoder=ws.data.Encoder())` fits it to the training rows.

    Numbers are standardised; a column with missing values gets a second one that is 1 where they are.  Text becomes
    categories if its values repeat, dates if every value is one (2024-03-31, or 31/03/2024 if a day above 12 shows
    that the day comes first), else words.  Categories and words become integers for an embedding, 0 for values that
    the training rows do not have.  Dates become the time that has passed and their position in the year, week and day.
    Labels of any type become class indices.  The fitted encoder belongs to the model: `predict` applies it, `save`
    stores it, and `print(model.encoder)` of a `ws.models.Tabular` shows what became of each column.

    A model gets `x` (numbers and dates), `categories` and `words`, as far as the table has them, as arguments of its
    `forward`.

    Args:
        standardize: (value - mean) / standard deviation of the training rows; else numbers as they are.
        categories: columns of numbers that are names, such as a postal code.
        text: columns to be read as words, however often values repeat.
        ignore: columns to leave out, such as an identifier.
        most_categories: the most distinct values of a column of text; with more distinct values it is read as words.
        numbers: columns of numbers that are quantities although they differ in every row, such as a year.
        dates: columns of text to be read as dates; any other value is an error.
        dayfirst: is 03/04/2024 the 3rd of April?  None: decided per column if a day above 12 shows it.

    Example: `ws.fit(model, (frame, "species"), encoder=ws.data.Encoder(ignore=["id"]), loss="cross_entropy")`.
    """

    standardize: bool = True
    categories: tuple[str, ...] | list[str] = ()
    text: tuple[str, ...] | list[str] = ()
    ignore: tuple[str, ...] | list[str] = ()
    most_categories: int = 1000
    numbers: tuple[str, ...] | list[str] = ()
    dates: tuple[str, ...] | list[str] = ()
    dayfirst: bool | None = None

    def __post_init__(self) -> None:
        for argument in KINDS:
            names = getattr(self, argument)
            if isinstance(names, str):
                raise OptionError(
                    f"Encoder: {argument} must be a list of columns; received {names!r}. Write {argument}=[{names!r}]."
                )
        if not isinstance(self.most_categories, int) or self.most_categories < 1:
            raise OptionError(f"Encoder: most_categories must be at least 1; received {self.most_categories!r}.")
        if self.dayfirst not in (None, True, False):
            raise OptionError(f"Encoder: dayfirst must be True, False or None; received {self.dayfirst!r}.")
        listed = Counter(name for argument in KINDS for name in set(getattr(self, argument)))
        for name in (name for name, times in listed.items() if times > 1):
            arguments = [argument for argument in KINDS if name in getattr(self, argument)]
            raise OptionError(f"Encoder: the column {name!r} is in {' and '.join(arguments)}; name it in one of them.")

    def fit(self, data: Any, aim: str = "numbers") -> Encoding:
        """The fitted encoder of these rows; `print` shows what it does with each column.

        Args:
            data: a DataFrame of pandas or Polars, a `ws.data.Frame` or a dict of columns; with a target,
                `(frame, "name of its column")` or `(frame, labels)`.
            aim: what a model predicts: "numbers", "classes", or "answers" for two classes with one score.

        Example: `print(ws.data.Encoder().fit(frame))`.
        """
        rows = need_framed(data)
        for name in (name for argument in KINDS for name in getattr(self, argument)):
            if name not in rows.inputs.columns:
                columns = ", ".join(map(repr, rows.inputs))
                raise UnknownNameError(f"Encoder: the table has no column {name!r} to encode; it has: {columns}.")
        parts: list[Part] = []
        summary = []
        for name, column in rows.inputs.columns.items():
            if name in self.ignore:
                summary.append(ColumnSummary.of(name, column))
                continue
            part = self._part(name, column)
            parts.append(part)
            summary.append(ColumnSummary.of(name, column, self._remark(name, column, part)))
        for remark in dict.fromkeys(s.remark for s in summary if s.remark):
            _warn([s.name for s in summary if s.remark == remark], remark)
        return Encoding(
            tuple(part for part in parts if isinstance(part, Numbers)),
            tuple(part for part in parts if isinstance(part, Dates)),
            tuple(part for part in parts if isinstance(part, Categories)),
            tuple(part for part in parts if isinstance(part, Words)),
            _target(rows.target, aim),
            tuple(summary),
        )

    def _part(self, name: str, column: Column) -> Part:
        if column.missing.all():
            raise InputError(f"the column {name!r} has no value in any row; leave it out: Encoder(ignore=[{name!r}]).")
        for argument, kind in (("text", "text"), ("numbers", "number")):
            if name in getattr(self, argument) and column.kind != kind:
                raise InputError(
                    f"Encoder: {argument}={name!r} has {column.kind}s, not {kind}; leave it out of {argument}=."
                )
        if name in self.categories and column.kind == "date":
            raise InputError(
                f"Encoder: categories={name!r} has dates, which are not categories; convert it, "
                f"frame[{name!r}].astype(str), or leave it out of categories=."
            )
        if name in self.text:
            return _words(name, column)
        if (name in self.categories or column.categorical) and column.kind != "date":
            return _categories(name, column)
        if column.kind == "number":
            if name in self.dates:
                raise InputError(
                    f"Encoder: dates={name!r} has numbers, e.g. {column.present[0]}; convert it, e.g. "
                    f"pd.to_datetime(frame[{name!r}], unit='s') if they are seconds since 1970."
                )
            return self._numbers(name, column)
        if column.kind == "date":
            return self._dates(name, column, ISO)
        notation = self._notation(name, column)
        if notation is not None:
            return self._dates(name, dates_from_text(name, column, notation), notation)
        return _categories(name, column) if self._repeats(column) else _words(name, column)

    def _repeats(self, column: Column) -> bool:
        """Does text repeat so often that each value can have an embedding?"""
        distinct, rows = len(set(column.present.tolist())), len(column.present)
        return distinct <= max(rows // 2, 16) and distinct <= self.most_categories

    def _notation(self, name: str, column: Column) -> str | None:
        """The date notation of a column of text; None for other text, or if two notations fit."""
        possible = possible_notations(column.present.tolist())
        wanted = None if self.dayfirst is None else DAY_FIRST if self.dayfirst else MONTH_FIRST
        if wanted in possible:
            return wanted
        if len(possible) == 1:
            return possible[0]
        if name in self.dates:
            if possible:
                raise InputError(
                    f"Encoder: the dates in {name!r}, e.g. {column.present[0]!r}, can be read with the day first or "
                    "the month first; say which: dayfirst=True or dayfirst=False."
                )
            return wanted or ISO  # for the error, which names the first invalid cell
        return None

    def _remark(self, name: str, column: Column, part: Part) -> str:
        """The remark about a column whose encoding is probably a mistake; "" for any other."""
        if any(name in getattr(self, argument) for argument in KINDS):
            return ""
        if isinstance(part, Dates):
            return ""
        if column.kind == "text" and possible_notations(column.present.tolist()):
            return AMBIGUOUS_DATES
        return IDENTIFIER if _is_identifier(name, column) else ""

    def _numbers(self, name: str, column: Column) -> Numbers:
        need_finite(name, column)
        return Numbers(name, *self._scale(column.present.astype(np.float64)), bool(column.missing.any()))

    def _dates(self, name: str, column: Column, notation: str) -> Dates:
        since, clock = parts_of_dates(column.present)
        return Dates(name, *self._scale(since), bool(column.missing.any()), bool(clock.any()), notation)

    def _scale(self, values: Array) -> tuple[float, float]:
        if not self.standardize:
            return 0.0, 1.0
        spread = float(values.std())
        # The deviation of a constant column is rounding error; dividing by it would blow that up.
        return float(values.mean()), spread if spread > 1e-9 * max(abs(float(values.mean())), 1e-30) else 1.0


def _is_identifier(name: str, column: Column) -> bool:
    """Does the column number or name its rows?  Unique integers without large gaps, or called so; unique single words.

    Training uses only a part of the rows, so identifiers may have gaps: half of them may be held out.
    """
    values = column.present
    if len(values) < FEWEST_IDENTIFIERS or column.missing.any() or column.categorical:
        return False
    if values.dtype.kind not in "iuO" or len(set(values.tolist())) < len(values):
        return False
    if column.kind == "text":
        return not any(re.search(r"\s", text) for text in values.tolist())
    return int(values.max()) - int(values.min()) < 2 * len(values) or bool(_ID_NAME.search(name))


def _warn(names: list[str], remark: str) -> None:
    columns = f"the column {names[0]!r} has" if len(names) == 1 else f"the columns {', '.join(map(repr, names))} have"
    line = user_line()
    text = f"{columns} {ADVICE[remark].format(names=names)}"
    if (text, line) not in _WARNED:
        warnings.warn_explicit(text, TrainingWarning, line.file, line.line)
        _WARNED.add((text, line))  # not reached if warnings are errors


def _categories(name: str, column: Column) -> Categories:
    values = np.unique(column.present)
    return Categories(name, tuple(v.item() if hasattr(v, "item") else v for v in values), bool(column.missing.any()))


def _words(name: str, column: Column) -> Words:
    """The vocabulary: words that occur in more than one row, by falling frequency."""
    rows = [words_of(text) for text in column.present.tolist()]
    counts = Counter(word for row in rows for word in set(row))
    vocabulary = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1]
    most = max((len(row) for row in rows), default=1)
    return Words(name, tuple(vocabulary[:LARGEST_VOCABULARY]), min(max(most, 1), MOST_WORDS))


def _target(target: Column | Array | None, aim: str) -> Target | Classes | None:
    if target is None:
        return None
    if isinstance(target, Column):
        need_targets(target)
        if aim != "numbers" or target.kind == "text":
            return _classes(target, aim == "answers")
        if target.kind == "date":
            raise InputError("the target is a date; predict a number, e.g. the days until then, or a class.")
        need_finite("target", target)
    values = np.asarray(target.values if isinstance(target, Column) else target, np.float64)
    spread = np.atleast_1d(values.std(axis=0))
    return Target(tuple(np.atleast_1d(values.mean(axis=0)).tolist()), tuple(np.where(spread > 0, spread, 1.0).tolist()))


def _classes(target: Column, answers: bool) -> Classes:
    values = tuple(v.item() if hasattr(v, "item") else v for v in np.unique(target.values))
    if len(values) < 2:
        raise InputError(f"the target is {values[0]!r} in every row; a classifier needs rows of at least two classes.")
    if answers and len(values) > 2:
        raise InputError(
            f"this loss is for binary targets, and the target has {len(values)} values: "
            f"{', '.join(map(repr, values[:5]))}, …. For classes use loss='cross_entropy', for numbers loss='mse'."
        )
    return Classes(values, answers)
