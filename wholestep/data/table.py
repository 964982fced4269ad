"""Data sets in memory as one table: named arrays with one row per example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import numpy as np

from wholestep.compiler.frontend.step import ROW_NUMBERS
from wholestep.compiler.ir.masked_arrays import is_data_set, is_sparse, refuse_mask
from wholestep.compiler.ir.types import letter_of
from wholestep.compiler.runtime.arrays import from_dlpack
from wholestep.errors import InputError, ShapeError, UsageError

Array = np.ndarray[Any, Any]
Columns = Mapping[str, Array]

INPUT, TARGET, WEIGHT = "x", "labels", "sample_weight"


@dataclass(frozen=True)
class Batch:
    """Rows of a data set: inputs, targets and maybe a weight for each.

    A single input or target is an array, several are a dict by name.  `data` and `labels` are other names of the two.
    """

    inputs: Any
    targets: Any = None
    weights: Array | None = None

    @property
    def data(self) -> Any:
        return self.inputs

    @property
    def labels(self) -> Any:
        return self.targets

    def __iter__(self) -> Iterator[Any]:
        """`for xb, yb in loader`: inputs, then targets and weights if the data has them."""
        yield from (part for part in (self.inputs, self.targets, self.weights) if part is not None)

    @property
    def rows(self) -> int:
        """The number of examples."""
        return len(next(iter(self.named().values())))

    def named(self) -> dict[str, Array]:
        """The arrays under the names of the session's inputs."""
        out = dict(self.inputs) if isinstance(self.inputs, Mapping) else {INPUT: self.inputs}
        if self.targets is not None:
            out.update(self.targets if isinstance(self.targets, Mapping) else {TARGET: self.targets})
        if self.weights is not None:
            out[WEIGHT] = self.weights
        return out


@dataclass(frozen=True)
class Table:
    """Arrays in memory (or mapped into it), one row per example."""

    inputs: Columns
    targets: Columns
    weights: Array | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def columns(self) -> dict[str, Array]:
        """All arrays by name."""
        extra = {} if self.weights is None else {WEIGHT: self.weights}
        return {**self.inputs, **self.targets, **extra}

    def take(self, rows: Array) -> Batch:
        """The examples at some rows, in that order."""
        part = self.select(rows)
        targets = _single(part.targets, TARGET) if part.targets else None
        return Batch(_single(part.inputs, INPUT), targets, part.weights)

    def select(self, rows: Array) -> Table:
        """A new table with some of the rows."""
        return type(self)(
            {name: a[rows] for name, a in self.inputs.items()},
            {name: a[rows] for name, a in self.targets.items()},
            None if self.weights is None else self.weights[rows],
        )


def with_row_numbers(table: Table) -> Table:
    """The table with the number of each row as one more input."""
    numbers = np.arange(len(table), dtype=np.int32)
    return replace(table, inputs={**table.inputs, ROW_NUMBERS: numbers})


def _single(columns: Columns, name: str) -> Any:
    return columns[name] if list(columns) == [name] else columns


def as_table(data: object, labels: object = None) -> Table:
    """A table from `x`, `(x, y)`, `(x, y, sample_weight)` or `{"name": array}`, x and y arrays or dicts of arrays.

    Example: `as_table((images, labels))`.
    """
    framed = _table_of_frame(data, labels)
    if framed is not None:
        return framed
    inputs, targets, weights = _parts(data, labels)
    table = Table(
        _columns(inputs, INPUT, "inputs"),
        {} if targets is None else _columns(targets, TARGET, "targets"),
        None if weights is None else _array(weights, WEIGHT),
    )
    lengths = {name: len(a) for name, a in table.columns.items()}
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"all arrays need one row per example; received {lengths} rows. Cut them to one length.")
    if next(iter(lengths.values())) == 0:
        raise InputError("the data set is empty: its arrays have 0 rows. Training needs at least one example.")
    return table


def _table_of_frame(data: object, labels: object) -> Table | None:
    """A frame of numbers as a table; None for data that is not a frame."""
    if isinstance(data, Table | np.ndarray):
        return None
    from wholestep.data.tables.frame_data import as_framed, plain_table  # imported here because it imports this module

    framed = as_framed(data if labels is None else (data, labels))
    return None if framed is None else plain_table(framed)


