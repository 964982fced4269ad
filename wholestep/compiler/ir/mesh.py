"""Ranks stand in a grid: along its data axis they have different rows of a batch, along its model axis parts of layers.

Rank d * model + m stands at (d, m), so that ranks which share rows are neighbours, on one machine as a rule.
"""

from __future__ import annotations

from wholestep.compiler.ir.attrs import AXES, DATA, MODEL
from wholestep.records import dataclass

__all__ = ["AXES", "DATA", "MODEL", "Grid"]


@dataclass(frozen=True)
class Grid:
    """How many ranks stand along each axis."""

    data: int
    model: int = 1

    @property
    def size(self) -> int:
        """Of all ranks."""
        return self.data * self.model

    def along(self, axis: str) -> int:
        """How many ranks stand along an axis."""
        return {DATA: self.data, MODEL: self.model}[axis]

    def place(self, axis: str, rank: int) -> int:
        """Where a rank stands along an axis, from 0."""
        return {DATA: rank // self.model, MODEL: rank % self.model}[axis]

    def beside(self, axis: str, rank: int) -> range:
        """The ranks that stand with one along an axis, itself among them, by their places."""
        if axis == MODEL:
            first = rank - rank % self.model
            return range(first, first + self.model)
        return range(rank % self.model, self.size, self.model)

    def __str__(self) -> str:
        return f"{self.data} x {self.model}" if self.model > 1 else str(self.data)
