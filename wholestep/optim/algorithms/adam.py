"""Adam, AdamW and AMSGrad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases

ALIASES = {
    "learning_rate": "lr", "beta1": "betas[0]", "beta2": "betas[1]", "epsilon": "eps",
    "beta_1": "betas[0]", "beta_2": "betas[1]",
}  # fmt: skip
BETAS, BETAS_TRIED = ("beta1", "beta2"), (0.6, 0.7)


def moments(rule: Optimizer, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Advance both averages of Adam: m ← β₁·m + (1 - β₁)·g and v ← β₂·v + (1 - β₂)·g²."""
    m, v = rule.state(graph, w, "m"), rule.state(graph, w, "v")
    new_m = s["beta1"] * m + (1.0 - s["beta1"]) * g
    new_v = s["beta2"] * v + (1.0 - s["beta2"]) * g * g
    graph.update(m, new_m)
    graph.update(v, new_v)
    return new_m, new_v


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (arXiv:1412.6980), bias-corrected, eps outside the root:

        m ← β₁·m + (1 - β₁)·g        v ← β₂·v + (1 - β₂)·g²
        w ← w - lr/(1 - β₁ᵗ) · m / (√v/√(1 - β₂ᵗ) + eps),   t = 1, 2, ...

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite.
        weight_decay: an L2 penalty added to the gradient, by default on parameters with two or more axes.
        amsgrad: divide by the largest v so far (see `AMSGrad`).

    Example: `ws.Adam(lr=1e-3)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    amsgrad: bool = False

    slot: ClassVar[str] = "adam"
    _decoupled: ClassVar[bool] = False  # does weight decay act on the weights instead of the gradient?

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        factors = self.by_update(graph, params, lambda t: (s["lr"] / (1.0 - beta1**t), (1.0 - beta2**t).sqrt().recip()))
        new = []
        for w, g, (rate, root) in zip(params, grads, factors, strict=True):
            start, g = self._apply_decay(s, w, g, decoupled=self._decoupled)
            m, v = self._moments(graph, s, w, g)
            new.append(start - rate * m / (self._second(graph, w, v).sqrt() * root + s["eps"]))
        return new

    def _moments(self, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Both averages after this update."""
        return moments(self, graph, s, w, g)

    def _second(self, graph: Graph, w: Tensor, v: Tensor) -> Tensor:
        """The second moment in the denominator: the new v, or the largest so far."""
        if not self.amsgrad:
            return v
        largest = self.state(graph, w, "v_max")
        new = fn.maximum(largest, v)
        graph.update(largest, new)
        return new


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay acts on the weights, w ← (1 - lr·weight_decay)·w, not on the gradient (arXiv:1711.05101).

    It departs from the paper as torch does: the decay is multiplied by lr, so that a schedule moves both.

    Example: `ws.AdamW(lr=1e-3, weight_decay=0.01)`.
    """

    weight_decay: Number = number(0.01, optional=True, trial=0.1)

    _decoupled: ClassVar[bool] = True


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class AMSGrad(Adam):
    """Adam with the largest second moment so far as denominator, v̂ ← max(v̂, v), so that step sizes never increase
    (arXiv:1904.09237).

    It departs from the paper as torch does: the moments are bias-corrected.

    Example: `ws.AMSGrad(lr=1e-3)` is `ws.Adam(lr=1e-3, amsgrad=True)`.
    """

    amsgrad: bool = True
