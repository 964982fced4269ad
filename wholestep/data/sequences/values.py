"""Sequences of different lengths as flat values with offsets, read from lists, Arrow columns and pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.data.table import Array
from wholestep.errors import InputError, ShapeError, UsageError

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Values:
    """Concatenated sequences: `values[offsets[i] : offsets[i + 1]]` is sequence i."""

    values: Array
    offsets: Integers

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Integers:
        return np.diff(self.offsets)

    def positions(self, sequences: Integers) -> Integers:
        """The concatenated positions of these sequences in `values`."""
        return ranges(self.offsets[sequences], self.lengths[sequences])

    def select(self, sequences: Integers) -> Values:
        return Values(self.values[self.positions(sequences)], offsets_of(self.lengths[sequences]))

    def without(self, first: int, last: int) -> Values:
        """The sequences without the `first` elements at their beginning and the `last` ones at their end."""
        lengths = np.maximum(self.lengths - first - last, 0)
        return Values(self.values[ranges(self.offsets[:-1] + first, lengths)], offsets_of(lengths))


def offsets_of(lengths: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def ranges(starts: Integers, lengths: Integers) -> Integers:
    """The concatenated ranges from `starts[i]` to `starts[i] + lengths[i]`."""
    before = np.cumsum(lengths) - lengths
    positions: Integers = np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)
    return positions


# -- reading ------------------------------------------------------------------------------------------------------


def is_ragged(x: object) -> bool:
    """Is this a list of arrays of different lengths, a column of lists, or a dict of such data?"""
    if isinstance(x, Mapping):
        return bool(x) and all(map(is_ragged, x.values()))
    x = without_pandas(x)
    if isinstance(x, list) or (isinstance(x, np.ndarray) and x.dtype == object and x.ndim == 1):
        sizes = {len(s) for s in x if isinstance(s, list | np.ndarray) and np.ndim(s[:1] if len(s) else ()) > 0}
        return len(sizes) > 1 and all(isinstance(s, list | np.ndarray) for s in x)
    return arrow_lists(x) is not None


def without_pandas(x: Any) -> object:
    """A pandas column as a list, since pandas needs pyarrow to convert it to Arrow; other data unchanged."""
    return list(x) if hasattr(x, "iloc") and str(getattr(x, "dtype", "")) == "object" else x


def arrow_lists(x: Any) -> Values | None:
    """A column of lists from Arrow or Polars; None for other data, and for streams, which can be read only once."""
    if not hasattr(x, "__arrow_c_stream__") or not hasattr(x, "__len__") or hasattr(x, "iloc"):
        return None
    from wholestep.data.tables.arrow import lists_of  # imported here because few sequences are Arrow's

    lists = lists_of(x)
    return None if lists is None else Values(*lists)


def named_values(data: object, name: str, what: str) -> dict[str, Values]:
    if isinstance(data, Mapping):
        return {str(key): read_values(value, f"{what}[{key!r}]") for key, value in data.items()}
    return {name: read_values(data, what)}


def read_values(data: Any, what: str) -> Values:
    if isinstance(data, tuple) and len(data) == 2:
        return _from_offsets(np.asarray(data[0]), np.asarray(data[1]), what)
    data = without_pandas(data)
    if (lists := arrow_lists(data)) is not None:
        return lists
    if isinstance(data, str | bytes) or not isinstance(data, Sequence | np.ndarray):
        raise UsageError(
            f"Ragged: {what} must be a list of arrays, a column of lists, or a pair (values, offsets); received "
            f"{type(data).__name__}."
        )
    return _join([as_numbers(s, f"{what}[{i}]") for i, s in enumerate(data)], what)


def as_numbers(sequence: Any, what: str) -> Array:
    array = np.asarray(sequence.detach().cpu().numpy() if hasattr(sequence, "detach") else sequence)
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise InputError(
            f"Ragged: {what} must be an array of numbers, (length,) or (length, features); received {sequence!r:.60}. "
            "Number the symbols of a text: [vocabulary[c] for c in text]."
        )
    return array


def _join(arrays: list[Array], what: str) -> Values:
    """Concatenates arrays; empty ones may have any dtype."""
    full = [a for a in arrays if len(a)] or arrays[:1]
    if len(inner := {a.shape[1:] for a in full}) > 1:
        raise ShapeError(f"Ragged: the elements of {what} have different shapes: {sorted(inner)}.")
    values = np.concatenate(full) if full else np.zeros(0, np.int32)
    return Values(values, offsets_of(np.array([len(a) for a in arrays], np.int64)))


def _from_offsets(values: Array, offsets: Array, what: str) -> Values:
    valid = offsets.ndim == 1 and len(offsets) > 0 and offsets.dtype.kind in "iu" and values.ndim > 0
    if not valid or offsets[0] != 0 or offsets[-1] != len(values) or (np.diff(offsets.astype(np.int64)) < 0).any():
        raise InputError(
            f"Ragged: the offsets of {what} must be integers that increase from 0 to "
            f"{len(values) if values.ndim else 'n'}, the number of values; received "
            f"{np.array2string(offsets, threshold=6)}. Sequence i is "
            "values[offsets[i]:offsets[i + 1]]."
        )
    return Values(values, offsets.astype(np.int64))
