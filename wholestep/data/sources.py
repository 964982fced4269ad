"""Where examples come from: arrays, data sets read row by row, iterables, and files."""

from __future__ import annotations

import csv
import gzip
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.compiler.ir.types import letter_of
from wholestep.data.frame_data import as_framed
from wholestep.data.table import TARGET, Array, Batch, Table, as_table, is_several_inputs, is_table_like
from wholestep.errors import InputError, UsageError

Path_ = str | PathLike[str]


class RowSource:
    """A data set with `len` and `[i]`, each item `(x, y)`, `(x, y, weight)`, `x` or a dict: a torch Dataset is one.

    x is an array, a dict of arrays by the names of `forward`'s arguments, or a tuple of arrays in their order.
    """

    def __init__(self, items: Any, rows: NDArray[np.int64] | None = None) -> None:
        self.items, self.rows = items, rows  # of some rows: a part that `ws.data.split` gave
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
        """Some of the examples; none is read."""
        return RowSource(self.items, rows if self.rows is None else self.rows[rows])

    @property
    def targets(self) -> Mapping[str, Array]:
        """The targets of all examples, each of which is read for it."""
        if not isinstance(self[0], tuple | list) or len(self[0]) < 2:
            return {}
        found = _stacked([self[row][1] for row in range(len(self))])
        return found if isinstance(found, Mapping) else {TARGET: found}

    def take(self, rows: NDArray[np.int64]) -> Batch:
        """The examples at some rows as one batch."""
        found = [self[int(row)] for row in rows]
        if isinstance(found[0], Mapping):
            table = as_table({name: _stacked([f[name] for f in found]) for name in found[0]})
        elif isinstance(found[0], tuple | list):
            table = as_table(tuple(_stacked([f[i] for f in found]) for i in range(len(found[0]))))
        else:
            table = as_table(_stacked(found))
        return table.take(np.arange(len(table)))


def _stacked(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {name: _stacked([v[name] for v in values]) for name in values[0]}
    if is_several_inputs(values[0]):
        return tuple(_stacked([v[i] for v in values]) for i in range(len(values[0])))
    for value in values:
        refuse_mask(value, "an example")
    arrays = [np.asarray(v.detach().cpu().numpy() if hasattr(v, "detach") else v) for v in values]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise InputError(f"the examples of a batch have different shapes: {sorted(shapes)}. Pad or crop them first.")
    return np.stack(arrays)


class Stream:
    """An iterable of batches; it is iterated anew in every epoch."""

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
    """What a loader reads from."""
    if isinstance(data, RowSource):
        return data
    if labels is not None or is_table_like(data) or as_framed(data) is not None:
        return as_table(data, labels)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not (isinstance(data, list) and _batches(data)):
        return RowSource(data)
    if isinstance(data, Iterable):
        return Stream(data)
    raise UsageError(
        f"data is arrays, (x, y), a dict of arrays, a data set with len() and [i], or an iterable of batches; received "
        f"{type(data).__name__}."
    )


def inputs_of(data: Table | RowSource) -> Mapping[str, Array]:
    """The inputs of all examples, by name."""
    if isinstance(data, Table):
        return data.inputs
    table = as_table(data.take(np.arange(len(data))))
    return table.inputs


def _batches(data: list[Any]) -> bool:
    """Are these batches?  Examples with a label each, `[(x, 3), (x, 0), ...]`, are not."""
    first = data[0] if data else None
    return not (isinstance(first, tuple) and len(first) > 1 and np.ndim(first[1]) == 0)


# -- files -------------------------------------------------------------------------------------------------------

IDX_RANK = 8  # axes; images have three
_IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def read_idx(path: Path_) -> Array:
    """An array in the idx format of MNIST, compressed by gzip or not.  Example: `read_idx("train-labels.gz")`."""
    raw = Path(path).read_bytes()
    try:
        data = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} is damaged: gzip cannot unpack it ({error}). Download it again.") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise InputError(f"{path} is not an idx file: it must start with two zero bytes and a known type.")
    rank = data[3]
    if not 1 <= rank <= IDX_RANK or len(data) < 4 + 4 * rank:
        raise InputError(f"{path} is damaged: it says it has {rank} axes; expected 1 to {IDX_RANK}. Download it again.")
    shape = struct.unpack(f">{rank}I", data[4 : 4 + 4 * rank])
    kind, start = np.dtype(_IDX_TYPES[data[2]]), 4 + 4 * rank
    expected = start + prod(shape) * kind.itemsize
    if len(data) != expected:
        raise InputError(f"{path} is damaged: shape {shape} needs {expected} bytes; the file has {len(data)}.")
    return np.frombuffer(data, kind, offset=start).reshape(shape).astype(kind.newbyteorder("="))


def mnist(folder: Path_) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """((x, y), (x test, y test)) from the four idx files of MNIST: images (n, 1, 28, 28) in 0..1, labels int32.

    Example: `train, test = ws.data.mnist("mnist")`.
    """
    return _mnist_part(folder, "train"), _mnist_part(folder, "t10k")


def _mnist_part(folder: Path_, part: str) -> tuple[Array, Array]:
    images, labels = (read_idx(_found(folder, f"{part}-{kind}")) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    return images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int32)


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"


def _found(folder: Path_, name: str) -> Path:
    for candidate in (Path(folder) / f"{name}.gz", Path(folder) / name):
        if candidate.exists():
            return candidate
    raise InputError(
        f"there is no {name} (or {name}.gz) in {folder}; download the four files of MNIST there (they are at "
        f"{MNIST}/{name}.gz and so on), or name their folder: ws.data.mnist('folder'), --set data=folder."
    )


