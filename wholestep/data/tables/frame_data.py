"""A frame as training data: the input columns, the target, and the weight of each row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.data.table import INPUT, TARGET, Table
from wholestep.data.tables.column import Array, Column
from wholestep.data.tables.frame import Frame, as_column, as_frame, is_frame
from wholestep.errors import DTypeError, InputError, ShapeError, UsageError


@dataclass(frozen=True)
class Framed:
    """A frame with its targets and weights, one row per example."""

    inputs: Frame
    target: Column | Array | None = None  # an array of several numbers for each row, or one column
    weights: Array | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def select(self, rows: Array) -> Framed:
        """Select the rows at these indices."""
        target = self.target.select(rows) if isinstance(self.target, Column) else self.target
        return Framed(
            self.inputs.select(rows),
            target[rows] if isinstance(target, np.ndarray) else target,
            None if self.weights is None else self.weights[rows],
        )


def as_framed(data: object, dicts: bool = False) -> Framed | None:
    """`frame`, `(frame, y)` or `(frame, y, weights)`, y and weights columns or names of columns; None: no frame.

    With `dicts`, a dict of columns counts as a frame; elsewhere it is a dict of arrays, one per input of the model.
    """
    if isinstance(data, Framed):
        return data
    parts = data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 3 or not (is_frame(parts[0]) or (dicts and isinstance(parts[0], Mapping))):
        return None
    frame, y, weights = (as_frame(parts[0]), *parts[1:], None, None)[:3]
    others = [name for part in (y, weights) for name in _names_in(part, frame)]
    framed = Framed(
        frame.without(*others),
        None if y is None else _target(frame, y),
        None if weights is None else _weights(frame, weights),
    )
    lengths = {"inputs": len(frame)} | {
        n: len(v) for n, v in (("targets", framed.target), ("weights", framed.weights)) if v is not None
    }
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"a table has one target per row; received {lengths} rows. Cut them to one length.")
    if not framed.inputs.columns:
        raise InputError(
            f"the table has no column besides {', '.join(map(repr, others))}; there is nothing to learn from."
        )
    return framed


def need_framed(data: object) -> Framed:
    """Data for an encoder: as `as_framed`, dicts of columns included; UsageError for anything else."""
    rows = as_framed(data, dicts=True)
    if rows is None:
        raise UsageError(
            f"an encoder takes a DataFrame, a dict of columns, or (frame, 'target'); received {type(data).__name__}. "
            "For an array name its columns: ws.data.as_frame({'age': x[:, 0], 'fare': x[:, 1]})."
        )
    return rows


def _names_in(part: Any, frame: Frame) -> list[str]:
    """The columns that a target or weight names; a list with one string per row is labels, not names."""
    if isinstance(part, str):
        return [part]
    if not isinstance(part, list | tuple) or not all(isinstance(p, str) for p in part):
        return []
    are_labels = len(part) == len(frame) and not all(p in frame.columns for p in part)
    return [] if are_labels else list(part)


def _target(frame: Frame, y: Any) -> Column | Array:
    if isinstance(y, str):
        return frame[y]
    names = _names_in(y, frame)
    if names:
        return matrix(Frame({name: frame[name] for name in names}), "the targets")
    if is_frame(y):
        inner = as_frame(y)
        return inner[next(iter(inner))] if len(inner.columns) == 1 else matrix(inner, "the targets")
    if isinstance(y, np.ndarray) and y.ndim > 1:
        return y
    return as_column(y, TARGET)


def _weights(frame: Frame, weights: Any) -> Array:
    column = frame[weights] if isinstance(weights, str) else as_column(weights, "sample_weight")
    if column.kind != "number" or column.missing.any():
        raise InputError("sample_weight must have a number for each row; received text, dates or gaps.")
    return column.values.astype(np.float32)


def matrix(frame: Frame, what: str = "the table") -> Array:
    """Columns of numbers without gaps as a matrix (rows, columns) of float32."""
    for name, column in frame.columns.items():
        if column.kind != "number" or column.categorical:
            kind = "categories" if column.categorical else {"text": "text", "date": "dates"}[column.kind]
            raise DTypeError(
                f"the column {name!r} of {what} holds {kind}, and this model computes with numbers. {ENCODE}"
            )
        if column.missing.any():
            row = int(np.flatnonzero(column.missing)[0])
            raise InputError(f"the column {name!r} of {what} has no value in row {row}. {ENCODE}")
    return np.column_stack([column.values.astype(np.float32) for column in frame.columns.values()])


ENCODE = (
    "Train ws.models.Tabular(), which takes text, categories, dates and gaps, or give fit encoder=ws.data.Encoder(), "
    "which encodes them as numbers."
)


def plain_table(framed: Framed) -> Table:
    """A frame of numbers as the arrays that any model takes: `x` and `labels`."""
    target = framed.target
    if isinstance(target, Column):
        need_targets(target)
        if target.kind != "number":
            raise UsageError(
                f"the labels are {target.kind}, e.g. {str(target.values[0])!r}, and this model has no encoder that "
                "numbers the classes: give fit encoder=ws.data.Encoder(), and predict_classes gives the labels back."
            )
        target = _as_targets(target.values)
    return Table({INPUT: matrix(framed.inputs)}, {} if target is None else {TARGET: target}, framed.weights)


def _as_targets(values: Array) -> Array:
    return values.astype(np.float32) if values.dtype.kind == "f" else values.astype(np.int32)


def need_targets(target: Column) -> None:
    """Raise InputError if a target is missing: a row without a target cannot be trained on."""
    if target.missing.any():
        rows = np.flatnonzero(target.missing)
        raise InputError(
            f"the target has no value in {len(rows)} rows, the first of them row {int(rows[0])}. Leave them out: "
            "frame[frame[target].notna()] in pandas, frame.drop_nulls(target) in Polars."
        )
