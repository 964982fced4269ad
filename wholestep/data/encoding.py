"""`Encoding`: what an encoder has learnt of a table's columns.  Plain data, which a file of weights carries as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wholestep.data.column import Array, Column, need_finite
from wholestep.data.frame import Frame
from wholestep.data.framed import Framed, need_targets
from wholestep.data.table import TARGET, Table
from wholestep.errors import CheckpointError, InputError, UnknownNameError, UsageError

MOST_WORDS = 32  # of a text; what comes after is not read
UNSEEN = 0
WORD = re.compile(r"\w+")
Label = bool | int | float | str


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: one that is standardised, and where gaps were one that says where they are."""

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
    """A column of dates: seconds, standardised, and its place in the year, the week and (where it has one) the day."""

    name: str
    mean: float
    std: float
    gaps: bool
    clock: bool

    def encode(self, column: Column) -> list[Array]:
        known = np.where(column.missing, np.datetime64(0, "us"), column.values)
        since, clock = parts_of_dates(known)
        days = known.astype("M8[D]")
        year = (days - known.astype("M8[Y]").astype("M8[D]")).astype(np.int64) / 365.25
        week = (days.astype(np.int64) + 3) % 7 / 7.0  # 1970 began on a Thursday
        turns = [year, week, clock / 86400.0] if self.clock else [year, week]
        waves = [f(2 * np.pi * turn) for turn in turns for f in (np.sin, np.cos)]
        found = [(since - self.mean) / self.std, *waves]
        found = [np.where(column.missing, 0.0, part) for part in found]
        return [*found, column.missing] if self.gaps else found


def parts_of_dates(values: Array) -> tuple[Array, Array]:
    """Seconds since 1970, and since midnight."""
    micro = values.astype("M8[us]").astype(np.int64)
    return micro / 1e6, micro % 86_400_000_000 / 1e6


@dataclass(frozen=True)
class Categories:
    """A column of names: a number from 1 for each that was seen; the gap is one of them where training had gaps."""

    name: str
    values: tuple[Label, ...]
    gaps: bool

    @property
    def size(self) -> int:
        return len(self.values) + self.gaps

    def encode(self, column: Column) -> Array:
        numbers = {value: i for i, value in enumerate(self.values, 1)}
        found = np.array([numbers.get(value, UNSEEN) for value in column.values.tolist()], np.int64)
        return np.where(column.missing, self.size if self.gaps else UNSEEN, found)


@dataclass(frozen=True)
class Words:
    """A column of text: its first words, a number from 1 for each that is known; 0 fills up."""

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
            known = [] if gap else [numbers[word] for word in words_of(text) if word in numbers][: self.length]
            out[row, : len(known)] = known
        return out


def words_of(text: str) -> list[str]:
    """Its words in small letters."""
    return WORD.findall(text.lower())


Part = Numbers | Dates | Categories | Words


@dataclass(frozen=True)
class Classes:
    """Labels of any type, in their order: the number of a class is its place."""

    values: tuple[Label, ...]
    answers: bool = False  # one score for both: yes is the second

    def encode(self, column: Column) -> Array:
        need_targets(column)
        numbers = {value: i for i, value in enumerate(self.values)}
        found = column.values.tolist()
        for row, value in enumerate(found):
            if value not in numbers:
                known = ", ".join(map(repr, self.values[:8])) + (", …" if len(self.values) > 8 else "")
                raise InputError(
                    f"the label {value!r} in row {row} was not among the classes that the model was trained with: "
                    f"{known}. Leave such rows out, or train with all classes."
                )
        return np.array([numbers[value] for value in found], np.float32 if self.answers else np.int32)


