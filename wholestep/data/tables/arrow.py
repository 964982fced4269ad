"""Columns of Arrow data through its C interface: Polars frames, Arrow tables, anything with `__arrow_c_stream__`.

The layouts are those of the Arrow specification ("The Arrow C data interface", "The Arrow PyCapsule interface").
No Arrow library is imported; every value is copied, so that the stream can be released at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from wholestep.data.tables.column import Array, Column
from wholestep.errors import InputError


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_void_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Schema))),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Array))),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    pass


_Stream._fields_ = [
    ("get_schema", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Schema))),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Stream), ctypes.POINTER(_Array))),
    ("get_last_error", ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.POINTER(_Stream))),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(_Stream))),
    ("private_data", ctypes.c_void_p),
]


def columns_of(data: Any) -> dict[str, Column]:
    """The columns of anything with `__arrow_c_stream__`; a single column, as of a Polars Series, is called ""."""
    capsule = data.__arrow_c_stream__()
    with _stream_in(capsule) as stream:
        schema = _Schema()
        _check_code(stream, stream.get_schema(ctypes.byref(stream), ctypes.byref(schema)))
        try:
            fields = _fields(schema)
            parts: dict[str, list[Column]] = {name: [] for name, _ in fields}
            for chunk in _chunks(stream):
                children = chunk.children if schema.format == b"+s" else None
                for i, (name, field) in enumerate(fields):
                    array = chunk if children is None else children[i].contents
                    # The offset and length of a struct array apply to its children in addition to their own.
                    first = 0 if children is None else int(chunk.offset)
                    parts[name].append(_column(name, field, array, first, int(chunk.length)))
            return {name: _concat_columns(name, field, parts[name]) for name, field in fields}
        finally:
            if schema.release:
                schema.release(ctypes.byref(schema))


def lists_of(data: Any) -> tuple[Array, Array] | None:
    """A column of lists of numbers as flat values and offsets; None if the data is anything else."""
    with _stream_in(data.__arrow_c_stream__()) as stream:
        schema = _Schema()
        _check_code(stream, stream.get_schema(ctypes.byref(stream), ctypes.byref(schema)))
        try:
            width = {b"+l": "i4", b"+L": "i8"}.get(schema.format)
            if width is None:
                return None
            field = schema.children[0].contents
            parts = [_list_part(field, chunk, width) for chunk in _chunks(stream)]
        finally:
            if schema.release:
                schema.release(ctypes.byref(schema))
    lengths = np.concatenate([np.zeros(1, np.int64), *(lengths for _, lengths in parts)])
    return np.concatenate([values for values, _ in parts] or [np.zeros(0, np.int32)]), np.cumsum(lengths)


def _list_part(field: _Schema, chunk: _Array, width: str) -> tuple[Array, Array]:
    """The values of the lists of a chunk, and the length of each."""
    part = _Part(chunk, int(chunk.offset), int(chunk.length))
    ends = part.buffer(1, width, part.rows + 1, part.start).astype(np.int64)
    first, count = int(ends[0]), int(ends[-1] - ends[0])
    child = _column("values", field, chunk.children[0].contents, first, count)
    if part.missing.any() or child.missing.any():
        raise InputError("a column of lists has missing lists or values; drop them, or fill them in.")
    return child.values, np.diff(ends)


@contextmanager
def _stream_in(capsule: object) -> Iterator[_Stream]:
    """The stream that a PyCapsule holds; the capsule releases it when it is collected."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    yield _Stream.from_address(pointer(capsule, b"arrow_array_stream"))


def _check_code(stream: _Stream, code: int) -> None:
    if code:
        text = stream.get_last_error(ctypes.byref(stream)) or b"no reason given"
        raise InputError(f"the Arrow data could not be read: {text.decode(errors='replace')}.")


def _chunks(stream: _Stream) -> Iterator[_Array]:
    while True:
        chunk = _Array()
        _check_code(stream, stream.get_next(ctypes.byref(stream), ctypes.byref(chunk)))
        if not chunk.release:
            return
        try:
            yield chunk
        finally:
            chunk.release(ctypes.byref(chunk))


def _fields(schema: _Schema) -> list[tuple[str, _Schema]]:
    if schema.format != b"+s":
        return [((schema.name or b"").decode(), schema)]
    children = [schema.children[i].contents for i in range(schema.n_children)]
    return [((child.name or b"").decode(), child) for child in children]


# -- values -----------------------------------------------------------------------------------------------------

_NUMBERS = {
    "c": "i1", "C": "u1", "s": "i2", "S": "u2", "i": "i4", "I": "u4", "l": "i8", "L": "u8",
    "e": "f2", "f": "f4", "g": "f8",
}  # fmt: skip
_UNITS = {"s": "s", "m": "ms", "u": "us", "n": "ns"}


