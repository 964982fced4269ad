"""Frames: tables of pandas, Polars, Arrow and CSV files as named columns.  None of these libraries is imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from wholestep.compiler.ir.types import letter_of
from wholestep.data.tables.column import Array, Column
from wholestep.errors import InputError, ShapeError, UnknownNameError


@dataclass(frozen=True)
class Frame:
    """Named columns of one length: numbers, text, categories, dates; any value may be missing.

    `ws.fit`, `predict` and `evaluate` convert frames of pandas, Polars and Arrow to one; `ws.data.read_frame` reads one
    from a file.  `print` shows the types of its columns and the first rows.

    Example: `ws.data.as_frame(frame).select(rows)`.
    """

    columns: Mapping[str, Column]

    def __repr__(self) -> str:
        return table_text(self)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns:
            raise UnknownNameError(f"the table has no column {name!r}; it has: {', '.join(map(repr, self.columns))}.")
        return self.columns[name]

    def select(self, rows: Array) -> Frame:
        """The same columns at these row indices, in this order."""
        return Frame({name: column.select(rows) for name, column in self.columns.items()})

    def without(self, *names: str) -> Frame:
        """A frame without these columns."""
        for name in names:
            self[name]
        return Frame({name: column for name, column in self.columns.items() if name not in names})


def is_frame(data: object) -> bool:
    """Is it a table with named columns: a `Frame`, a DataFrame of pandas, or an object with Arrow's C interface?"""
    if isinstance(data, Frame):
        return True
    return _is_pandas(data, "columns") or (_speaks_arrow(data) and hasattr(data, "columns"))


def is_series(data: object) -> bool:
    """Is it a single column: a `Column`, a Series of pandas or Polars, or an Arrow array?"""
    return isinstance(data, Column) or (not is_frame(data) and (_is_pandas(data, "name") or _speaks_arrow(data)))


def _is_pandas(data: object, has: str) -> bool:
    return hasattr(data, "iloc") and hasattr(data, "isna") and hasattr(data, has)


def _speaks_arrow(data: object) -> bool:
    return hasattr(data, "__arrow_c_stream__")


def as_frame(data: Any, *, may_be_empty: bool = False) -> Frame:
    """A frame from a pandas or Polars frame, an Arrow table, or a dict of columns.

    Args:
        may_be_empty: take a table without rows, as `model.predict` does.

    Example: `ws.data.as_frame({"age": [31, None, 52], "city": ["Rome", "Oslo", None]})`.
    """
    if isinstance(data, Frame):
        return data
    if _is_pandas(data, "columns"):
        names = [str(name) for name in data.columns]
        refuse_duplicates(names)
        columns = {str(n): _of_pandas(str(n), data.iloc[:, i]) for i, n in enumerate(names)}
    elif isinstance(data, Mapping):
        columns = {str(name): as_column(value, str(name)) for name, value in data.items()}
    else:
        from wholestep.data.tables.arrow import columns_of  # imported here because few programs need it

        columns = columns_of(data)
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"the columns of a table have one length; received {lengths} rows.")
    if not columns or not (may_be_empty or next(iter(lengths.values()))):
        raise InputError(f"the table is empty: {len(columns)} columns, 0 rows. Training needs at least one example.")
    return Frame(columns)


