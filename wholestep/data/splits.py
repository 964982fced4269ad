"""Train and validation splits: random, the last rows, stratified by class, or by whole groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.data.sequences.ragged import Ragged, as_ragged
from wholestep.data.sources import RowSource, as_source
from wholestep.data.table import Table, as_table
from wholestep.data.tables.column import Column
from wholestep.data.tables.frame import as_column
from wholestep.data.tables.frame_data import Framed, as_framed
from wholestep.errors import InputError, OptionError, UsageError

Rows = NDArray[np.int64]
Data = Table | Framed | RowSource | Ragged


@dataclass(frozen=True)
class Holdout:
    """How `ws.fit` chooses validation rows: `validation=ws.data.Holdout(0.2, groups=patients)`.

    Args:
        fraction: a fraction of all rows; of the rows of every class with `stratify`; as nearly as whole groups allow
            with `groups`.
        shuffle: draw rows by the seed; False holds out the last ones, as for forecasts.  None: as `fit(shuffle=)`.
        stratify: hold out the same fraction of every class: True goes by the targets, an array by its values, a name
            by a column of the frame.
        groups: an array with a value per row, or a column's name: rows with the same value (a patient, a user) are in
            the same part.
    """

    fraction: float = 0.2
    shuffle: bool | None = None
    stratify: Any = False
    groups: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.fraction, int | float) or not 0.0 < self.fraction < 1.0:
            raise OptionError(f"split: the fraction must be between 0 and 1, e.g. 0.1; received {self.fraction}.")
        _check_exclusive("split", self.shuffle, self.stratify, self.groups)

    def split(self, data: object, seed: int = 0) -> tuple[Any, Any]:
        """The rows to train on and the held-out rows, each in their original order."""
        rows = _as_rows(data)
        held = self._validation_rows(rows, np.random.default_rng(seed), seed)
        if not 0 < len(held) < len(rows):
            raise OptionError(
                f"split: {self.fraction} of {len(rows)} rows leaves one part empty; choose another fraction."
            )
        return _apart(rows, held)

    def _validation_rows(self, data: Data, rng: np.random.Generator, seed: int) -> Rows:
        if self.groups is not None:
            groups = _values(data, self.groups, "groups")
            shares = np.array([1 - self.fraction, self.fraction])
            return np.flatnonzero(_assign_groups(groups, shares, rng) == 1)
        if _is_given(self.stratify):
            from wholestep.datasets import stratified_split

            classes = _values(data, self.stratify, "stratify")
            return stratified_split(classes, self.fraction, seed)[1].astype(np.int64)
        count = round(self.fraction * len(data))
        order = np.arange(len(data)) if self.shuffle is False else rng.permutation(len(data))
        return order[len(order) - count :]


def split(
    data: object, fraction: float, seed: int = 0, *, shuffle: bool = True, stratify: Any = False, groups: Any = None
) -> tuple[Any, Any]:
    """Two parts, (1 - fraction) and fraction of the rows: drawn by the seed, or the last ones without `shuffle`.

    `stratify=True` takes the same fraction of every class, `groups=` keeps rows of one group together; see `Holdout`.
    Either part is data for `ws.fit`, of a frame or a data set with `len` and `[i]` too, of which no example is read.

    Example: `train, validation = ws.data.split((x, y), 0.1, stratify=True)`.
    """
    return Holdout(fraction, shuffle, stratify, groups).split(data, seed)


def folds(
    data: object, k: int = 5, seed: int = 0, *, shuffle: bool = True, stratify: Any = False, groups: Any = None
) -> Iterator[tuple[Any, Any]]:
    """Pairs (train, validation) of which every row is validated once; `stratify` and `groups` as of `Holdout`.

    Without `shuffle` the k + 1 parts are runs of rows in their order, and each after the first is validated by the rows
    before it: no fold trains on rows that come later.

    Example: `for train, validation in ws.data.folds((x, y), 5, stratify=True): ...`.
    """
    if not isinstance(k, int) or isinstance(k, bool) or k < 2:
        raise OptionError(f"folds: k must be an integer of at least 2; received {k!r}.")
    _check_exclusive("folds", shuffle, stratify, groups)
    rows = _as_rows(data)
    part_of = _fold_of(rows, k, np.random.default_rng(seed), shuffle, stratify, groups)
    if len(np.unique(part_of)) < (k if shuffle else k + 1):
        raise OptionError(f"folds: {len(rows)} rows, or their groups, are too few for {k} parts; choose a smaller k.")
    return _folds(rows, part_of, shuffle)


def _folds(data: Data, part_of: Rows, shuffle: bool) -> Iterator[tuple[Any, Any]]:
    for part in range(0 if shuffle else 1, int(part_of.max()) + 1):
        before = part_of != part if shuffle else part_of < part
        yield data.select(np.flatnonzero(before)), data.select(np.flatnonzero(part_of == part))


def _fold_of(data: Data, k: int, rng: np.random.Generator, shuffle: bool, stratify: Any, groups: Any) -> Rows:
    """The fold of every row."""
    if groups is not None:
        return _assign_groups(_values(data, groups, "groups"), np.full(k, 1 / k), rng)
    if not shuffle:
        return np.arange(len(data)) * (k + 1) // len(data)
    order = rng.permutation(len(data))
    if _is_given(stratify):
        classes = _values(data, stratify, "stratify")
        order = order[np.argsort(classes[order], kind="stable")]  # sorted by class, in random order within a class
    part_of = np.empty(len(data), np.int64)
    part_of[order] = np.arange(len(data)) % k
    return part_of


def _assign_groups(groups: Rows, shares: NDArray[np.float64], rng: np.random.Generator) -> Rows:
    """The part of every row: groups in order of size, each assigned to the part that is furthest below its share."""
    counts = np.bincount(groups)
    if len(counts) < len(shares):
        raise InputError(
            f"groups: there are {len(counts)} groups for {len(shares)} parts, and none is divided. Give a value per "
            "patient, user, … or choose fewer parts."
        )
    lacking, part_of = shares * len(groups), np.empty(len(counts), np.int64)
    order = rng.permutation(len(counts))
    for group in order[np.argsort(-counts[order], kind="stable")]:
        part_of[group] = np.argmax(lacking)
        lacking[part_of[group]] -= counts[group]
    return part_of[groups]


def _is_given(stratify: Any) -> bool:
    return not (stratify is False or stratify is None)


def _check_exclusive(what: str, shuffle: bool | None, stratify: Any, groups: Any) -> None:
    if _is_given(stratify) and groups is not None:
        raise UsageError(f"{what}: stratify= balances classes and groups= keeps groups whole; give one of them.")
    if shuffle is False and (_is_given(stratify) or groups is not None):
        raise UsageError(f"{what}: shuffle=False keeps the order of rows; leave out stratify= and groups=.")


def _as_rows(data: object) -> Data:
    if (ragged := as_ragged(data)) is not None:
        return ragged
    framed = as_framed(data)
    if framed is not None:
        return framed
    if hasattr(data, "next_batch"):
        raise UsageError(
            f"rows are held out of data, and {type(data).__name__} gives batches of it. Split what it reads, and give "
            "the first part to a loader: train, held = ws.data.split(data, 0.2); ws.DataLoader(train)."
        )
    source = as_source(data)
    return source if isinstance(source, RowSource) else as_table(data)


def _apart(data: Data, held: Rows) -> tuple[Data, Data]:
    trained = np.ones(len(data), bool)
    trained[held] = False
    return data.select(np.flatnonzero(trained)), data.select(np.sort(held))


def _values(data: Data, key: Any, what: str) -> Rows:
    """A class index for each row: by the targets, a column of the frame, or an array."""
    column = _column(data, key, what)
    if len(column) != len(data):
        raise InputError(f"{what}: the data has {len(data)} rows; received {len(column)} values.")
    return class_codes(column)


def _column(data: Data, key: Any, what: str) -> Column:
    if isinstance(key, str):
        if isinstance(data, Framed):
            return data.inputs[key]
        raise UsageError(
            f"{what}={key!r} names a column of a frame; the data is arrays. Give an array, one value per row."
        )
    if key is not True:
        return as_column(key, what)
    targets = data.target if isinstance(data, Framed) else next(iter(data.targets.values()), None)
    if targets is None or len(getattr(targets, "values", targets).shape) > 1:  # type: ignore[union-attr]
        raise UsageError(
            f"{what}=True needs one target per row, which this data does not have; give an array of classes."
        )
    return as_column(targets, what)


def class_codes(column: Column) -> Rows:
    """Indices of the distinct values of a column, sorted; missing values have the last index."""
    codes = np.unique(column.present, return_inverse=True)[1]
    out = np.full(len(column), codes.max(initial=-1) + 1, np.int64)
    out[~column.missing] = codes
    return out
