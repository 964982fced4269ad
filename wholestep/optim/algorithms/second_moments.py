"""AdaBelief, Yogi, Adan, NovoGrad: Adam's averages with another second moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class AdaBelief(Optimizer):
    """AdaBelief (arXiv:2010.07468): the step is short where gradients differ from their average:

        m ← β₁·m + (1 - β₁)·g        v ← β₂·v + (1 - β₂)·(g - m)² + eps
        w ← (1 - lr·weight_decay)·w - lr/(1 - β₁ᵗ)·m / (√v/√(1 - β₂ᵗ) + eps)

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite, inside and outside the root; the authors' 1e-16 permits long steps.
        weight_decay: decoupled, by default on parameters with two or more axes.

    Example: `ws.AdaBelief(lr=1e-3)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-16, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adabelief"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g, (rate, root) in zip(params, grads, _corrections(self, graph, s, params), strict=True):
            m, v = self.state(graph, w, "m"), self.state(graph, w, "v")
            new_m = s["beta1"] * m + (1.0 - s["beta1"]) * g
            surprise = g - new_m
            new_v = s["beta2"] * v + (1.0 - s["beta2"]) * surprise * surprise + s["eps"]
            graph.update(m, new_m)
            graph.update(v, new_v)
            new.append(self.shrunk(s, w) - rate * new_m / (new_v.sqrt() * root + s["eps"]))
        return new


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class Yogi(Optimizer):
    """Yogi (Zaheer et al., 2018): the second moment moves towards g² by at most (1 - β₂)·g²; m as in Adam:

        v ← v - (1 - β₂)·sign(v - g²)·g²
        w ← w - lr/(1 - β₁ᵗ)·m / (√v/√(1 - β₂ᵗ) + eps)

    It departs from the paper as other libraries do: both averages are bias-corrected.

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite; large, by the authors' advice.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        initial_accumulator_value: the initial v.

    Example: `ws.Yogi(lr=1e-2)`.
    """

    lr: Number = number(1e-2)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-3, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    initial_accumulator_value: float = number(1e-6, structural=True)

    slot: ClassVar[str] = "yogi"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g, (rate, root) in zip(params, grads, _corrections(self, graph, s, params), strict=True):
            g = self.penalised(s, w, g)
            m, v = self.state(graph, w, "m"), self.state(graph, w, "v", init=self.initial_accumulator_value)
            new_m = s["beta1"] * m + (1.0 - s["beta1"]) * g
            square = g * g
            new_v = v - (1.0 - s["beta2"]) * fn.sign(v - square) * square
            graph.update(m, new_m)
            graph.update(v, new_v)
            new.append(w - rate * new_m / (new_v.sqrt() * root + s["eps"]))
        return new


def _corrections(rule: Optimizer, graph: Graph, s: Scalars, params: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Adam's bias corrections: lr/(1 - β₁ᵗ) and 1/√(1 - β₂ᵗ)."""
    beta1, beta2 = s["beta1"], s["beta2"]
    return rule.by_update(graph, params, lambda t: (s["lr"] / (1.0 - beta1**t), (1.0 - beta2**t).sqrt().recip()))


@with_aliases(learning_rate="lr", beta1="betas[0]", beta2="betas[1]", beta3="betas[2]", epsilon="eps")
@dataclass(frozen=True)
class Adan(Optimizer):
    """Adan (arXiv:2208.06677): Nesterov momentum from differences of gradients; d = g - the last g, 0 at first:

        m ← β₁·m + (1 - β₁)·g    n ← β₂·n + (1 - β₂)·d    v ← β₃·v + (1 - β₃)·(g + β₂·d)²
        w ← (w - lr·(m/(1 - β₁ᵗ) + β₂·n/(1 - β₂ᵗ)) / (√v/√(1 - β₃ᵗ) + eps)) / (1 + lr·weight_decay)

    As in the authors' code, β is the memory of an average; the paper writes 1 - β.

    Args:
        lr: the learning rate, which may be larger than Adam's.
        betas: (β₁, β₂, β₃), the memory of the three averages.
        eps: keeps the quotient finite.
        weight_decay: proximal, by default on parameters with two or more axes.

    Example: `ws.Adan(lr=1e-3, weight_decay=0.02)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number, Number] = numbers(
        (0.98, 0.92, 0.99), ("beta1", "beta2", "beta3"), below=1.0, trial=(0.6, 0.7, 0.8)
    )
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adan"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2, beta3 = s["beta1"], s["beta2"], s["beta3"]

        def factors(t: Tensor) -> tuple[Tensor, ...]:
            along_n = s["lr"] * beta2 / (1.0 - beta2**t)
            return t < 2.0, s["lr"] / (1.0 - beta1**t), along_n, (1.0 - beta3**t).sqrt().recip()

        new = []
        rates = self.by_update(graph, params, factors)
        for w, g, (first, along_m, along_n, root) in zip(params, grads, rates, strict=True):
            m, n, v, last = (self.state(graph, w, what) for what in ("m", "n", "v", "gradient"))
            change = fn.where(first, 0.0, g - last)
            ahead = g + beta2 * change
            new_m = beta1 * m + (1.0 - beta1) * g
            new_n = beta2 * n + (1.0 - beta2) * change
            new_v = beta3 * v + (1.0 - beta3) * ahead * ahead
            for state, value in ((m, new_m), (n, new_n), (v, new_v), (last, g)):
                graph.update(state, value)
            moved = w - (along_m * new_m + along_n * new_n) / (new_v.sqrt() * root + s["eps"])
            decays = "weight_decay" in s and self.decays(w)
            new.append(moved / (1.0 + s["lr"] * s["weight_decay"]) if decays else moved)
        return new


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class NovoGrad(Optimizer):
    """NovoGrad (arXiv:1905.11286): one second moment for each parameter, a single number; the first v is ‖g‖²:

        v ← β₂·v + (1 - β₂)·‖g‖²        m ← β₁·m + g/(√v + eps) + weight_decay·w        w ← w - lr·m

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of m and of v.
        eps: keeps the quotient finite.
        weight_decay: part of m, by default for parameters with two or more axes.

    Example: `ws.NovoGrad(lr=1e-2, weight_decay=1e-3)`.
    """

    lr: Number = number(1e-2)
    betas: tuple[Number, Number] = numbers((0.95, 0.98), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "novograd"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g, first in zip(params, grads, self.by_update(graph, params, lambda t: t < 2.0), strict=True):
            m, v = self.state(graph, w, "m"), self.state(graph, w, "v", shape=())
            square = (g * g).sum()
            new_v = fn.where(first, square, s["beta2"] * v + (1.0 - s["beta2"]) * square)
            new_m = s["beta1"] * m + self.penalised(s, w, g / (new_v.sqrt() + s["eps"]))
            graph.update(m, new_m)
            graph.update(v, new_v)
            new.append(w - s["lr"] * new_m)
        return new
