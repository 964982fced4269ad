"""LAMB and LARS: each parameter's step is proportional to the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED, moments
from wholestep.optim.core.base import Optimizer, Scalars
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
            m, v = moments(self, graph, s, w, g)
            r = self.penalised(s, w, unbias * m / (v.sqrt() * root + s["eps"]))
            new.append(w - s["lr"] * _trust(w, r) * r)
        return new


def _trust(w: Tensor, r: Tensor) -> Tensor:
    """The trust ratio ‖w‖/‖r‖, or 1 where one of them is 0."""
    size, length = (w * w).sum().sqrt(), (r * r).sum().sqrt()
    both = (size > 0.0) & (length > 0.0)
    return fn.where(both, size / fn.where(both, length, 1.0), 1.0)


@with_aliases(learning_rate="lr", epsilon="eps")
@dataclass(frozen=True)
class LARS(Optimizer):
    """LARS (arXiv:1708.03888):

        λ = trust_coefficient·‖w‖ / (‖g‖ + weight_decay·‖w‖ + eps),  1 where ‖w‖ or ‖g‖ is 0
        v ← momentum·v + lr·λ·(g + weight_decay·w)        w ← w - v

    It departs from the paper by eps.  Every parameter has a λ; those of biases and norms are often left to plain
    momentum: `groups=[ws.Group(ndim=1, name="small", optimizer=ws.SGD(lr=0.1, momentum=0.9))]`.

    Args:
        lr: the learning rate, which is large here: about 1 for each 256 rows of a batch.
        momentum: the fraction of the last step that is kept; 0 leaves it out of the program.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        trust_coefficient: the length of a step relative to the weights, at an lr of 1.
        eps: keeps the quotient finite.

    Example: `ws.LARS(lr=1.0, weight_decay=1e-4)`.
    """

    lr: Number = number(1.0)
    momentum: Number = number(0.9, below=1.0, optional=True, trial=0.6)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    trust_coefficient: Number = number(0.001, trial=0.5)
    eps: Number = number(1e-8, trial=EPS_TRIED)

    slot: ClassVar[str] = "lars"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g in zip(params, grads, strict=True):
            step = s["lr"] * self._local_rate(s, w, g) * self.penalised(s, w, g)
            if "momentum" in s:
                velocity = self.state(graph, w, "velocity")
                step = s["momentum"] * velocity + step
                graph.update(velocity, step)
            new.append(w - step)
        return new

    def _local_rate(self, s: Scalars, w: Tensor, g: Tensor) -> Tensor:
        """λ"""
        size, slope = (w * w).sum().sqrt(), (g * g).sum().sqrt()
        below = slope + s["eps"]
        if "weight_decay" in s and self.decays(w):
            below = below + s["weight_decay"] * size
        both = (size > 0.0) & (slope > 0.0)
        return fn.where(both, s["trust_coefficient"] * size / fn.where(both, below, 1.0), 1.0)