def open_npy(path: Path_) -> Array:
    """An array in a .npy file, mapped: rows are read when they are used.  Example: `open_npy("features.npy")`."""
    return load_npy(path, mmap_mode="r")


# What NumPy's reader of headers, which are Python's literals, may end in.
_NOT_NPY = (ValueError, EOFError, TypeError, SyntaxError, LookupError, OverflowError, MemoryError, RecursionError)


def load_npy(path: Path_, mmap_mode: Literal["r"] | None = None) -> Array:
    """The array in a .npy file; InputError where it is none, is not whole, or holds something else than numbers."""
    from tokenize import TokenError

    advice = f"make one with np.save({str(path)!r}, x)"
    try:
        found = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (*_NOT_NPY, TokenError) as error:
        raise InputError(f"{path} is not a whole .npy file of numbers: {error}; {advice}.") from error
    if not isinstance(found, np.ndarray):
        names = ", ".join(found)
        raise InputError(f"{path} holds several arrays, {names}; save the one you need: {advice}.")
    if letter_of(found.dtype) not in "fiub":
        raise InputError(f"{path} is not a .npy file of numbers: it holds {found.dtype}; {advice}.")
    return found


def read_csv(
    path: Path_,
    target: str | int | None = None,
    *,
    header: bool | None = None,
    delimiter: str = ",",
    dtype: str = "float32",
) -> tuple[Array, Array | None]:
    """Features (rows, columns) and the target column of a file of numbers.

    Args:
        target: the name or number of the column to predict; None: there is none.  Words in it become class numbers in
            alphabetical order.
        header: does the first line name the columns?  None: it does, unless its cells are all numbers and two of them
            are equal, which names cannot be; different numbers are an error that asks, except 0, 1, 2, …, which are
            names.

    Example: `x, y = ws.data.read_csv("houses.csv", target="price")`.
    """
    names, rows = split_header(path, read_lines(path, delimiter), header)
    at = _column(path, names, target)
    features = [i for i in range(len(names)) if i != at]
    x = np.array([[_number(path, n, names[i], row[i]) for i in features] for n, row in rows], dtype)
    if at is None:
        return x, None
    return x, _targets(path, names[at], [(n, row[at]) for n, row in rows], dtype)


Lines = list[tuple[int, list[str]]]  # number of the line, its cells


def split_header(path: Path_, lines: Lines, header: bool | None) -> tuple[list[str], Lines]:
    """The names of the columns and the lines of data, each of as many cells; names of a file without a header count."""
    if header is None:
        header = not lines or _is_header(path, [cell.strip() for cell in lines[0][1]])
    if len(lines) <= header:
        raise InputError(f"{path} has no rows of data.")
    names = [name.strip() for name in lines[0][1]] if header else [str(i) for i in range(len(lines[0][1]))]
    rows = lines[1:] if header else lines
    for number, row in rows:
        if len(row) != len(names):
            raise InputError(f"{path}, line {number}: {len(row)} values; expected {len(names)} as in the first line.")
    return names, rows


def _is_header(path: Path_, cells: list[str]) -> bool:
    """Do these cells name columns?  Numbers do if they count from 0; equal numbers do not; of others the user knows."""
    if not all(_is_number(cell) for cell in cells) or cells == [str(i) for i in range(len(cells))]:
        return True
    if len(set(cells)) < len(cells):
        return False
    shown = ", ".join(cells[:4]) + (", …" if len(cells) > 4 else "")
    raise InputError(
        f"{path}: the first line is numbers, {shown}: are they data, or names of columns? Say header=False if they are "
        "data, header=True if they are names; on the command line --no-header or --header."
    )


def _is_number(text: str) -> bool:
    try:
        _as_float(text)
    except ValueError:
        return False
    return True


def read_lines(path: Path_, delimiter: str) -> Lines:
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            return [(n, row) for n, row in enumerate(csv.reader(file, delimiter=delimiter), 1) if row]
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not text in UTF-8: byte {hex(error.object[error.start])} cannot be read. Save it as UTF-8."
        ) from None
    except csv.Error as error:
        raise InputError(f"{path} is not a table of values: {error}. Save it as CSV.") from None


def _column(path: Path_, names: Sequence[str], target: str | int | None) -> int | None:
    if target is None:
        return None
    if isinstance(target, int) and -len(names) <= target < len(names):
        return target % len(names)
    if target not in names:
        raise InputError(f"{path} has no column {target!r}; it has: {', '.join(names)}.")
    return names.index(str(target))


def _number(path: Path_, line: int, column: str, text: str) -> float:
    try:
        return _as_float(text)
    except ValueError:
        raise InputError(
            f"{path}, line {line}, column {column!r}: {text!r} is not a number; ws.data.read_frame reads text and "
            "gaps, for ws.models.Tabular()."
        ) from None


def _as_float(text: str) -> float:
    if "_" in text:  # Python reads 1_0 as 10; a file that has it means something else
        raise ValueError
    return float(text)


def _targets(path: Path_, name: str, values: Sequence[tuple[int, str]], dtype: str) -> Array:
    try:
        numbers = np.array([_as_float(v) for _, v in values])
    except ValueError:
        return np.unique([v.strip() for _, v in values], return_inverse=True)[1].astype(np.int32)
    whole = all(v.strip().lstrip("+-").isdecimal() for _, v in values)
    limits = np.iinfo(np.int32)
    for line, value in values if whole else ():
        if not limits.min <= int(value) <= limits.max:
            raise InputError(
                f"{path}, line {line}, column {name!r}: {value.strip()} is outside of {limits.min}..{limits.max}, "
                f"where class numbers lie. Write it as {value.strip()}.0 if it is a quantity."
            )
    return numbers.astype(np.int32 if whole else dtype)
