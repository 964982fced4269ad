"""States that ranks have divided among them: each holds a part, and what is read or written is the whole.

Where ranks are processes, whoever reads one waits for all of them: they read the same states in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.initializers import FirstValue
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.state_partition import Division
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.kernel import Buffer
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state_pieces import StatePiece
from wholestep.compiler.runtime.state.storage import StateBlock, StateMemory, Stored


class PartsMemory:
    """Of each state this rank's part, in the layout of a memory; all parts where ranks are threads of this process.

    `ranks` and `cut` say how they are divided (`ir/state_partition.py`): one memory holds what is divided in one way.
    """

    def __init__(self, memory: StateMemory, group: RankGroup, ranks: int, cut: tuple[int, ...] = ()) -> None:
        self.group = group
        how = [str(ranks)] * bool(ranks) + [f"cut {cut}"] * bool(cut)
        self.kind = f"{memory.kind}, parts of {group.grid} {group.engine}: {', '.join(how)}"
        self._memory, self._ranks, self._cut, self.turns = memory, ranks, cut, memory.turns
        self._here = range(group.size) if group.engine == "threads" else (group.rank,)

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[Parts]:
        """The parts of each rank in one piece."""
        columns = list(by_columns) if by_columns and self.turns else [False] * len(types)
        shapes = [tuple(int(e) for e in t.shape) for t in types]
        divided = [Division(shape, by, self._ranks, self._cut) for shape, by in zip(shapes, columns, strict=True)]
        own = [TensorType(division.shape, t.dtype) for division, t in zip(divided, types, strict=True)]
        turned = [False if self._ranks else by for by in columns]  # rows are cut as they are stored
        held = {rank: self._memory.hold(own, turned) for rank in self._here}
        return [
            Parts(division, {rank: arrays[i] for rank, arrays in held.items()}, self.group)
            for i, division in enumerate(divided)
        ]

    def draw(self, into: Parts, first: FirstValue) -> bool:
        """NumPy draws."""
        return False


def memories_of_parts(buffers: Sequence[Buffer], memory: StateMemory, group: RankGroup) -> dict[str, PartsMemory]:
    """Where those states are that ranks have divided, by name."""
    found: dict[tuple[int, tuple[int, ...]], PartsMemory] = {}
    for buffer in buffers:
        if (buffer.parts, buffer.split) not in found:
            found[buffer.parts, buffer.split] = PartsMemory(memory, group, buffer.parts, buffer.split)
    return {buffer.name: found[buffer.parts, buffer.split] for buffer in buffers}


class Parts:
    """A state of which every rank has a part; `of` are those that are here, by rank."""

    def __init__(self, division: Division, of: dict[int, Stored], group: RankGroup) -> None:
        self.of, self._division, self._group = of, division, group

    @property
    def block(self) -> StateBlock:
        """The memory of the first part that is here."""
        return next(iter(self.of.values())).block

    @property
    def all_here(self) -> bool:
        """Are the ranks threads of this process?"""
        return len(self.of) == self._group.size

    def read(self) -> AnyArray:
        """The whole, rows contiguous."""
        return np.ascontiguousarray(self._division.join(self._every()))

    def _every(self) -> Mapping[tuple[int, int], AnyArray]:
        """What ranks hold, by their places in the grid."""
        if self.all_here:
            return {self._place(rank): part.read() for rank, part in self.of.items()}
        (own,) = (part.read() for part in self.of.values())
        told = self._group.gather(own.tobytes())
        return {self._place(r): np.frombuffer(part, own.dtype).reshape(own.shape) for r, part in enumerate(told)}

    def piece(self) -> StatePiece:
        """This rank's part without what fills it up, and where it lies; nobody else is asked."""
        ((rank, own),) = self.of.items()
        (data, model), of = self._place(rank), self._division
        form, first, count = of.rows(data)
        axes = tuple(range(len(of.whole)))
        return StatePiece(
            own.read()[:count], of.of_model, axes[::-1] if of.turned else axes, form, first, of.cut, model
        )

    def write(self, value: AnyArray) -> None:
        """Every rank takes its part."""
        for rank, part in self.of.items():
            part.write(self._division.part(value, *self._place(rank)))

    def _place(self, rank: int) -> tuple[int, int]:
        grid = self._group.grid
        return grid.place(DATA, rank), grid.place(MODEL, rank)

    def fill(self, numbers: AnyArray) -> None:
        """Take numbers over and over."""
        self.write(np.resize(numbers, math.prod(self._division.whole)).reshape(self._division.whole))

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at some indices."""
        return np.array(self.read()[at])

    def is_finite(self) -> bool:
        """Is every number that is here?"""
        return all(part.is_finite() for part in self.of.values())
