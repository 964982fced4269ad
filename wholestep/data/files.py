"""Data in files: the idx files of MNIST, .npy arrays, and CSV files of numbers or of named columns."""

from __future__ import annotations

import csv
import gzip
import re
import struct
import zlib
from collections.abc import Sequence
from math import prod
from os import PathLike
from pathlib import Path
from typing import Literal

import numpy as np

from wholestep.compiler.ir.types import letter_of
from wholestep.data.tables.column import Array, Column
from wholestep.data.tables.frame import Frame, refuse_duplicates
from wholestep.errors import InputError

Path_ = str | PathLike[str]

IDX_RANK = 8  # the most axes; images have three
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
        raise InputError(f"{path} is damaged: its header has {rank} axes; expected 1 to {IDX_RANK}. Download it again.")
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
    images, labels = (
        read_idx(_find_file(folder, f"{part}-{kind}")) for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
    )
    return images[:, None].astype(np.float32) / np.float32(255), labels.astype(np.int32)


MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"


def _find_file(folder: Path_, name: str) -> Path:
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


# NumPy's header parser, which evaluates the header as a Python literal, raises these.
_NOT_NPY = (ValueError, EOFError, TypeError, SyntaxError, LookupError, OverflowError, MemoryError, RecursionError)


def load_npy(path: Path_, mmap_mode: Literal["r"] | None = None) -> Array:
    """The array in a .npy file; InputError for a truncated file, another format, or an array of objects."""
    from tokenize import TokenError

    advice = f"make one with np.save({str(path)!r}, x)"
    try:
        array = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except (*_NOT_NPY, TokenError) as error:
        raise InputError(f"{path} is not a complete .npy file of numbers: {error}; {advice}.") from error
    if not isinstance(array, np.ndarray):
        names = ", ".join(array)
        raise InputError(f"{path} holds several arrays, {names}; save the one you need: {advice}.")
    if letter_of(array.dtype) not in "fiub":
        raise InputError(f"{path} is not a .npy file of numbers: it holds {array.dtype}; {advice}.")
    return array


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
        target: the name or number of the column to predict; None: there is none.  Words in it become class indices in
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
    """The column names, and the lines of data, with one cell per column; without a header names are "0", "1", …"""
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
    """Do these cells name columns?  The cells 0, 1, 2, … do, equal numbers do not; for other numbers the user has to
    decide.
    """
    if not all(_is_number(cell) for cell in cells) or cells == [str(i) for i in range(len(cells))]:
        return True
    if len(set(cells)) < len(cells):
        return False
    shown = ", ".join(cells[:4]) + (", …" if len(cells) > 4 else "")
    raise InputError(
        f"{path}: the first line is numbers, {shown}: are they data, or names of columns? Pass header=False if they "
        "are data, header=True if they are names; on the command line --no-header or --header."
    )


def _is_number(text: str) -> bool:
    try:
        _as_float(text)
    except ValueError:
        return False
    return True


def read_lines(path: Path_, delimiter: str) -> Lines:
    try:
        with Path(path).open(newline="", encoding="utf-8-sig") as file:
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
    if "_" in text:  # Python reads 1_0 as 10, but a CSV file does not mean that
        raise ValueError
    return float(text)


def _targets(path: Path_, name: str, values: Sequence[tuple[int, str]], dtype: str) -> Array:
    try:
        numbers = np.array([_as_float(v) for _, v in values])
    except ValueError:
        return np.unique([v.strip() for _, v in values], return_inverse=True)[1].astype(np.int32)
    integers = all(v.strip().lstrip("+-").isdecimal() for _, v in values)
    limits = np.iinfo(np.int32)
    for line, value in values if integers else ():
        if not limits.min <= int(value) <= limits.max:
            raise InputError(
                f"{path}, line {line}, column {name!r}: {value.strip()} is outside of {limits.min}..{limits.max}, "
                f"the range of class indices. Write it as {value.strip()}.0 if it is a quantity."
            )
    return numbers.astype(np.int32 if integers else dtype)


# -- CSV files with columns of several types --------------------------------------------------------------------

GAPS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "nil", "?", "-"})
ANSWERS = {"true": True, "false": False}
DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?)?$")


def read_frame(path: Path_, *, header: bool | None = None, delimiter: str = ",") -> Frame:
    """A table from a CSV file: columns of numbers, text, dates (2024-03-31, with or without a time) or true and false.

    Empty cells, `NA`, `NaN`, `null`, `None`, `?` and the like are missing values.  A column is numeric if each of its
    values is a number.  Dates in other notations (31/03/2024) remain text, which `ws.data.Encoder` converts to dates.

    Args:
        header: does the first line name the columns?  Without a header they are called "0", "1" and so on.  None: it
            does, unless its cells are all numbers and two of them are equal, which names cannot be; different numbers
            are an error that asks, except 0, 1, 2, …, which are names.

    Example: `frame = ws.data.read_frame("passengers.csv")`.
    """
    names, rows = split_header(path, read_lines(path, delimiter), header)
    refuse_duplicates(names)
    cells = zip(*(row for _, row in rows), strict=True)
    return Frame({name: _frame_column(values) for name, values in zip(names, cells, strict=True)})


def _frame_column(cells: Sequence[str]) -> Column:
    text = [cell.strip() for cell in cells]
    missing = np.array([cell.lower() in GAPS for cell in text], bool)
    present = [cell for cell, gap in zip(text, missing.tolist()) if not gap]
    for read in (_answers, _integers, _numbers, _dates):
        parsed = read(present) if present else np.zeros(0)
        if parsed is not None:
            values: Array = np.zeros(len(text), parsed.dtype)
            values[~missing] = parsed
            return Column(values, missing)
    words = np.full(len(text), "", object)
    words[~missing] = present
    return Column(words, missing)


def _answers(cells: Sequence[str]) -> Array | None:
    booleans = [ANSWERS.get(cell.lower()) for cell in cells]
    return None if None in booleans else np.array(booleans, bool)


def _integers(cells: Sequence[str]) -> Array | None:
    if not all(cell.lstrip("+-").isdecimal() for cell in cells):
        return None
    try:
        return np.array([int(cell) for cell in cells], np.int64)
    except (OverflowError, ValueError):
        return None


def _numbers(cells: Sequence[str]) -> Array | None:
    if any("_" in cell for cell in cells):  # Python reads 1_0 as 10, but a CSV file does not mean that
        return None
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _dates(cells: Sequence[str]) -> Array | None:
    if not all(DATE.match(cell) for cell in cells):
        return None
    try:
        return np.array(cells, "M8[us]")
    except ValueError:  # a date such as the 31st of April
        return None
