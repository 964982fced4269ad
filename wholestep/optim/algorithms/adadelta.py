"""Adadelta: steps in the units of the weights, derived from previous steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import EPS_TRIED, Number, number, with_aliases


@with_aliases(learning_rate="lr", epsilon="eps")
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (arXiv:1212.5701), with a learning rate as torch has it:

        v ← ρ·v + (1 - ρ)·g²        d = √(a + eps)/√(v + eps)·g
        a ← ρ·a + (1 - ρ)·d²        w ← w - lr·d

    Args:
        lr: the factor of the steps; the paper has 1.
        rho: the memory of the two averages.
        eps: keeps the quotient finite, and the first steps from being 0.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.

    Example: `ws.Adadelta(lr=1.0)`.
    """

    lr: Number = number(1.0)
    rho: Number = number(0.9, high=1.0, trial=0.05)
    eps: Number = number(1e-6, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adadelta"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        rho, fresh, eps = s["rho"], 1.0 - s["rho"], s["eps"]
        new = []
        for w, g in zip(params, grads, strict=True):
            g = self.penalised(s, w, g)
            v, steps = self.state(graph, w, "v"), self.state(graph, w, "steps")
            new_v = rho * v + fresh * g * g
            d = (steps + eps).sqrt() / (new_v + eps).sqrt() * g
            graph.update(v, new_v)
            graph.update(steps, rho * steps + fresh * d * d)
            new.append(w - s["lr"] * d)
        return new