def _parts(data: object, labels: object) -> tuple[object, object, object]:
    if isinstance(data, Table):
        return data.inputs, data.targets or None, data.weights
    if isinstance(data, Batch):
        return data.inputs, data.targets, data.weights
    if labels is not None:
        return data, labels, None
    if isinstance(data, tuple | list) and 1 <= len(data) <= 3 and not np.isscalar(data[0]):
        x, y, weights = (*data, None, None)[:3]
        return x, y, weights
    return data, None, None


def _columns(data: object, name: str, what: str) -> dict[str, Array]:
    if isinstance(data, Mapping):
        if not data:
            raise UsageError(f"the {what} are an empty dict; give at least one named array.")
        return {str(key): _array(value, str(key)) for key, value in data.items()}
    if name == INPUT and is_several_inputs(data):
        return {name: _array(value, name) for name, value in zip(names_by_position(len(data)), data, strict=True)}
    return {name: _array(data, name)}


def is_several_inputs(x: object) -> TypeGuard[tuple[Any, ...]]:
    """Are these the arrays of several inputs, `(a, b)`?  A tuple of numbers is a row."""
    return isinstance(x, tuple) and any(len(getattr(part, "shape", ())) > 0 for part in x)


def names_by_position(count: int) -> list[str]:
    """The names of several unnamed inputs: `x0`, `x1`, … become the arguments of `forward` in order."""
    return [f"{INPUT}{i}" for i in range(count)] if count > 1 else [INPUT]


def _array(value: object, name: str) -> Array:
    refuse_mask(value, f"{name!r}")
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(_from_tensor(value))
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(
            f"{name!r} is not an array of numbers: {error}; received {type(value).__name__}: {_short(value)}. Give "
            "rows of one length: pad or crop them."
        ) from None
    if array.dtype == object:
        raise UsageError(
            f"{name!r} is not an array of numbers; received {type(value).__name__}: {_short(value)}. {_advice(name)}"
        )
    if array.ndim == 0:
        raise ShapeError(f"{name!r} is a single number, {array}; data has one row per example.")
    return array


def _advice(name: str) -> str:
    """The fix for an array of objects: text, missing values and numbers in one array."""
    if name == TARGET:
        return "Number the classes: names, y = np.unique(y, return_inverse=True); or give a frame and an encoder."
    return "Give columns, ws.data.as_frame({'age': ages, 'city': cities}), to ws.models.Tabular()."


def _from_tensor(value: Any) -> Any:
    """A torch tensor, or an object of DLPack, as an array; everything else as it is."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else from_dlpack(value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# -- checks that cost a pass over the data ----------------------------------------------------------------------


def check_finite(table: Table) -> None:
    """Raise InputError for NaN or infinity, with the first position.  Memory maps are not read."""
    for name, array in table.columns.items():
        if letter_of(array.dtype) != "f" or isinstance(array, np.memmap):
            continue
        with np.errstate(all="ignore"):
            suspect = not np.isfinite(np.add.reduce(array, axis=None))  # a sum keeps every NaN and infinity
        if suspect and not np.isfinite(array).all():
            position = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise InputError(
                f"{name!r} holds {array[position]} at {list(position)}; every weight would become NaN. Drop the row "
                "or replace the value, np.nan_to_num(x); nonfinite='ignore' is for a model that replaces it itself."
            )


def _is_of_frames(data: object) -> bool:
    from wholestep.data.tables.frame import is_frame, is_series

    return is_frame(data) or is_series(data)


def is_table_like(data: object) -> bool:
    """Is the data arrays, or tuples or dicts of arrays, which form a table?  A list of tuples or dicts is batches."""
    if isinstance(data, Table | np.ndarray) or hasattr(data, "detach") or is_sparse(data) or _is_of_frames(data):
        return True
    if hasattr(data, "__dlpack__"):
        return True
    if isinstance(data, Mapping):
        return all(is_table_like(v) for v in data.values())
    if isinstance(data, list):
        return bool(data) and not isinstance(data[0], tuple | Mapping | Batch)
    if not isinstance(data, tuple):
        return False
    # A data set in place of an array is refused where arrays are read, and the error says what to write.
    return 1 <= len(data) <= 3 and all(v is None or is_data_set(v) or is_table_like(v) for v in data)
