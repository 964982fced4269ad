"""Sources of examples: arrays, data sets read row by row, iterables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.data.sequences.ragged import as_ragged
from wholestep.data.table import TARGET, Array, Batch, Table, as_table, is_several_inputs, is_table_like
from wholestep.data.tables.frame_data import as_framed
from wholestep.errors import InputError, UsageError


class RowSource:
    """A data set with `len()` and `[i]`, each item `(x, y)`, `(x, y, weight)`, `x` or a dict: a torch Dataset is one.

    x is an array, a dict of arrays by the names of `forward`'s arguments, or a tuple of arrays in their order.
    """

    def __init__(
        self, items: Any, rows: NDArray[np.int64] | None = None, collate: Callable[[list[Any]], Any] | None = None
    ) -> None:
        self.items, self.rows = items, rows  # the rows of one part of `ws.data.split`; None: all
        self.collate = collate  # a function from a list of examples to a batch; None: examples are stacked
        if len(self) == 0:
            raise InputError("the data set is empty: len() is 0. Training needs at least one example.")

    def __len__(self) -> int:
        return len(self.items if self.rows is None else self.rows)

    def __getitem__(self, row: int) -> Any:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        return self.items[int(row if self.rows is None else self.rows[row])]

    def __repr__(self) -> str:
        return f"{len(self)} examples of {type(self.items).__name__}"

    def select(self, rows: NDArray[np.int64]) -> RowSource:
        """Select the examples at some rows without reading them."""
        return RowSource(self.items, rows if self.rows is None else self.rows[rows], self.collate)

    def with_collate(self, collate: Callable[[list[Any]], Any] | None) -> RowSource:
        """The same examples, whose batches a function makes."""
        return RowSource(self.items, self.rows, collate)

    @property
    def targets(self) -> Mapping[str, Array]:
        """The targets of all examples: the attribute `targets` of the data set, or read one by one."""
        stored = getattr(self.items, "targets", None)
        if stored is not None and not callable(stored) and len(stored) == len(self.items):
            return {TARGET: np.asarray(stored)[slice(None) if self.rows is None else self.rows]}
        if not isinstance(self[0], tuple | list) or len(self[0]) < 2:
            return {}
        targets = _stack([self[row][1] for row in range(len(self))])
        return targets if isinstance(targets, Mapping) else {TARGET: targets}

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """The examples at some rows as one batch."""
        items = [self[int(row)] for row in rows]
        if self.collate is not None:
            table = self._collate_items(self.collate, items)
        elif isinstance(items[0], Mapping):
            table = as_table({name: _stack([item[name] for item in items]) for name in items[0]})
        elif isinstance(items[0], tuple | list):
            table = as_table(tuple(_stack([item[i] for item in items]) for i in range(len(items[0]))))
        else:
            table = as_table(_stack(items))
        return table.take(np.arange(len(table)))

    def _collate_items(self, collate: Callable[[list[Any]], Any], items: list[Any]) -> Table:
        batch = collate(items)
        table = as_table(tuple(batch) if isinstance(batch, list) else batch)
        if len(table) != len(items):
            raise InputError(
                f"collate_fn received {len(items)} examples and returned a batch of {len(table)} rows; a batch has one "
                "row per example."
            )
        return table


def _stack(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {name: _stack([v[name] for v in values]) for name in values[0]}
    if is_several_inputs(values[0]):
        return tuple(_stack([v[i] for v in values]) for i in range(len(values[0])))
    for value in values:
        refuse_mask(value, "an example")
    arrays = [np.asarray(v.detach().cpu().numpy() if hasattr(v, "detach") else v) for v in values]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise InputError(f"the examples of a batch have different shapes: {sorted(shapes)}. Pad or crop them first.")
    return np.stack(arrays)


class Stream:
    """An iterable of batches; every epoch iterates it from the start."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self._used = False

    def __iter__(self) -> Iterator[Batch]:
        if self._used and iter(self.batches) is self.batches:
            raise UsageError(
                "this data is a generator, which can be read once; give a list, a DataLoader over arrays, or an object "
                "whose __iter__ starts again."
            )
        self._used = True
        for item in self.batches:
            yield item if isinstance(item, Batch) else _as_batch(item)


def _as_batch(item: Any) -> Batch:
    table = as_table(item)
    return table.take(np.arange(len(table)))


def as_source(data: object, labels: object = None) -> Table | RowSource | Stream:
    """The source of a loader: a table in memory, a data set read row by row, or a stream of batches."""
    if isinstance(data, RowSource):
        return data
    if (ragged := as_ragged(data, labels)) is not None:
        return ragged.table
    if labels is not None or is_table_like(data) or as_framed(data) is not None:
        return as_table(data, labels)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not (isinstance(data, list) and _batches(data)):
        return RowSource(data)
    if isinstance(data, Iterable):
        return Stream(data)
    raise UsageError(
        "data must be arrays, (x, y), a dict of arrays, a data set with len() and [i], or an iterable of batches; "
        f"received {type(data).__name__}."
    )


def inputs_of(data: Table | RowSource) -> Mapping[str, Array]:
    """The inputs of all examples, by name."""
    if isinstance(data, Table):
        return data.inputs
    table = as_table(data.take(np.arange(len(data))))
    return table.inputs


def _batches(data: list[Any]) -> bool:
    """Is it a list of batches, rather than of examples with one label each, `[(x, 3), (x, 0), ...]`?"""
    first = data[0] if data else None
    return not (isinstance(first, tuple) and len(first) > 1 and np.ndim(first[1]) == 0)
