"""Where states are stored: a memory of a backend holds their numbers, in the layout that its programs read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.ir.types import TensorType, transposed
from wholestep.compiler.plan.kernel import Layout
from wholestep.compiler.plan.layout import layout_bytes, pack, stored_shape, unpack
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Region


class Block(Protocol):
    """A piece of memory that holds several states; it is free again when nothing refers to it."""

    @property
    def size(self) -> int:
        """In bytes."""


class Stored(Protocol):
    """The numbers of one state, where a backend keeps them.  Whoever reads or writes waits for launches before."""

    @property
    def block(self) -> Block:
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


class Memory(Protocol):
    """The memory of a backend, for what outlives launches."""

    kind: str  # programs read states of any memory of their kind

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> Sequence[Stored]:
        """Room for some states, all zero; `by_columns` says of each whether products read it transposed."""

    def draw(self, into: Any, first: FirstValue) -> bool:
        """Give a state that it holds its first value, if that is quicker here; the same bits as `first.array()`."""


class HostMemory:
    """States in this process, each in a layout that follows from its declaration alone: every plan over a State agrees.

    `is_turned(type, by_columns)` says whether the transpose of a matrix is stored in its place.
    """

    def __init__(
        self,
        kind: str,
        layout: Callable[[TensorType], Layout],
        is_turned: Callable[[TensorType, bool], bool] = lambda type, by_columns: False,
    ) -> None:
        self.kind, self._layout, self._is_turned = kind, layout, is_turned

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[HostArray]:
        """Views of one mapping."""
        turned = [self._is_turned(type, by) for type, by in zip(types, by_columns or [False] * len(types), strict=True)]
        stored = [transposed(type) if is_so else type for type, is_so in zip(types, turned, strict=True)]
        layouts = [self._layout(type) for type in stored]
        sizes = [layout_bytes(type, layout, {}) for type, layout in zip(stored, layouts, strict=True)]
        region, offset, made = Region(sum(sizes)), 0, []
        for type, layout, size, is_so in zip(stored, layouts, sizes, turned, strict=True):
            made.append(HostArray(type, layout, region, offset, size, is_so))
            offset += size
        return made

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
        packed = pack(value.T if self.turned else value, self.layout)
        self.flat[: packed.size] = packed

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
