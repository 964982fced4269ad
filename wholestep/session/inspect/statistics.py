"""Statistics of gradients and activations: ranges, norms, and vanishing or exploding values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import OptionError

VANISHING, EXPLODING = 1e-7, 1e5


@dataclass(frozen=True)
class Stats:
    """Smallest, largest and mean element, and the norm; `verdict` is "vanishing", "exploding" or "".

    Of a gradient also the norms of the weights and of their next update, and how many units are dead: those whose rows
    of the gradient are exactly 0 on this batch, such as ReLUs below zero for every row.
    """

    name: str
    min: float
    max: float
    mean: float
    norm: float
    size: int  # elements
    units: int = 0  # rows of a weight's gradient; 0 for values that are no gradients of weights
    dead: int = 0
    weight: float = math.nan  # the norm of the weights
    update: float = math.nan  # the norm of their change by a step over the same rows

    @property
    def update_ratio(self) -> float:
        """Norm of the update divided by the norm of the weights, usually about 1e-3; NaN if no step was computed."""
        return self.update / self.weight if self.weight else math.nan

    @staticmethod
    def of(name: str, array: AnyArray) -> Stats:
        wide = array.astype(np.float64)
        with np.errstate(all="ignore"):  # no warnings about infinities
            norm = float(np.sqrt((wide**2).sum()))
            return Stats(name, float(wide.min()), float(wide.max()), float(wide.mean()), norm, wide.size)

    @staticmethod
    def together(name: str, parts: Sequence[Stats]) -> Stats:
        """The statistics of several arrays, as if they were one."""
        size = sum(s.size for s in parts)
        mean = sum(s.mean * s.size for s in parts) / size
        norm = math.hypot(*(s.norm for s in parts))
        units, dead = sum(s.units for s in parts), sum(s.dead for s in parts)
        weight, update = (math.hypot(*values) for values in zip(*((s.weight, s.update) for s in parts), strict=True))
        low, high = min(s.min for s in parts), max(s.max for s in parts)
        return Stats(name, low, high, mean, norm, size, units, dead, weight, update)

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


def stats_of_gradients(
    gradients: Mapping[str, AnyArray], changes: Mapping[str, tuple[AnyArray, AnyArray]]
) -> dict[str, Stats]:
    """The statistics of each gradient; `changes` has parameters before and after a step."""
    result = {}
    for name, gradient in gradients.items():
        stats = Stats.of(name, gradient)
        if gradient.ndim > 1:
            alive = np.count_nonzero(gradient.reshape(len(gradient), -1).any(axis=1))
            stats = replace(stats, units=len(gradient), dead=len(gradient) - int(alive))
        if name in changes:
            before, after = (array.astype(np.float64) for array in changes[name])
            norms = float(np.linalg.norm(before.ravel())), float(np.linalg.norm((after - before).ravel()))
            stats = replace(stats, weight=norms[0], update=norms[1])
        result[name] = stats
    return result


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
    gradients = any(r.units or math.isfinite(r.update) for r in rows)
    names = ("min", "max", "mean", "norm", *(("update/w", "dead") if gradients else ()))
    head = f"{heading.ljust(width)}" + "".join(f"  {name:>11}" for name in names)
    body = [
        f"{r.name.ljust(width)}  {r.min:11.4g}  {r.max:11.4g}  {r.mean:11.4g}  {r.norm:11.4g}"
        + (f"  {_ratio(r):>11}  {_dead(r):>11}" if gradients else "")
        + f"  {r.verdict}"
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in (head, *body))


def _ratio(stats: Stats) -> str:
    return f"{stats.update_ratio:.4g}" if math.isfinite(stats.update_ratio) else "-"


def _dead(stats: Stats) -> str:
    return f"{stats.dead}/{stats.units}" if stats.units else "-"
