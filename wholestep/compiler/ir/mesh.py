"""The mesh of ranks: the data axis divides the rows of a batch, the model axis divides layers (tensor parallelism).

Rank d * model + m has the coordinates (d, m): ranks of one tensor-parallel group are consecutive, and therefore
usually on one machine.
"""

from __future__ import annotations

from wholestep.compiler.ir.attrs import AXES, DATA, MODEL
from wholestep.records import dataclass

__all__ = ["AXES", "DATA", "MODEL", "Mesh"]


@dataclass(frozen=True)
class Mesh:
    """A two-dimensional mesh: the number of ranks along each axis."""

    data: int
    model: int = 1

    @property
    def size(self) -> int:
        """The number of all ranks."""
        return self.data * self.model

    def axis_size(self, axis: str) -> int:
        """The number of ranks along an axis."""
        return {DATA: self.data, MODEL: self.model}[axis]

    def coordinate(self, axis: str, rank: int) -> int:
        """The coordinate of a rank along an axis, from 0."""
        return {DATA: rank // self.model, MODEL: rank % self.model}[axis]

    def group(self, axis: str, rank: int) -> range:
        """The ranks of the process group that a rank belongs to along an axis, itself included, by coordinate."""
        if axis == MODEL:
            first = rank - rank % self.model
            return range(first, first + self.model)
        return range(rank % self.model, self.size, self.model)

    def __str__(self) -> str:
        return f"{self.data} x {self.model}" if self.model > 1 else str(self.data)
