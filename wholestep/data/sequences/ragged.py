"""`Ragged`: sequences of different lengths, packed into rows of one length.

Padding every sequence to the longest wastes most of a batch.  Instead several sequences share a row (packing,
arXiv:2107.02027); best-fit decreasing bin packing leaves a few percent of padding.  A row also contains the offsets of
its sequences, which tell layers where each begins and ends, and a weight for each target, 0 at padding, so that losses
and metrics are exact means over the data.  Packed rows are an ordinary table: the native loop, shuffling, workers and
checkpoints need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from wholestep.compiler.frontend.layers.segments import OFFSETS
from wholestep.data.sequences.packing import PackedTable, Packing, pack
from wholestep.data.sequences.values import (
    Integers,
    Values,
    arrow_lists,
    as_numbers,
    is_ragged,
    named_values,
    ranges,
    read_values,
    without_pandas,
)
from wholestep.data.table import INPUT, TARGET, Array
from wholestep.errors import InputError, OptionError, ShapeError, UsageError

NEXT = "next"


class Ragged:
    """Sequences of different lengths as data for `ws.fit`, `evaluate`, `predict` and `ws.DataLoader`.

    Several sequences share a row of `capacity` elements, and stay independent of each other: attention and convolutions
    see one sequence, positions and recurrent states restart in each.  A model with a layer that would mix the sequences
    of a row is refused.  `batch_size` counts rows.  Lists of sequences given to `ws.fit` directly are packed with the
    defaults below.

    Args:
        sequences: a list of arrays, (length,) or (length, features); an Arrow or Polars column of lists; or a pair
            `(values, offsets)`, where sequence i is `values[offsets[i]:offsets[i + 1]]`.  A dict has one of these
            for each argument of `forward`, with equal lengths.
        targets: "next": each element is predicted from the elements before it, as in a language model.  A list of
            arrays as long as the sequences, or a pair: a target for each element.  An array: a target for each
            sequence, for a model with `ws.nn.SequencePool`.  None: for `predict`.
        capacity: elements of a row; by default the longest sequence, rounded up to a multiple of 16.
        sequences_per_row: the largest number of sequences in a row, the length of the axis that `ws.nn.SequencePool`
            returns; by default capacity / 4.
        sample_weight: the weight of each sequence.

    Example: `ws.fit(model, ws.data.Ragged(texts, "next", capacity=256), loss="cross_entropy")`.
    """

    def __init__(
        self,
        sequences: object,
        targets: object = None,
        *,
        capacity: int | None = None,
        sequences_per_row: int | None = None,
        sample_weight: object = None,
    ) -> None:
        inputs = named_values(sequences, INPUT, "sequences")
        first = next(iter(inputs.values()))
        for name, values in inputs.items():
            if not np.array_equal(values.lengths, first.lengths):
                raise ShapeError(
                    f"Ragged: all inputs need sequences of the same lengths; those of {name!r} differ from the first's."
                )
        if len(first) == 0:
            raise InputError("Ragged: there are no sequences. Training needs at least one.")
        self._next = isinstance(targets, str)
        if self._next:
            if targets != NEXT or len(inputs) > 1:
                raise UsageError(
                    f"Ragged: targets={targets!r}: expected arrays, None, or 'next' if there is a single input."
                )
            self.targets: dict[str, Values | Array] = {TARGET: first.without(1, 0)}
            inputs = {name: values.without(0, 1) for name, values in inputs.items()}
        else:
            self.targets = {} if targets is None else _targets(targets, first.lengths)
        self.inputs = inputs
        self.weights = None if sample_weight is None else _weights(sample_weight, len(first))
        longest = int(self.lengths.max())
        self.capacity = _size("capacity", capacity, max(-(-longest // 16) * 16, 16))
        self.slots = _size("sequences_per_row", sequences_per_row, self.capacity // 4 + 1)
        if longest > self.capacity:
            raise InputError(
                f"Ragged: the longest sequence has {longest} elements, but a row has {self.capacity}. Give capacity="
                f"{longest}, or cut the sequences: [s[:{self.capacity}] for s in sequences]."
            )
        if self.slots == self.capacity:
            self.slots += 1  # so that outputs for elements and for sequences have different shapes

    # -- a data set ----------------------------------------------------------------------------------------------

    @property
    def lengths(self) -> Integers:
        """The length of each sequence; for "next" the last element is not counted, since it is only a target."""
        return next(iter(self.inputs.values())).lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        lengths, table = self.lengths, self.table
        return (
            f"{len(self)} sequences of {lengths.min()} to {lengths.max()} elements in {len(table)} rows of "
            f"{self.capacity}, {100 * table.padding:.1f} % of it padding"
        )

    def select(self, sequences: Integers) -> Ragged:
        """The data set of some of the sequences, with rows of the same size."""
        part = object.__new__(Ragged)
        part.capacity, part.slots, part._next = self.capacity, self.slots, self._next
        part.inputs = {name: values.select(sequences) for name, values in self.inputs.items()}
        part.targets = {
            n: t.select(sequences) if isinstance(t, Values) else t[sequences] for n, t in self.targets.items()
        }
        part.weights = None if self.weights is None else self.weights[sequences]
        return part

    def for_rows_of(self, capacity: int, slots: int) -> Ragged:
        """The same sequences, to be packed into rows of another size."""
        part = self.select(np.arange(len(self)))
        longest = int(self.lengths.max())
        if longest > capacity:
            raise InputError(
                f"a sequence of {longest} elements does not fit in the rows of the training data, which have "
                f"{capacity}. Give the training data capacity={longest}, or cut the sequence."
            )
        part.capacity, part.slots = capacity, slots
        return part

    # -- rows ----------------------------------------------------------------------------------------------------

    @property
    def _per_sequence(self) -> bool:
        return any(not isinstance(t, Values) for t in self.targets.values())

    @cached_property
    def places(self) -> Packing:
        """The assignment of sequences to rows; if targets are per element, empty sequences are in no row (-1)."""
        lengths = self.lengths
        packed = np.flatnonzero(lengths > 0) if self.targets and not self._per_sequence else np.arange(len(lengths))
        if not len(packed):
            raise InputError(
                "Ragged: every sequence is empty"
                + (" or has only one element, so there is none to predict." if self._next else ".")
                + " Give longer sequences."
            )
        row, slot = np.full((2, len(lengths)), -1)
        row[packed], slot[packed], rows = pack(lengths[packed], self.capacity, self.slots)
        return Packing(row, slot, rows)

    @cached_property
    def table(self) -> PackedTable:
        """The packed rows: inputs, the offsets of their sequences, targets, and weights that are 0 at padding."""
        packing = self.places
        offsets = np.zeros((packing.rows, self.slots + 1), np.int32)
        order = self._sequences_in_order
        offsets[packing.row[order], packing.slot[order] + 1] = self.lengths[order]
        offsets = np.cumsum(offsets, axis=1, dtype=np.int32)
        at = self._elements(offsets)
        inputs = {name: self._rows(v, at, np.zeros((), v.values.dtype)) for name, v in self.inputs.items()}
        targets = {
            name: self._rows(t, at, t.values[0]) if isinstance(t, Values) else self._slots(t, t[order[0]])
            for name, t in self.targets.items()
        }
        return PackedTable({**inputs, OFFSETS: offsets}, targets, self._weights(at) if targets else None)

    @property
    def _sequences_in_order(self) -> Integers:
        """The packed sequences, row by row."""
        packed = np.flatnonzero(self.places.row >= 0)
        return packed[np.lexsort((self.places.slot[packed], self.places.row[packed]))]

    def _elements(self, offsets: Array) -> Integers:
        """The position of each element in the flattened rows, in the order of `_sequences_in_order`."""
        order, packing = self._sequences_in_order, self.places
        starts = packing.row[order] * self.capacity + offsets[packing.row[order], packing.slot[order]]
        return ranges(starts, self.lengths[order])

    def _rows(self, values: Values, at: Integers, padding: Any) -> Array:
        inner = values.values.shape[1:]
        rows = np.empty((self.places.rows * self.capacity, *inner), values.values.dtype)
        rows[...] = padding
        rows[at] = values.values[values.positions(self._sequences_in_order)]
        return rows.reshape((self.places.rows, self.capacity, *inner))

    def _slots(self, values: Array, padding: Any) -> Array:
        order, packing = self._sequences_in_order, self.places
        rows = np.empty((packing.rows, self.slots, *values.shape[1:]), values.dtype)
        rows[...] = padding
        rows[packing.row[order], packing.slot[order]] = values[order]
        return rows

    def _weights(self, at: Integers) -> Array:
        """The weight of each target, (rows, capacity) or (rows, sequences)."""
        order = self._sequences_in_order
        each = np.ones(len(self), np.float32) if self.weights is None else self.weights
        if self._per_sequence:
            return self._slots(each, 0.0)
        rows = np.zeros(self.places.rows * self.capacity, np.float32)
        rows[at] = np.repeat(each[order], self.lengths[order])
        return rows.reshape((self.places.rows, self.capacity))

    def unpack(self, outputs: Any) -> Any:
        """Model outputs by sequence: a list of arrays, or one array if the model gives one row per sequence."""
        if isinstance(outputs, Mapping):
            return {name: self.unpack(out) for name, out in outputs.items()}
        if isinstance(outputs, tuple | list):
            return type(outputs)(self.unpack(out) for out in outputs)
        packing, table = self.places, self.table
        if outputs.shape[1] == self.slots:
            return outputs[packing.row, packing.slot]
        starts = table.inputs[OFFSETS][packing.row, packing.slot]
        return [outputs[r, a : a + n] for r, a, n in zip(packing.row, starts, self.lengths, strict=True)]


# -- reading ------------------------------------------------------------------------------------------------------


def as_ragged(data: object, labels: object = None) -> Ragged | None:
    """`Ragged` from `x`, `(x, y)` or `(x, y, sample_weight)` if x has sequences of different lengths, else None."""
    if isinstance(data, Ragged):
        return data
    parts = (data, labels) if labels is not None else data if isinstance(data, tuple) else (data,)
    if not 1 <= len(parts) <= 3 or not is_ragged(parts[0]):
        return None
    x, y, weight = (*parts, None, None)[:3]
    return Ragged(x, y, sample_weight=weight)


def _targets(targets: object, lengths: Integers) -> dict[str, Values | Array]:
    """Targets by output name: `Values` if they are lists, one target per element; an array if one per sequence."""
    named = targets if isinstance(targets, Mapping) else {TARGET: targets}
    read = {str(name): _target(value, lengths, f"targets[{name!r}]") for name, value in named.items()}
    if len({isinstance(t, Values) for t in read.values()}) > 1:
        raise UsageError(
            "Ragged: some targets have one value per element, others one per sequence; all must be alike. Repeat a "
            "sequence's target for each of its elements."
        )
    return read


def _target(value: Any, lengths: Integers, what: str) -> Values | Array:
    value = without_pandas(value)
    lists = isinstance(value, list) and len(value) > 0 and all(np.ndim(v) > 0 for v in value)
    if lists or (isinstance(value, tuple) and len(value) == 2) or arrow_lists(value) is not None:
        read = read_values(value, what)
        if not np.array_equal(read.lengths, lengths):
            raise ShapeError(
                f"Ragged: {what} must have one target per element, so lists of the same lengths as the sequences; the "
                "lengths differ. For one target per sequence give an array: np.array(targets)."
            )
        return read
    array = as_numbers(value, what)
    if len(array) != len(lengths):
        raise ShapeError(f"Ragged: {what} has {len(array)} targets for {len(lengths)} sequences; give one for each.")
    return array


def _weights(value: object, count: int) -> Array:
    array = np.asarray(value, np.float32)
    if array.shape != (count,):
        raise ShapeError(
            f"Ragged: sample_weight must have one number for each of {count} sequences; received shape {array.shape}."
        )
    return array


def _size(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 2:
        raise OptionError(f"Ragged: {name} must be an integer of at least 2; received {value!r}.")
    return int(value)