def refuse_duplicates(names: list[str]) -> None:
    """Raise InputError if a table has two columns of the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"the table has two columns called {twice[0]!r}; rename one, since columns are selected by name."
        )


def as_column(data: Any, name: str) -> Column:
    """A column from a series, an array or a list; None and NaN are gaps."""
    if isinstance(data, Column):
        return data
    if _is_pandas(data, "name"):
        return _of_pandas(name, data)
    if _speaks_arrow(data):
        from wholestep.data.tables.arrow import columns_of

        return next(iter(columns_of(data).values()))
    array = data if isinstance(data, np.ndarray) else _plain(data)
    if array.ndim != 1:
        raise ShapeError(f"the column {name!r} has shape {array.shape}; a column has one value per row.")
    return _of_array(name, array)


def _plain(data: Any) -> Array:
    """A list as an array of objects; `np.array` would convert numbers to text in a mixed list."""
    out = np.empty(len(data), object)
    out[:] = list(data)
    return out


def _of_array(name: str, array: Array) -> Column:
    letter = letter_of(array.dtype)
    if letter == "f":
        return Column(array, np.isnan(array))
    if letter in "iub":
        return Column(array, np.zeros(len(array), bool))
    if letter in "M":
        return Column(array.astype("M8[us]"), np.isnat(array))
    if letter == "m":
        return Column(array / np.timedelta64(1, "s"), np.isnat(array))
    if letter in "UT":
        array = array.astype(object)
    elif letter != "O":
        raise InputError(f"the column {name!r} is of dtype {array.dtype}; a table has numbers, text, dates, booleans.")
    return _of_objects(name, array)


_KINDS: tuple[tuple[tuple[type, ...], Any], ...] = (
    ((bool, np.bool_), bool),
    ((int, np.integer), np.int64),
    ((int, float, Decimal, np.number), np.float64),
    ((datetime, date, np.datetime64), "M8[us]"),
    ((str,), object),
)


def _of_objects(name: str, array: Array) -> Column:
    """A column of Python objects: all numbers, all dates or all text, except for missing values."""
    missing = np.array([_is_gap(v) for v in array], bool)
    present = array[~missing]
    kinds = {type(v) for v in present}
    for types, dtype in _KINDS:
        if all(issubclass(k, types) for k in kinds) and (bool not in kinds or dtype is bool):
            values = np.full(len(array), "" if dtype is object else 0, dtype if present.size else np.float64)
            if dtype == "M8[us]":
                present = np.array([np.datetime64(v).astype("M8[us]") for v in present], "M8[us]")
            try:
                values[~missing] = present
            except OverflowError:
                values = values.astype(np.float64)
                values[~missing] = present.astype(np.float64)
            return Column(values, missing)
    odd = next(i for i, v in enumerate(array) if not _is_gap(v) and not isinstance(v, _dominant_kind(kinds)))
    others = sorted(k.__name__ for k in kinds if k is not type(array[odd]))
    raise InputError(
        f"the column {name!r} holds {type(array[odd]).__name__} {array[odd]!r} in row "
        f"{odd}{', besides ' + ', '.join(others) if others else ''}; a column has values of one kind: numbers, "
        f"text, dates or booleans. Convert it, e.g. frame[{name!r}].astype(str), or leave it out."
    )


def _dominant_kind(kinds: set[type]) -> tuple[type, ...]:
    """The types that a mixed column should probably hold: text if there is any, else numbers, else dates."""
    for types in ((str,), (int, float, Decimal, np.number), (datetime, date, np.datetime64)):
        if any(issubclass(k, types) for k in kinds):
            return types
    return ()


def _is_gap(value: object) -> bool:
    """Is it None, NaN, NaT or pandas' NA?  NA cannot be compared, so its type is tested."""
    if isinstance(value, float | np.floating | np.datetime64):
        return bool(value != value)
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _of_pandas(name: str, series: Any) -> Column:
    missing = np.asarray(series.isna(), bool)
    if hasattr(series, "cat"):
        entries = as_column(np.asarray(series.cat.categories), name)
        codes = np.where(missing, 0, np.asarray(series.cat.codes))
        values = entries.values[codes] if len(entries) else np.zeros(len(series))
        return Column(values, missing, categorical=True)
    letter = getattr(series.dtype, "kind", "O")
    if letter == "M" and getattr(series.dtype, "tz", None) is not None:
        series = series.dt.tz_convert("UTC").dt.tz_localize(None)
    if isinstance(series.dtype, np.dtype) and letter != "O":
        return _of_array(name, series.to_numpy())
    if letter in "iufb":  # pandas' nullable dtypes
        dtype = {"i": np.int64, "u": np.uint64, "b": bool, "f": np.float64}[letter]
        return Column(series.to_numpy(dtype=dtype, na_value=0), missing)
    if letter in "Mm":
        return _of_array(name, series.to_numpy(dtype=f"{letter}8[us]"))
    return _of_objects(name, series.to_numpy(dtype=object))


# -- as text ----------------------------------------------------------------------------------------------------

ROWS, COLUMNS, LETTERS = 5, 10, 20  # printed at most
MISSING = "-"


def table_text(frame: Frame) -> str:
    """A head line, names, types, numbers of missing values, and the first rows."""
    names = list(frame)[:COLUMNS]
    head = [_head_cells(frame[name]) for name in names]
    lines = [
        ["", *map(_short, names)],
        ["type", *(frame[name].type_name for name in names)],
        ["missing", *(str(int(frame[name].missing.sum())) for name in names)],
        *([str(row), *(cells[row] for cells in head)] for row in range(min(ROWS, len(frame)))),
    ]
    left_out = [f"{len(frame) - ROWS} more rows"] if len(frame) > ROWS else []
    left_out += [f"{len(frame.columns) - COLUMNS} more columns"] if len(frame.columns) > COLUMNS else []
    text = f"{len(frame)} rows, {len(frame.columns)} columns\n{align_columns(lines)}"
    return f"{text}\n… {', '.join(left_out)}" if left_out else text


def _head_cells(column: Column) -> list[str]:
    head = zip(column.values[:ROWS], column.missing[:ROWS].tolist())
    return [MISSING if missing else _short(_value_text(value)) for value, missing in head]


def _value_text(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text.removesuffix(".000000").removesuffix("T00:00:00")  # of datetime64[us]


def _short(text: str) -> str:
    return text if len(text) <= LETTERS else text[: LETTERS - 1] + "…"


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)).rstrip() for row in rows)
