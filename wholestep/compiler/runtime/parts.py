"""States that ranks have divided among them: each holds a part, and what is read or written is the whole.

Where ranks are processes, whoever reads one waits for all of them: they read the same states in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.ir.parts import as_divided, part_shape
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.group import Group
from wholestep.compiler.runtime.pieces import Piece
from wholestep.compiler.runtime.storage import Block, HostArray, HostMemory


class PartsMemory:
    """Of each state this rank's part, in the layout of a memory; all parts where ranks are threads of this process."""

    def __init__(self, memory: HostMemory, group: Group) -> None:
        self.group = group
        self.kind = f"{memory.kind}, parts of {group.size} {group.engine}"
        self._memory, self._ranks = memory, range(group.size) if group.engine == "threads" else (group.rank,)

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[Parts]:
        """The parts of each rank in one piece."""
        columns = list(by_columns) or [False] * len(types)
        shapes = [tuple(int(e) for e in t.shape) for t in types]
        parts = [part_shape(shape, by, self.group.size) for shape, by in zip(shapes, columns, strict=True)]
        own = [TensorType(part, t.dtype) for part, t in zip(parts, types, strict=True)]
        held = {rank: self._memory.hold(own) for rank in self._ranks}
        return [
            Parts(shape, by, {rank: arrays[i] for rank, arrays in held.items()}, self.group)
            for i, (shape, by) in enumerate(zip(shapes, columns, strict=True))
        ]

    def draw(self, into: Parts, first: FirstValue) -> bool:
        """NumPy draws."""
        return False


class Parts:
    """A state of which every rank has a part; `of` are those that are here."""

    def __init__(self, shape: tuple[int, ...], by_columns: bool, of: dict[int, HostArray], group: Group) -> None:
        self.of, self._shape, self._group = of, shape, group
        self._turned = by_columns and len(shape) == 2
        self._divided = as_divided(shape, by_columns, group.size)

    @property
    def block(self) -> Block:
        """The memory of the first part that is here."""
        return next(iter(self.of.values())).block

    @property
    def all_here(self) -> bool:
        """Are the ranks threads of this process?"""
        return len(self.of) == self._group.size

    def read(self) -> AnyArray:
        """The whole, rows contiguous."""
        own = [part.read() for part in self.of.values()]
        if not self.all_here:
            told = self._group.gather(own[0].tobytes())
            own = [np.frombuffer(part, own[0].dtype).reshape(own[0].shape) for part in told]
        whole = np.concatenate(own)[: self._divided[0]]
        return np.ascontiguousarray(whole.reshape(self._shape[::-1]).T if self._turned else whole.reshape(self._shape))

    def piece(self) -> Piece:
        """This rank's part without what fills it up, and where it lies; nobody else is asked."""
        ((rank, own),) = self.of.items()
        rows, axes = self._divided[0], tuple(range(len(self._shape)))
        first = min(rank * -(-rows // self._group.size), rows)
        turned = axes[::-1] if self._turned else axes
        return Piece(own.read()[: rows - first], self._shape, turned, self._divided, first)

    def write(self, value: AnyArray) -> None:
        """Every rank takes its part."""
        whole = np.ascontiguousarray(value.T if self._turned else value).reshape(self._divided)
        rows = -(-self._divided[0] // self._group.size)
        filled = np.zeros((rows * self._group.size, *self._divided[1:]), whole.dtype)
        filled[: len(whole)] = whole
        for rank, part in self.of.items():
            part.write(filled[rank * rows : (rank + 1) * rows])

    def fill(self, numbers: AnyArray) -> None:
        """Take numbers over and over."""
        self.write(np.resize(numbers, math.prod(self._shape)).reshape(self._shape))

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at some indices."""
        return np.array(self.read()[at])

    def is_finite(self) -> bool:
        """Is every number that is here?"""
        return all(part.is_finite() for part in self.of.values())