@dataclass(frozen=True)
class _Part:
    """A range of rows of one Arrow array."""

    array: _Array
    start: int
    rows: int

    def buffer(self, at: int, dtype: str, count: int, first: int = 0) -> Array:
        """A copy of `count` elements of buffer `at`, from element `first`."""
        address = self.array.buffers[at]
        kind = np.dtype(dtype)
        if not address or not count:
            return np.zeros(count, kind)
        raw = ctypes.string_at(address + first * kind.itemsize, count * kind.itemsize)
        return np.frombuffer(raw, kind)

    def bits(self, at: int) -> Array:
        first = self.start // 8
        raw = self.buffer(at, "u1", (self.start + self.rows + 7) // 8 - first, first)
        bits = np.unpackbits(raw, bitorder="little")
        return bits[self.start - 8 * first :][: self.rows].astype(bool)

    @property
    def missing(self) -> Array:
        """The null mask; all False without a validity bitmap."""
        has_gaps = self.array.n_buffers and self.array.buffers[0] and self.array.null_count
        return ~self.bits(0) if has_gaps else np.zeros(self.rows, bool)


def _column(name: str, field: _Schema, array: _Array, first: int, rows: int) -> Column:
    part = _Part(array, int(array.offset) + first, rows)
    if field.dictionary:
        inner = array.dictionary.contents
        entries = _column(name, field.dictionary.contents, inner, 0, int(inner.length))
        missing = part.missing
        codes = part.buffer(1, _NUMBERS[(field.format or b"").decode()], rows, part.start).astype(np.int64)
        codes = np.where(missing, 0, codes)
        values = entries.values[codes] if len(entries.values) else np.zeros(rows, entries.values.dtype)
        missing = missing | (entries.missing[codes] if len(entries.values) else True)
        return Column(values, missing, categorical=True)
    form = (field.format or b"").decode()
    if form == "n":
        return Column(np.zeros(rows), np.ones(rows, bool))
    values = _reader(name, form)(part)
    return Column(values, part.missing | np.isnan(values) if values.dtype.kind == "f" else part.missing)


def _reader(name: str, form: str) -> Callable[[_Part], Array]:
    if form in _NUMBERS:
        return lambda part: part.buffer(1, _NUMBERS[form], part.rows, part.start)
    if form == "b":
        return lambda part: part.bits(1)
    if form in ("u", "U"):
        return lambda part: _strings(part, "i4" if form == "u" else "i8")
    if form == "vu":
        return _views
    if form == "tdD":
        return lambda part: part.buffer(1, "i4", part.rows, part.start).astype("i8").view("M8[D]").astype("M8[us]")
    if form == "tdm" or form.startswith("ts"):
        unit = "ms" if form == "tdm" else _UNITS[form[2]]
        return lambda part: part.buffer(1, "i8", part.rows, part.start).view(f"M8[{unit}]").astype("M8[us]")
    if form.startswith("tD"):
        return lambda part: (
            part.buffer(1, "i8", part.rows, part.start).view(f"m8[{_UNITS[form[2]]}]") / np.timedelta64(1, "s")
        )
    raise InputError(
        f"the column {name!r} is of the Arrow type {form!r}; a table has numbers, text, categories, dates and "
        "booleans. Cast it, or leave it out."
    )


def _strings(part: _Part, width: str) -> Array:
    ends = part.buffer(1, width, part.rows + 1, part.start).astype(np.int64)
    text = part.buffer(2, "u1", int(ends[-1] - ends[0]), int(ends[0])).tobytes()
    cuts = (ends - ends[0]).tolist()
    return _objects([text[a:b].decode() for a, b in pairwise(cuts)])


def _views(part: _Part) -> Array:
    """String views: up to 12 bytes are stored in the view itself, longer strings as (buffer, offset)."""
    views = part.buffer(1, "V16", part.rows, part.start)
    words = views.view("<i4").reshape(-1, 4) if part.rows else np.zeros((0, 4), "<i4")
    missing, strings = part.missing, []
    for view, (length, _, buffer, offset), gap in zip(views, words.tolist(), missing.tolist()):
        if gap:
            strings.append("")
        elif length <= 12:
            strings.append(view.tobytes()[4 : 4 + length].decode())
        else:
            strings.append(ctypes.string_at(part.array.buffers[2 + buffer] + offset, length).decode())
    return _objects(strings)


def _objects(values: list[str]) -> Array:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _concat_columns(name: str, field: _Schema, parts: list[Column]) -> Column:
    if not parts:
        raise InputError(f"the column {name!r} has no rows; a table needs at least one.")
    return Column(
        np.concatenate([p.values for p in parts]), np.concatenate([p.missing for p in parts]), parts[0].categorical
    )
