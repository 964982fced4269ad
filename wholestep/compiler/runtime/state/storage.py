"""Storage of states: each backend has a memory that stores them in the layout that its programs read.

`HostMemory` stores matrices in blocks of columns, or transposed, as the backend decides from the declaration alone:
every plan over a State then agrees on the layout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.types import TensorType, transpose_type
from wholestep.compiler.plan.model.kernel import Layout
from wholestep.compiler.plan.model.layout import layout_bytes, pack, stored_shape, unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region, expect_region
from wholestep.records import dataclass


class StateBlock(Protocol):
    """A block of memory that holds several states; it is freed when nothing refers to it."""

    @property
    def size(self) -> int:
        """In bytes."""


class Stored(Protocol):
    """The stored values of one state in a backend's memory.  Reads and writes wait for earlier launches."""

    @property
    def block(self) -> StateBlock:
        """The block of memory that holds them."""

    def read(self) -> AnyArray:
        """A copy, as the user sees it: rows contiguous."""

    def write(self, value: AnyArray) -> None:
        """Overwrite with an array of the state's shape and dtype."""

    def fill(self, numbers: AnyArray) -> None:
        """Overwrite the state with these values, repeated cyclically, in storage order."""

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at these indices."""

    def is_finite(self) -> bool:
        """Is every value finite?"""


class StateMemory(Protocol):
    """The memory of a backend, for tensors that outlive launches."""

    kind: str  # a program can read states in any memory of the same kind
    turns: bool  # are matrices that products read transposed stored as their transposes in this memory?

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> Sequence[Stored]:
        """Allocate some states, all zero; `by_columns`: for each, whether products read it transposed."""

    def draw(self, into: Any, first: InitialValue) -> bool:
        """Draw the initial value of a state in place if that is faster here; the same bits as `first.array()`."""


@dataclass(frozen=True)
class _StoredForm:
    """The stored form of a state; if it is `transposed`, `type` is the type of the transpose."""

    type: TensorType
    layout: Layout
    transposed: bool

    @property
    def bytes(self) -> int:
        return layout_bytes(self.type, self.layout, {})


class HostMemory:
    """States in host memory, each in a layout that follows from its declaration alone: every plan over a State agrees.

    `is_transposed(type, by_columns)` decides whether a matrix is stored transposed.
    """

    turns = True

    def __init__(
        self,
        kind: str,
        layout: Callable[[TensorType], Layout],
        is_transposed: Callable[[TensorType, bool], bool] = lambda type, by_columns: False,
    ) -> None:
        self.kind, self._layout, self._is_transposed = kind, layout, is_transposed

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[HostArray]:
        """Allocate states as views of one mapping."""
        forms = self._store(types, by_columns)
        region, offset, arrays = Region(sum(form.bytes for form in forms)), 0, []
        for form in forms:
            arrays.append(HostArray(form.type, form.layout, region, offset, form.bytes, form.transposed))
            offset += form.bytes
        return arrays

    def expect(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> None:
        """Start to prepare memory for states that a build will allocate."""
        expect_region(sum(form.bytes for form in self._store(types, by_columns)))

    def _store(self, types: Sequence[TensorType], by_columns: Sequence[bool]) -> list[_StoredForm]:
        declared = zip(types, by_columns or [False] * len(types), strict=True)
        is_stored_transposed = [self._is_transposed(type, by) for type, by in declared]
        stored = [
            transpose_type(type) if transposed else type
            for type, transposed in zip(types, is_stored_transposed, strict=True)
        ]
        return [
            _StoredForm(type, self._layout(type), transposed)
            for type, transposed in zip(stored, is_stored_transposed, strict=True)
        ]

    def draw(self, into: HostArray, first: InitialValue) -> bool:
        """Return False: the caller draws with NumPy, on several threads."""
        return False


class HostArray:
    """A state as a flat array in a layout; if it is `transposed`, `type` is the type of the transpose."""

    def __init__(
        self, type: TensorType, layout: Layout, block: Region, offset: int, size: int, transposed: bool = False
    ) -> None:
        self.layout, self.block, self._is_float, self.transposed = layout, block, type.dtype.is_float, transposed
        self._shape = tuple(int(e) for e in type.shape)
        self.flat: AnyArray = block.view(offset, size // type.dtype.size, type.dtype.numpy)

    def read(self) -> AnyArray:
        """A copy, rows contiguous."""
        array = unpack(self.flat, self._shape, self.layout)
        return np.ascontiguousarray(array.T) if self.transposed else array

    def write(self, value: AnyArray) -> None:
        """Overwrite with an array of the state's shape and dtype."""
        if self.layout == Layout.ROWS or len(self._shape) != 2:
            packed = pack(value.T if self.transposed else value, self.layout)
            self.flat[: packed.size] = packed
        else:
            self._write_rows(0, value)

    def draw(self, first: InitialValue) -> None:
        """Write the initial value; a matrix a few rows at a time, so that no second copy of it is needed."""
        if len(self._shape) != 2:
            self.write(first.array())
            return
        at = 0
        for rows in first.rows(self.rows_at_once):
            self._write_rows(at, rows)
            at += len(rows)

    @property
    def rows_at_once(self) -> int:
        """The granularity of reading and writing rows: if it is stored transposed, the rows of one block."""
        return max(1, self.layout.columns) if self.transposed else 1

    def read_rows(self, start: int, stop: int) -> AnyArray:
        """Rows of a matrix, in multiples of `rows_at_once`: a view if they are stored in dense rows, else a copy."""
        stored = stored_shape(self._shape, self.layout)
        matrix = self.flat[: math.prod(stored)].reshape(stored)
        if self.layout == Layout.ROWS:
            return (matrix.T if self.transposed else matrix)[start:stop]
        if self.transposed:
            blocks = matrix[start // stored[-1] : -(-stop // stored[-1])]
            return blocks.swapaxes(1, 2).reshape(-1, self._shape[0])[: stop - start]
        return matrix[:, start:stop].swapaxes(0, 1).reshape(stop - start, -1)[:, : self._shape[1]]

    def _write_rows(self, at: int, rows: AnyArray) -> None:
        """Overwrite rows of a matrix from `at` on; if it is stored transposed, in complete blocks."""
        stored = stored_shape(self._shape, self.layout)
        matrix = self.flat[: math.prod(stored)].reshape(stored)
        if self.layout == Layout.ROWS:
            (matrix.T if self.transposed else matrix)[at : at + len(rows)] = rows
            return
        # The blocked layout is [blocks][rows][width].  Rows of a matrix that is stored transposed are its columns, so
        # complete blocks are written; otherwise some rows of every block.
        width = stored[-1]
        if self.transposed:
            matrix = matrix[at // width : -(-(at + len(rows)) // width)]
            values = rows.T
        else:
            matrix, values = matrix[:, at : at + len(rows)], rows
        full, rest = divmod(values.shape[1], width)
        matrix[:full] = values[:, : full * width].reshape(len(values), full, width).swapaxes(0, 1)
        if rest:
            matrix[full, :, :rest], matrix[full, :, rest:] = values[:, full * width :], 0

    def fill(self, numbers: AnyArray) -> None:
        """Overwrite the state with these values, repeated cyclically in storage order; padding is zero."""
        stored = stored_shape(self._shape, self.layout)
        inside = self.flat[: math.prod(stored)]
        for start in range(0, inside.size, numbers.size):
            part = inside[start : start + numbers.size]
            part[:] = numbers[: part.size]
        if self.layout != Layout.ROWS and (filled := self._shape[-1] % stored[-1]):
            inside.reshape(stored)[..., -1, :, filled:] = 0

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at these indices."""
        stored = stored_shape(self._shape, self.layout)
        at = at[::-1] if self.transposed else at
        if self.layout != Layout.ROWS:
            *lead, rows, columns = at
            at = (*lead, columns // stored[-1], rows, columns % stored[-1])
        return np.array(self.flat[: math.prod(stored)].reshape(stored)[at])

    def is_finite(self) -> bool:
        """Is every value finite?"""
        if not self._is_float:
            return True
        # One fast pass: a finite sum implies finite values.  The sum may overflow: then check each value.
        with np.errstate(all="ignore"):
            return bool(np.isfinite(self.flat.sum())) or bool(np.isfinite(self.flat).all())
