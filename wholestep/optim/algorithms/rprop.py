"""Rprop: steps that depend only on the signs of gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import Number, number, numbers, with_aliases


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class Rprop(Optimizer):
    """Resilient backpropagation (Riedmiller and Braun, 1993), as torch defines it, element by element:

        s ← clip(s·η⁺ where g kept its sign, s·η⁻ where it changed, s where one of the two was 0)
        w ← w - s·sign(g), and no step where the sign changed

    For whole data sets: with small batches signs change by chance.

    Args:
        lr: the initial s; later values, and a schedule of it, change nothing.
        etas: (η⁻, η⁺), by which steps shrink and grow.
        step_sizes: the smallest and the largest step.

    Example: `ws.Rprop(lr=1e-2)`.
    """

    lr: Number = number(1e-2)
    etas: tuple[Number, Number] = numbers((0.5, 1.2), ("eta_minus", "eta_plus"), trial=(0.5, 1.2))
    step_sizes: tuple[Number, Number] = numbers((1e-6, 50.0), ("smallest", "largest"), trial=(1e-6, 50.0))

    slot: ClassVar[str] = "rprop"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g, first in zip(params, grads, self.by_update(graph, params, lambda t: t < 2.0), strict=True):
            before, size = self.state(graph, w, "gradient"), self.state(graph, w, "size")
            agree = g * before
            shrink_or_keep = fn.where(agree < 0.0, s["eta_minus"], 1.0)
            factor = fn.where(agree > 0.0, s["eta_plus"], shrink_or_keep).astype(w.dtype)
            grown = fn.where(first, s["lr"], size) * factor
            new_size = fn.maximum(fn.minimum(grown, s["largest"]), s["smallest"])
            followed = fn.where(agree < 0.0, 0.0, g)
            graph.update(before, followed)
            graph.update(size, new_size)
            new.append(w - new_size * fn.sign(followed))
        return new
