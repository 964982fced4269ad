"""Statistics of gradients and activations, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray

VANISHING, EXPLODING = 1e-7, 1e5


@dataclass(frozen=True)
class Stats:
    """Smallest, largest and mean element, and the norm; `verdict` says where something is wrong."""

    name: str
    min: float
    max: float
    mean: float
    norm: float

    @staticmethod
    def of(name: str, array: AnyArray) -> Stats:
        wide = array.astype(np.float64)
        with np.errstate(all="ignore"):  # of infinities
            norm = float(np.sqrt((wide**2).sum()))
            return Stats(name, float(wide.min()), float(wide.max()), float(wide.mean()), norm)

    @property
    def is_finite(self) -> bool:
        """Is every element?"""
        return bool(np.isfinite([self.min, self.max]).all())

    @property
    def verdict(self) -> str:
        """ "vanishing", "exploding" or ""."""
        largest = max(abs(self.min), abs(self.max))
        if not self.is_finite or largest >= EXPLODING:
            return "exploding"
        return "vanishing" if largest <= VANISHING else ""


def stats_of(arrays: Mapping[str, AnyArray]) -> dict[str, Stats]:
    """The statistics of each."""
    return {name: Stats.of(name, array) for name, array in arrays.items()}


def table(heading: str, rows: list[Stats]) -> str:
    """The statistics as lines of text."""
    width = max([len(heading), *(len(r.name) for r in rows)])
    head = f"{heading.ljust(width)}  {'min':>11}  {'max':>11}  {'mean':>11}  {'norm':>11}"
    body = [
        f"{r.name.ljust(width)}  {r.min:11.4g}  {r.max:11.4g}  {r.mean:11.4g}  {r.norm:11.4g}  {r.verdict}"
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in (head, *body))
