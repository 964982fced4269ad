"""`Encoding`: a fitted `Encoder`.  Plain data, stored as JSON in the header of a file of weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from wholestep.data.table import TARGET, Table
from wholestep.data.tables.column import Array, Column
from wholestep.data.tables.column_encodings import (
    ISO,
    MOST_WORDS,
    NOTATIONS,
    UNSEEN,
    Categories,
    Classes,
    Dates,
    Label,
    Numbers,
    Part,
    Target,
    Words,
    as_in_training,
    shorten_labels,
)
from wholestep.data.tables.frame import align_columns
from wholestep.data.tables.frame_data import need_framed
from wholestep.errors import CheckpointError, InputError, UnknownNameError, UsageError

IGNORED = "not used"


@dataclass(frozen=True)
class ColumnSummary:
    """A summary of a column in the training rows, used only by the report."""

    name: str
    holds: str  # "int64", "text", "date", "category", …
    missing: int  # number of rows without a value
    remark: str = ""

    @staticmethod
    def of(name: str, column: Column, remark: str = "") -> ColumnSummary:
        return ColumnSummary(name, column.type_name, int(column.missing.sum()), remark)

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> ColumnSummary:
        if not all(isinstance(stored[key], str) for key in ("name", "holds", "remark")):
            raise ValueError(f"a summary of the column {stored['name']!r} that is not text")
        return ColumnSummary(stored["name"], stored["holds"], int(stored["missing"]), stored["remark"])


@dataclass(frozen=True)
class Encoding:
    """A fitted encoder: how each column of a table becomes numbers.  `print` shows it as a table.

    `ws.data.Encoder().fit(frame)` returns an encoding; a trained `ws.models.Tabular` has one as `model.encoder`.
    """

    numbers: tuple[Numbers, ...] = ()
    dates: tuple[Dates, ...] = ()
    categories: tuple[Categories, ...] = ()
    words: tuple[Words, ...] = ()
    target: Target | Classes | None = None
    summary: tuple[ColumnSummary, ...] = ()  # one per column of the training rows, in order

    def __repr__(self) -> str:
        return report(self)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The encoded columns, in the order in which a model reads them."""
        return (*self.numbers, *self.dates, *self.categories, *self.words)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the encoded columns, in that order."""
        return tuple(part.name for part in self.parts)

    @property
    def width(self) -> int:
        """The number of columns of `x`."""
        dates = sum(5 + 2 * d.clock + d.gaps for d in self.dates)
        return dates + sum(1 + n.gaps for n in self.numbers)

    @property
    def entries(self) -> tuple[int, int]:
        """The rows of the embedding tables of categories and of words; row 0 of each is for unknown values."""
        return 1 + sum(c.size for c in self.categories), 1 + sum(w.size for w in self.words)

    @property
    def classes(self) -> tuple[Label, ...] | None:
        """The labels by class index; None for numeric targets."""
        return self.target.values if isinstance(self.target, Classes) else None

    @property
    def outputs(self) -> int:
        """Number of outputs per row: scores of classes, or predicted numbers."""
        if isinstance(self.target, Classes):
            return 1 if self.target.answers else len(self.target.values)
        return 1 if self.target is None else len(self.target.mean)

    @property
    def units(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Means and standard deviations of numeric targets; None for classes."""
        return (self.target.mean, self.target.std) if isinstance(self.target, Target) else None

    def encode(self, data: Any) -> dict[str, Array]:
        """The input columns of a frame as arrays; kinds without columns are omitted.

        `x` (rows, width) is float32, `categories` (rows, columns) and `words` (rows, columns, words) are int32.

        Args:
            data: a DataFrame of pandas or Polars, a `ws.data.Frame` or a dict of columns.

        Example: `model.encoder.encode(frame)["x"]`.
        """
        frame = need_framed(data).inputs
        for name in self.names:
            if name not in frame.columns:
                raise UnknownNameError(
                    f"the table lacks the column {name!r}, which the model was trained with; it has: "
                    f"{', '.join(map(repr, frame))}. Name columns as in training; their order does not matter."
                )
        arrays: dict[str, Array] = {}
        floats: list[Numbers | Dates] = [*self.numbers, *self.dates]
        scaled = [a for part in floats for a in part.encode(as_in_training(part, frame[part.name]))]
        if scaled:
            arrays["x"] = np.column_stack(scaled).astype(np.float32)
        if self.categories:
            codes = [c.encode(as_in_training(c, frame[c.name])) for c in self.categories]
            arrays["categories"] = _offset_codes(codes, [c.size for c in self.categories])
        if self.words:
            longest = max(w.length for w in self.words)
            texts = [
                np.pad(w.encode(as_in_training(w, frame[w.name])), ((0, 0), (0, longest - w.length)))
                for w in self.words
            ]
            arrays["words"] = _offset_codes(texts, [w.size for w in self.words])
        return arrays

    def table(self, data: Any) -> Table:
        """Inputs, targets and weights as arrays: of `frame`, `(frame, target)` or `(frame, target, weights)`."""
        rows = need_framed(data)
        targets: dict[str, Array] = {}
        if rows.target is not None:
            if self.target is None:
                raise UsageError("the model was trained without targets; leave y out.")
            if isinstance(self.target, Classes) and not isinstance(rows.target, Column):
                raise InputError("the model predicts one class per row; give one column of labels.")
            targets = {TARGET: self.target.encode(rows.target)}  # type: ignore[arg-type]
        return Table(self.encode(rows.inputs), targets, rows.weights)

    # -- as JSON -------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        kind = {} if self.target is None else {"kind": type(self.target).__name__}
        return json.dumps({"version": 1, **asdict(self), "target": self.target and {**kind, **asdict(self.target)}})

    @staticmethod
    def from_json(text: str, where: object) -> Encoding:
        """The encoding stored in a file; CheckpointError if it is damaged."""
        try:
            stored = json.loads(text)
            if stored["version"] != 1:
                raise ValueError(f"version {stored['version']}")
            return Encoding(
                tuple(Numbers(_name(c), *_scale(c), bool(c["gaps"])) for c in stored["numbers"]),
                tuple(_dates_of(c) for c in stored["dates"]),
                tuple(Categories(_name(c), _labels(c["values"]), bool(c["gaps"])) for c in stored["categories"]),
                tuple(Words(_name(c), _words(c["values"]), _length(c["length"])) for c in stored["words"]),
                _target_of(stored["target"]),
                tuple(ColumnSummary.from_json(c) for c in stored.get("summary", [])),
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise CheckpointError(
                f"{where} holds an encoder that cannot be read ({error}). Save the model again."
            ) from None


def report(encoding: Encoding) -> str:
    """The report: one line per column, in the order of the table, then the target: type, missing values, encoding,
    remark.
    """
    parts: dict[str, Part] = {part.name: part for part in encoding.parts}
    # Files written before summaries were stored have none.
    summaries = encoding.summary or tuple(ColumnSummary(name, "", 0) for name in parts)
    rows = [
        (s.name, s.holds, str(s.missing), describe(parts[s.name]) if s.name in parts else IGNORED, s.remark)
        for s in summaries
    ]
    if encoding.target is not None:
        rows.append(("(target)", "", "", describe(encoding.target), ""))
    return align_columns([("column", "holds", "missing", "encoded as", "remark"), *rows])


def describe(encoding: Part | Classes | Target) -> str:
    """A short description of how one column is encoded."""
    match encoding:
        case Numbers(mean=0.0, std=1.0, gaps=gaps):
            return f"number{_gap_text(gaps)}"
        case Numbers(mean=mean, std=std, gaps=gaps):
            return f"number, (x - {mean:.4g}) / {std:.4g}{_gap_text(gaps)}"
        case Dates(clock=clock, notation=notation, gaps=gaps):
            return f"date ({notation}): seconds, year, week{', day' if clock else ''}{_gap_text(gaps)}"
        case Categories(values=values, gaps=gaps):
            return f"category, {len(values)} values{' and missing' if gaps else ''}, embedded"
        case Words(values=values, length=length):
            return f"words, vocabulary of {len(values)}, first {length} of a text, embedded"
        case Classes(values=values):
            return f"{len(values)} classes: {shorten_labels(values)}"
        case Target(mean=means, std=stds):
            return "; ".join(f"number, mean {m:.4g}, std {s:.4g}" for m, s in zip(means, stds))


def _gap_text(gaps: bool) -> str:
    return ", 1 where missing" if gaps else ""


def _name(column: Mapping[str, Any]) -> str:
    if not isinstance(column["name"], str):
        raise ValueError(f"a column called {column['name']!r}")
    return column["name"]


def _scale(column: Mapping[str, Any]) -> tuple[float, float]:
    mean, std = float(column["mean"]), float(column["std"])
    if not np.isfinite(mean) or not 0 < std < np.inf:
        raise ValueError(f"a mean of {mean} with a spread of {std}")
    return mean, std


def _dates_of(column: Mapping[str, Any]) -> Dates:
    notation = column.get("notation", ISO)
    if notation not in NOTATIONS:
        raise ValueError(f"dates written as {notation!r}")
    return Dates(_name(column), *_scale(column), bool(column["gaps"]), bool(column["clock"]), notation)


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


def _target_of(stored: Mapping[str, Any] | None) -> Target | Classes | None:
    if stored is None:
        return None
    if stored["kind"] == "Classes":
        return Classes(_labels(stored["values"]), bool(stored["answers"]))
    scales = [_scale({"mean": mean, "std": std}) for mean, std in zip(stored["mean"], stored["std"], strict=True)]
    return Target(tuple(mean for mean, _ in scales), tuple(std for _, std in scales))


def _offset_codes(codes: list[Array], sizes: list[int]) -> Array:
    """All columns share one embedding table: offset the codes of each column by the sizes of the columns before it."""
    starts = np.cumsum([0, *sizes[:-1]])
    return np.stack([np.where(c == UNSEEN, UNSEEN, c + s) for c, s in zip(codes, starts)], axis=1).astype(np.int32)