@dataclass(frozen=True)
class Target:
    """Numbers to be predicted, in their own units: a model starts from their mean and spread."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def encode(self, target: Column | Array) -> Array:
        if isinstance(target, Column):
            need_targets(target)
            if target.kind != "number":
                raise InputError(f"the targets are {target.kind}; the model was trained to predict numbers.")
            return target.values.astype(np.float32)
        return np.asarray(target, np.float32)


@dataclass(frozen=True)
class Encoding:
    """The columns of a table as a model takes them; made by `ws.data.Encoder`, kept with the model."""

    numbers: tuple[Numbers, ...] = ()
    dates: tuple[Dates, ...] = ()
    categories: tuple[Categories, ...] = ()
    words: tuple[Words, ...] = ()
    target: Target | Classes | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that are read."""
        parts: list[Part] = [*self.numbers, *self.dates, *self.categories, *self.words]
        return tuple(part.name for part in parts)

    @property
    def width(self) -> int:
        """Columns of `x`."""
        dates = sum(5 + 2 * d.clock + d.gaps for d in self.dates)
        return dates + sum(1 + n.gaps for n in self.numbers)

    @property
    def entries(self) -> tuple[int, int]:
        """Rows of the embeddings of all categories, and of all words; the first of each is for what was not seen."""
        return 1 + sum(c.size for c in self.categories), 1 + sum(w.size for w in self.words)

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The labels by class number; None where numbers are predicted."""
        return self.target.values if isinstance(self.target, Classes) else None

    @property
    def outputs(self) -> int:
        """Scores or numbers that a model has to give for each row."""
        if isinstance(self.target, Classes):
            return 1 if self.target.answers else len(self.target.values)
        return 1 if self.target is None else len(self.target.mean)

    @property
    def units(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Means and spreads of the numbers that are predicted; None of classes."""
        return (self.target.mean, self.target.std) if isinstance(self.target, Target) else None

    def encode(self, frame: Frame) -> dict[str, Array]:
        """`x` (rows, width) as float32, `categories` (rows, columns) and `words` (rows, columns, words) as int32."""
        for name in self.names:
            if name not in frame.columns:
                raise UnknownNameError(
                    f"the table lacks the column {name!r}, which the model was trained with; it has: "
                    f"{', '.join(map(repr, frame))}. Name columns as in training; their order does not matter."
                )
        found: dict[str, Array] = {}
        floats: list[Numbers | Dates] = [*self.numbers, *self.dates]
        scaled = [a for part in floats for a in part.encode(_like(part, frame[part.name]))]
        if scaled:
            found["x"] = np.column_stack(scaled).astype(np.float32)
        if self.categories:
            codes = [c.encode(_like(c, frame[c.name])) for c in self.categories]
            found["categories"] = _apart(codes, [c.size for c in self.categories])
        if self.words:
            longest = max(w.length for w in self.words)
            texts = [np.pad(w.encode(_like(w, frame[w.name])), ((0, 0), (0, longest - w.length))) for w in self.words]
            found["words"] = _apart(texts, [w.size for w in self.words])
        return found

    def table(self, data: Framed) -> Table:
        """The data as arrays: inputs by the names of `encode`, and the targets."""
        targets: dict[str, Array] = {}
        if data.target is not None:
            if self.target is None:
                raise UsageError("the model was trained without targets; leave y out.")
            if isinstance(self.target, Classes) and not isinstance(data.target, Column):
                raise InputError("the model predicts one class per row; give one column of labels.")
            targets = {TARGET: self.target.encode(data.target)}  # type: ignore[arg-type]
        return Table(self.encode(data.inputs), targets, data.weights)

    # -- as JSON -------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        kind = {} if self.target is None else {"kind": type(self.target).__name__}
        return json.dumps({"version": 1, **asdict(self), "target": self.target and {**kind, **asdict(self.target)}})

    @staticmethod
    def from_json(text: str, where: object) -> Encoding:
        """The encoding that a file carries; CheckpointError where it is none."""
        try:
            found = json.loads(text)
            if found["version"] != 1:
                raise ValueError(f"version {found['version']}")
            return Encoding(
                tuple(Numbers(_name(c), *_scale(c), bool(c["gaps"])) for c in found["numbers"]),
                tuple(Dates(_name(c), *_scale(c), bool(c["gaps"]), bool(c["clock"])) for c in found["dates"]),
                tuple(Categories(_name(c), _labels(c["values"]), bool(c["gaps"])) for c in found["categories"]),
                tuple(Words(_name(c), _words(c["values"]), _length(c["length"])) for c in found["words"]),
                _target_of(found["target"]),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{where} holds an encoder that cannot be read ({error}). Save the model again."
            ) from None


def _name(column: Mapping[str, Any]) -> str:
    if not isinstance(column["name"], str):
        raise ValueError(f"a column called {column['name']!r}")
    return column["name"]


def _scale(column: Mapping[str, Any]) -> tuple[float, float]:
    mean, std = float(column["mean"]), float(column["std"])
    if not np.isfinite(mean) or not 0 < std < np.inf:
        raise ValueError(f"a mean of {mean} with a spread of {std}")
    return mean, std


def _length(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= MOST_WORDS:
        raise ValueError(f"texts of {value!r} words")
    return value


def _words(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise ValueError("words that are no text")
    return tuple(values)


def _labels(values: Any) -> tuple[Label, ...]:
    if not isinstance(values, list) or not all(isinstance(v, bool | int | float | str) for v in values):
        raise ValueError("values that are no text or numbers")
    return tuple(values)


def _target_of(found: Mapping[str, Any] | None) -> Target | Classes | None:
    if found is None:
        return None
    if found["kind"] == "Classes":
        return Classes(_labels(found["values"]), bool(found["answers"]))
    scales = [_scale({"mean": mean, "std": std}) for mean, std in zip(found["mean"], found["std"], strict=True)]
    return Target(tuple(mean for mean, _ in scales), tuple(std for _, std in scales))


def _apart(codes: list[Array], sizes: list[int]) -> Array:
    """One table of embeddings serves all columns: the numbers of each begin where those of the one before end."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.stack([np.where(c == UNSEEN, UNSEEN, c + s) for c, s in zip(codes, starts)], axis=1).astype(np.int32)


def _like(part: Part, column: Column) -> Column:
    """The column, of the kind that was learnt."""
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
