"""Partitioned states: each rank stores a part, but reads and writes see the complete state.

If ranks are processes, reading is an all-gather: all ranks must read the same states in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.initializers import InitialValue
from wholestep.compiler.ir.attrs import DATA, MODEL
from wholestep.compiler.ir.state_partition import StatePartition
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.model.kernel import Buffer
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state_pieces import StatePiece
from wholestep.compiler.runtime.state.storage import StateBlock, StateMemory, Stored


class PartsMemory:
    """Stores this rank's part of each state in another memory; all parts if ranks are threads of this process.

    `ranks` and `cut` define the partition (`ir/state_partition.py`): all states of one memory have the same one.
    """

    def __init__(self, memory: StateMemory, group: RankGroup, ranks: int, cut: tuple[int, ...] = ()) -> None:
        self.group = group
        partition = [str(ranks)] * bool(ranks) + [f"cut {cut}"] * bool(cut)
        self.kind = f"{memory.kind}, parts of {group.grid} {group.engine}: {', '.join(partition)}"
        self._memory, self._ranks, self._cut, self.turns = memory, ranks, cut, memory.turns
        self._here = range(group.size) if group.engine == "threads" else (group.rank,)

    def hold(self, types: Sequence[TensorType], by_columns: Sequence[bool] = ()) -> list[Parts]:
        """Allocate states, the parts of each rank as one block."""
        columns = list(by_columns) if by_columns and self.turns else [False] * len(types)
        shapes = [tuple(int(e) for e in t.shape) for t in types]
        divisions = [
            StatePartition(shape, by, self._ranks, self._cut) for shape, by in zip(shapes, columns, strict=True)
        ]
        part_types = [TensorType(division.shape, t.dtype) for division, t in zip(divisions, types, strict=True)]
        # Data-parallel ranks partition the rows of a state as they are stored.
        read_transposed = [False if self._ranks else by for by in columns]
        arrays_by_rank = {rank: self._memory.hold(part_types, read_transposed) for rank in self._here}
        return [
            Parts(division, {rank: arrays[i] for rank, arrays in arrays_by_rank.items()}, self.group)
            for i, division in enumerate(divisions)
        ]

    def draw(self, into: Parts, first: InitialValue) -> bool:
        """Return False: the caller draws with NumPy."""
        return False


def memories_of_parts(buffers: Sequence[Buffer], memory: StateMemory, group: RankGroup) -> dict[str, PartsMemory]:
    """The memory of each partitioned state, by name."""
    memories: dict[tuple[int, tuple[int, ...]], PartsMemory] = {}
    for buffer in buffers:
        if (buffer.parts, buffer.split) not in memories:
            memories[buffer.parts, buffer.split] = PartsMemory(memory, group, buffer.parts, buffer.split)
    return {buffer.name: memories[buffer.parts, buffer.split] for buffer in buffers}


class Parts:
    """A partitioned state; `of` are the parts in this process, by rank."""

    def __init__(self, division: StatePartition, of: dict[int, Stored], group: RankGroup) -> None:
        self.of, self._division, self._group = of, division, group

    @property
    def block(self) -> StateBlock:
        """The block of the first part in this process."""
        return next(iter(self.of.values())).block

    @property
    def all_here(self) -> bool:
        """Are all ranks threads of this process?"""
        return len(self.of) == self._group.size

    def read(self) -> AnyArray:
        """The complete state, rows contiguous."""
        return np.ascontiguousarray(self._division.join(self._all_parts()))

    def _all_parts(self) -> Mapping[tuple[int, int], AnyArray]:
        """The parts of all ranks, by their coordinates in the mesh."""
        if self.all_here:
            return {self._mesh_coordinates(rank): part.read() for rank, part in self.of.items()}
        (own_part,) = (part.read() for part in self.of.values())
        gathered = self._group.gather(own_part.tobytes())
        return {
            self._mesh_coordinates(r): np.frombuffer(part, own_part.dtype).reshape(own_part.shape)
            for r, part in enumerate(gathered)
        }

    def piece(self) -> StatePiece:
        """This rank's part without padding, and its position in the state; without communication."""
        ((rank, part),) = self.of.items()
        (data, model), division = self._mesh_coordinates(rank), self._division
        form, first, count = division.rows(data)
        axes = tuple(range(len(division.whole)))
        return StatePiece(
            part.read()[:count],
            division.of_model,
            axes[::-1] if division.is_transposed else axes,
            form,
            first,
            division.cut,
            model,
        )

    def write(self, value: AnyArray) -> None:
        """Overwrite the state: every rank stores its part."""
        for rank, part in self.of.items():
            part.write(self._division.part(value, *self._mesh_coordinates(rank)))

    def _mesh_coordinates(self, rank: int) -> tuple[int, int]:
        grid = self._group.grid
        return grid.coordinate(DATA, rank), grid.coordinate(MODEL, rank)

    def fill(self, numbers: AnyArray) -> None:
        """Overwrite the state with these values, repeated cyclically."""
        self.write(np.resize(numbers, math.prod(self._division.whole)).reshape(self._division.whole))

    def take(self, at: tuple[Any, ...]) -> AnyArray:
        """A copy of the elements at these indices."""
        return np.array(self.read()[at])

    def is_finite(self) -> bool:
        """Is every value of the parts in this process finite?"""
        return all(part.is_finite() for part in self.of.values())
