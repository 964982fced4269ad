"""Statistics of gradients and activations: ranges, norms, and vanishing or exploding values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import OptionError

VANISHING, EXPLODING = 1e-7, 1e5


@dataclass(frozen=True)
class Stats:
    """Smallest, largest and mean element, and the norm; `verdict` is "vanishing", "exploding" or ""."""

    name: str
    min: float
    max: float
    mean: float
    norm: float
    size: int  # elements

    @staticmethod
    def of(name: str, array: AnyArray) -> Stats:
        wide = array.astype(np.float64)
        with np.errstate(all="ignore"):  # of infinities
            norm = float(np.sqrt((wide**2).sum()))
            return Stats(name, float(wide.min()), float(wide.max()), float(wide.mean()), norm, wide.size)

    @staticmethod
    def together(name: str, parts: Sequence[Stats]) -> Stats:
        """The statistics of several arrays, as if they were one."""
        size = sum(s.size for s in parts)
        mean = sum(s.mean * s.size for s in parts) / size
        norm = math.hypot(*(s.norm for s in parts))
        return Stats(name, min(s.min for s in parts), max(s.max for s in parts), mean, norm, size)

    @property
    def is_finite(self) -> bool:
        """Are all elements finite?"""
        return bool(np.isfinite([self.min, self.max]).all())

    @property
    def verdict(self) -> str:
        """ "vanishing", "exploding" or ""."""
        largest = max(abs(self.min), abs(self.max))
        if not self.is_finite or largest >= EXPLODING:
            return "exploding"
        return "vanishing" if largest <= VANISHING else ""


def stats_of(arrays: Mapping[str, AnyArray]) -> dict[str, Stats]:
    """The statistics of each array."""
    return {name: Stats.of(name, array) for name, array in arrays.items()}


PER = ("parameter", "layer")
MODEL = "model"  # the layer of parameters outside of layers


def need_grouping(kind: str, per: object) -> str:
    """Raise OptionError unless `per` is "parameter" or "layer"."""
    if per not in PER:
        raise OptionError(f"{kind}: per must be 'parameter' or 'layer'; received {per!r}.")
    return str(per)


def layers_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The names of parameters by the path of the module that has them."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(name.rpartition(".")[0] or MODEL, []).append(name)
    return layers


def stats_per_layer(stats: Mapping[str, Stats]) -> dict[str, Stats]:
    """The statistics of a module's parameters together, by its path."""
    layers = layers_of(stats)
    return {layer: Stats.together(layer, [stats[name] for name in names]) for layer, names in layers.items()}


def table(heading: str, rows: list[Stats]) -> str:
    """The statistics as lines of text."""
    width = max([len(heading), *(len(r.name) for r in rows)])
    head = f"{heading.ljust(width)}  {'min':>11}  {'max':>11}  {'mean':>11}  {'norm':>11}"
    body = [
        f"{r.name.ljust(width)}  {r.min:11.4g}  {r.max:11.4g}  {r.mean:11.4g}  {r.norm:11.4g}  {r.verdict}"
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in (head, *body))
