"""LAMB: Adam with each parameter's step scaled by the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class LAMB(Optimizer):
    """LAMB (arXiv:1904.00962, second version, φ the identity); m and v as in Adam:

        r = m/(1 - β₁ᵗ) / (√(v/(1 - β₂ᵗ)) + eps) + weight_decay·w
        w ← w - lr·(‖w‖/‖r‖)·r,  with 1 in place of the quotient where either norm is 0

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite.
        weight_decay: part of r, by default for parameters with two or more axes.

    Example: `ws.LAMB(lr=1e-3, weight_decay=0.01)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-6, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "lamb"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        factors = self.by_update(graph, params, lambda t: ((1.0 - beta1**t).recip(), (1.0 - beta2**t).sqrt().recip()))
        new = []
        for w, g, (unbias, root) in zip(params, grads, factors, strict=True):
            m, v = self.state(graph, w, "m"), self.state(graph, w, "v")
            new_m = beta1 * m + (1.0 - beta1) * g
            new_v = beta2 * v + (1.0 - beta2) * g * g
            graph.update(m, new_m)
            graph.update(v, new_v)
            r = self.penalised(s, w, unbias * new_m / (new_v.sqrt() * root + s["eps"]))
            new.append(w - s["lr"] * _trust(w, r) * r)
        return new


def _trust(w: Tensor, r: Tensor) -> Tensor:
    """The trust ratio ‖w‖/‖r‖, or 1 where one of them is 0."""
    size, length = (w * w).sum().sqrt(), (r * r).sum().sqrt()
    both = (size > 0.0) & (length > 0.0)
    return fn.where(both, size / fn.where(both, length, 1.0), 1.0)
