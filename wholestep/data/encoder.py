"""`Encoder`: how the columns of a frame become the numbers that a model computes with, learnt from training rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from wholestep.data.column import Array, Column, need_finite
from wholestep.data.encoding import (
    MOST_WORDS,
    Categories,
    Classes,
    Dates,
    Encoding,
    Numbers,
    Target,
    Words,
    parts_of_dates,
    words_of,
)
from wholestep.data.frame import Frame
from wholestep.data.framed import Framed, need_targets
from wholestep.errors import InputError, OptionError, UnknownNameError

LARGEST_VOCABULARY = 2000


@dataclass(frozen=True)
class Encoder:
    """How the columns of a frame become numbers: `ws.fit(..., encoder=ws.data.Encoder())` learns it from training rows.

    Numbers are standardised, and a column that has gaps gets another one that says where.  Text becomes categories
    where its values repeat, else words.  Categories and words become whole numbers for an embedding, in which 0 is what
    training did not see.  Dates become their distance in time and their places in the year, week and day.  Labels of
    any type become class numbers.  What was learnt belongs to the model: `predict` applies it, `save` writes it.

    A model gets `x` (numbers and dates), `categories` and `words`, those that there are, as arguments of its `forward`.

    Args:
        standardize: (value - mean) / standard deviation of the training rows; else numbers as they are.
        categories: columns of numbers that are names, such as a postal code.
        text: columns to be read as words, however often values repeat.
        ignore: columns that say nothing, such as a row's number.
        most_categories: of a column of text; with more distinct values it is read as words.

    Example: `ws.fit(model, (frame, "species"), encoder=ws.data.Encoder(ignore=["id"]), loss="cross_entropy")`.
    """

    standardize: bool = True
    categories: tuple[str, ...] | list[str] = ()
    text: tuple[str, ...] | list[str] = ()
    ignore: tuple[str, ...] | list[str] = ()
    most_categories: int = 1000

    def __post_init__(self) -> None:
        for name in ("categories", "text", "ignore"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise OptionError(
                    f"Encoder: {name} is a list of columns; received {given!r}. Write {name}=[{given!r}]."
                )
        if not isinstance(self.most_categories, int) or self.most_categories < 1:
            raise OptionError(f"Encoder: most_categories is at least 1; received {self.most_categories!r}.")

    def fit(self, data: Framed, aim: str = "numbers") -> Encoding:
        """What these rows teach; the targets are "numbers", "classes" or, of two classes with one score, "answers"."""
        for name in (*self.categories, *self.text, *self.ignore):
            if name not in data.inputs.columns:
                known = ", ".join(map(repr, data.inputs))
                raise UnknownNameError(f"Encoder: the table has no column {name!r} to encode; it has: {known}.")
        frame = data.inputs.without(*self.ignore)
        kinds = {name: self._kind(name, column) for name, column in frame.columns.items()}

        def of(kind: str) -> Frame:
            return Frame({name: column for name, column in frame.columns.items() if kinds[name] == kind})

        return Encoding(
            tuple(self._numbers(name, column) for name, column in of("number").columns.items()),
            tuple(self._dates(name, column) for name, column in of("date").columns.items()),
            tuple(_categories(name, column) for name, column in of("categories").columns.items()),
            tuple(_words(name, column) for name, column in of("words").columns.items()),
            _target(data.target, aim),
        )

    def _kind(self, name: str, column: Column) -> str:
        if column.missing.all():
            raise InputError(f"the column {name!r} has no value in any row; leave it out: Encoder(ignore=[{name!r}]).")
        if name in self.text:
            if column.kind != "text":
                raise InputError(f"Encoder: text={name!r} has {column.kind}s, not text; leave it out of text=.")
            return "words"
        if (name in self.categories or column.categorical) and column.kind != "date":
            return "categories"
        if column.kind != "text":
            return column.kind
        distinct, rows = len(set(column.present.tolist())), len(column.present)
        repeats = distinct <= max(rows // 2, 16) and distinct <= self.most_categories
        return "categories" if repeats else "words"

    def _numbers(self, name: str, column: Column) -> Numbers:
        need_finite(name, column)
        return Numbers(name, *self._scale(column.present.astype(np.float64)), bool(column.missing.any()))

    def _dates(self, name: str, column: Column) -> Dates:
        since, clock = parts_of_dates(column.present)
        return Dates(name, *self._scale(since), bool(column.missing.any()), bool(clock.any()))

    def _scale(self, values: Array) -> tuple[float, float]:
        if not self.standardize:
            return 0.0, 1.0
        spread = float(values.std())
        # A column of one value has nothing to tell; what rounding leaves of its spread is not blown up.
        return float(values.mean()), spread if spread > 1e-9 * max(abs(float(values.mean())), 1e-30) else 1.0


def _categories(name: str, column: Column) -> Categories:
    values = np.unique(column.present)
    return Categories(name, tuple(v.item() if hasattr(v, "item") else v for v in values), bool(column.missing.any()))


def _words(name: str, column: Column) -> Words:
    """The words that more than one row has, the commonest first."""
    rows = [words_of(text) for text in column.present.tolist()]
    counts = Counter(word for row in rows for word in set(row))
    known = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1]
    most = max((len(row) for row in rows), default=1)
    return Words(name, tuple(known[:LARGEST_VOCABULARY]), min(max(most, 1), MOST_WORDS))


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
            f"this loss answers yes or no, and the target has {len(values)} values: "
            f"{', '.join(map(repr, values[:5]))}, …. For classes use loss='cross_entropy', for numbers loss='mse'."
        )
    return Classes(values, answers)
