"""Where states are stored: a memory of a backend holds their numbers, in the layout that its programs read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.ir.types import TensorType, transpose_type
from wholestep.compiler.plan.model.kernel import Layout
from wholestep.compiler.plan.model.layout import layout_bytes, pack, stored_shape, unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region, expect_region
from wholestep.records import dataclass


class StateBlock(Protocol):
    """A piece of memory that holds several states; it is free again when nothing refers to it."""

    @property
    def size(self) -> int:
        """In bytes."""


class Stored(Protocol):
    """The numbers of one state, where a backend keeps them.  Whoever reads or writes waits for launches before."""

    @property
    def block(self) -> StateBlock:
        """The piece of memory that holds them."""

    def read(self) -> AnyArray:
        """A copy, as the user sees it: rows contiguous."""

    def write(self, value: AnyArray) -> None:
        """Take numbers of the state's shape and dtype."""

    def fill(self, numbers: AnyArray) -> None:
        """Take numbers over and over, in whatever order they are stored."""

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at some indices."""

    def is_finite(self) -> bool:
        """Is every number?"""


class StateMemory(Protocol):
    """The memory of a backend, for what outlives launches."""

    kind: str  # programs read states of any memory of their kind
    turns: bool  # is the transpose of a matrix stored in its place, where products read it so?

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> Sequence[Stored]:
        """Room for some states, all zero; `by_columns` says of each whether products read it transposed."""

    def draw(self, into: Any, first: FirstValue) -> bool:
        """Give a state that it holds its first value, if that is quicker here; the same bits as `first.array()`."""


@dataclass(frozen=True)
class _StoredForm:
    """How a state is stored: as its transpose where it is `turned`."""

    type: TensorType
    layout: Layout
    turned: bool

    @property
    def bytes(self) -> int:
        return layout_bytes(self.type, self.layout, {})


class HostMemory:
    """States in this process, each in a layout that follows from its declaration alone: every plan over a State agrees.

    `is_turned(type, by_columns)` says whether the transpose of a matrix is stored in its place.
    """

    turns = True

    def __init__(
        self,
        kind: str,
        layout: Callable[[TensorType], Layout],
        is_turned: Callable[[TensorType, bool], bool] = lambda type, by_columns: False,
    ) -> None:
        self.kind, self._layout, self._is_turned = kind, layout, is_turned

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[HostArray]:
        """Views of one mapping."""
        ways = self._store(types, by_columns)
        region, offset, made = Region(sum(way.bytes for way in ways)), 0, []
        for way in ways:
            made.append(HostArray(way.type, way.layout, region, offset, way.bytes, way.turned))
            offset += way.bytes
        return made

    def expect(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> None:
        """Begin to make room for states that a build will hold."""
        expect_region(sum(way.bytes for way in self._store(types, by_columns)))

    def _store(self, types: Sequence[TensorType], by_columns: Sequence[bool]) -> list[_StoredForm]:
        every = zip(types, by_columns or [False] * len(types), strict=True)
        turned = [self._is_turned(type, by) for type, by in every]
        stored = [transpose_type(type) if is_so else type for type, is_so in zip(types, turned, strict=True)]
        return [_StoredForm(type, self._layout(type), is_so) for type, is_so in zip(stored, turned, strict=True)]

    def draw(self, into: HostArray, first: FirstValue) -> bool:
        """NumPy draws, on several threads."""
        return False


class HostArray:
    """A state as a flat array in a layout; `type` is that of its transpose where it is `turned`."""

    def __init__(
        self, type: TensorType, layout: Layout, block: Region, offset: int, size: int, turned: bool = False
    ) -> None:
        self.layout, self.block, self._is_float, self.turned = layout, block, type.dtype.is_float, turned
        self._shape = tuple(int(e) for e in type.shape)
        self.flat: AnyArray = block.view(offset, size // type.dtype.size, type.dtype.numpy)

    def read(self) -> AnyArray:
        """A copy, rows contiguous."""
        found = unpack(self.flat, self._shape, self.layout)
        return np.ascontiguousarray(found.T) if self.turned else found

    def write(self, value: AnyArray) -> None:
        """Take numbers of the state's shape and dtype."""
        if self.layout == Layout.ROWS or len(self._shape) != 2:
            packed = pack(value.T if self.turned else value, self.layout)
            self.flat[: packed.size] = packed
        else:
            self._write_rows(0, value)

    def draw(self, first: FirstValue) -> None:
        """Take its first value; of a large matrix a few rows at a time, for which there is no room but this."""
        if len(self._shape) != 2:
            self.write(first.array())
            return
        at = 0
        for rows in first.rows(self.rows_at_once):
            self._write_rows(at, rows)
            at += len(rows)

    @property
    def rows_at_once(self) -> int:
        """Rows of a matrix that are read and written together: those of a block of its transpose."""
        return max(1, self.layout.columns) if self.turned else 1

    def read_rows(self, start: int, stop: int) -> AnyArray:
        """Some rows of a matrix, a multiple of those: a copy, unless they are stored so."""
        stored = stored_shape(self._shape, self.layout)
        whole = self.flat[: math.prod(stored)].reshape(stored)
        if self.layout == Layout.ROWS:
            return (whole.T if self.turned else whole)[start:stop]
        if self.turned:
            blocks = whole[start // stored[-1] : -(-stop // stored[-1])]
            return blocks.swapaxes(1, 2).reshape(-1, self._shape[0])[: stop - start]
        return whole[:, start:stop].swapaxes(0, 1).reshape(stop - start, -1)[:, : self._shape[1]]

    def _write_rows(self, at: int, rows: AnyArray) -> None:
        """Take some rows of a matrix, from `at` on; of a transposed one, whole blocks."""
        stored = stored_shape(self._shape, self.layout)
        whole = self.flat[: math.prod(stored)].reshape(stored)
        if self.layout == Layout.ROWS:
            (whole.T if self.turned else whole)[at : at + len(rows)] = rows
            return
        width = stored[-1]
        if self.turned:
            whole = whole[at // width : -(-(at + len(rows)) // width)]
            taken = rows.T
        else:
            whole, taken = whole[:, at : at + len(rows)], rows
        full, rest = divmod(taken.shape[1], width)
        whole[:full] = taken[:, : full * width].reshape(len(taken), full, width).swapaxes(0, 1)
        if rest:
            whole[full, :, :rest], whole[full, :, rest:] = taken[:, full * width :], 0

    def fill(self, numbers: AnyArray) -> None:
        """Take numbers over and over; what pads the last columns is zero."""
        stored = stored_shape(self._shape, self.layout)
        inside = self.flat[: math.prod(stored)]
        for start in range(0, inside.size, numbers.size):
            part = inside[start : start + numbers.size]
            part[:] = numbers[: part.size]
        if self.layout != Layout.ROWS and (filled := self._shape[-1] % stored[-1]):
            inside.reshape(stored)[..., -1, :, filled:] = 0

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at some indices."""
        stored = stored_shape(self._shape, self.layout)
        at = at[::-1] if self.turned else at
        if self.layout != Layout.ROWS:
            *lead, rows, columns = at
            at = (*lead, columns // stored[-1], rows, columns % stored[-1])
        return np.array(self.flat[: math.prod(stored)].reshape(stored)[at])

    def is_finite(self) -> bool:
        """Is every number?"""
        if not self._is_float:
            return True
        with np.errstate(all="ignore"):
            return bool(np.isfinite(self.flat.sum())) or bool(np.isfinite(self.flat).all())
