"""Adafactor: a factored second moment, stored as one row and one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class Adafactor(Optimizer):
    """Adafactor (arXiv:1804.04235), as torch defines it; with β = 1 - t^beta2_decay and the mean square over an axis,

        R ← β·R + (1 - β)·mean(g², last axis)      C ← β·C + (1 - β)·mean(g², last but one)
        v = R·C / max(mean(R), eps₁)               (vectors: v ← β·v + (1 - β)·g²)
        u = g / max(√v, eps₁)                      α = max(eps₂, RMS(w))·min(lr, 1/√t)
        w ← (1 - lr·weight_decay)·w - α / max(1, RMS(u)/d)·u

    It departs from the paper as torch does: eps₁ is not added to the squares but bounds v and its divisor from below,
    and lr bounds the relative step, of which there is always one.

    Args:
        lr: the upper limit of the relative step 1/√t.
        beta2_decay: the exponent of t in β.
        eps: (eps₁, eps₂); eps₁ None is the rounding unit of the parameter's dtype.
        d: the largest root mean square of u.
        weight_decay: decoupled, by default on parameters with two or more axes.

    Example: `ws.Adafactor(lr=1e-2)`.
    """

    lr: Number = number(1e-2)
    beta2_decay: Number = number(-0.8, low=float("-inf"), high=0.0, trial=-0.8)
    eps: tuple[Number | None, Number] = numbers((None, 1e-3), ("eps1", "eps2"), none=True, trial=(EPS_TRIED, EPS_TRIED))
    d: Number = number(1.0, trial=1.0)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adafactor"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        factors = self.by_update(
            graph, params, lambda t: (t ** s["beta2_decay"], fn.minimum(s["lr"], t.sqrt().recip()))
        )
        new = []
        for w, g, (fresh, bound) in zip(params, grads, factors, strict=True):
            eps1: Tensor | float = s["eps1"] if "eps1" in s else float(np.finfo(w.dtype.numpy).eps)
            v = self._second_moment(graph, w, g, fresh, eps1)
            u = g / fn.maximum(v.sqrt(), eps1)
            alpha = fn.maximum(_rms(w), s["eps2"]) * bound
            new.append(self.shrunk(s, w) - alpha / fn.maximum(_rms(u) / s["d"], 1.0) * u)
        return new

    def _second_moment(self, graph: Graph, w: Tensor, g: Tensor, fresh: Tensor, eps1: Tensor | float) -> Tensor:
        squares = g * g
        if w.ndim < 2:
            return self._average(graph, w, "v", squares, fresh)
        rows = self._average(graph, w, "rows", squares.mean(axis=-1, keepdims=True), fresh)
        columns = self._average(graph, w, "columns", squares.mean(axis=-2, keepdims=True), fresh)
        return rows * columns / fn.maximum(rows.mean(axis=-2, keepdims=True), eps1)

    def _average(self, graph: Graph, w: Tensor, what: str, value: Tensor, fresh: Tensor) -> Tensor:
        average = self.state(graph, w, what, shape=value.shape)
        new = average + fresh * (value - average)
        graph.update(average, new)
        return new


def _rms(x: Tensor) -> Tensor:
    """The root mean square."""
    return (x * x).mean().sqrt()
