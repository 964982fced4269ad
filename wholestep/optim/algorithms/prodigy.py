"""Prodigy: Adam that estimates its own learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.gradient_transforms import sum_in_float64
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class Prodigy(Optimizer):
    """Prodigy (arXiv:2306.06101, the Adam form), as the authors' code has it; w₀ are the first weights, β₃ = √β₂:

        r ← β₃·r + d²/d0·lr·⟨g, w₀ - w⟩      s ← β₃·s + d²/d0·lr·g      d̂ = d_coef·r/‖s‖₁
        m ← β₁·m + (1 - β₁)·d·g             v ← β₂·v + (1 - β₂)·d²·g²
        w ← w - d·lr·(m/(√v + d⁺·eps) + weight_decay·w),  then d ← d⁺ = max(d, d̂), at most growth_rate·d

    d, the estimate of the distance to the solution, is of all parameters of the optimizer (or of a group) together: the
    states `optimizer.prodigy.d`, `….d_max` and `….r`.

    Args:
        lr: the factor of the rate that it finds; 1 or a schedule that begins with 1.
        betas: (β₁, β₂), the memory of the averages.
        eps: keeps the quotient finite.
        weight_decay: decoupled, by default on parameters with two or more axes.
        d0: the initial d; any small number will do.
        d_coef: the factor of d̂: where it ends too high or too low.
        growth_rate: the largest factor by which d grows in an update.
        bias_correction: multiply the step by √(1 - β₂ᵗ)/(1 - β₁ᵗ).

    Example: `ws.Prodigy(weight_decay=0.01)`.
    """

    lr: Number = number(1.0)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    d0: Number = number(1e-6, trial=0.5)
    d_coef: Number = number(1.0, trial=1.0)
    growth_rate: Number = number(1e300, low=1.0, trial=2.0)
    bias_correction: bool = False

    slot: ClassVar[str] = "prodigy"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        first = self.by_update(graph, params[:1], lambda t: t < 2.0)[0]
        states = {what: self._scalar_state(graph, what) for what in ("d", "d_max", "r")}
        d, d_max = (fn.where(first, s["d0"], states[what]) for what in ("d", "d_max"))
        r = fn.where(first, 0.0, states["r"])
        rate = d * s["lr"] * self._bias_correction(graph, s, params)
        pull = d / s["d0"] * rate
        starts, sums = self._sums(graph, s, params, grads, pull)
        away = sum_in_float64([(g * (start - w)).sum() for w, g, start in zip(params, grads, starts, strict=True)])
        new_r = s["beta2"].sqrt() * r + pull * away
        length = sum_in_float64([x.abs().sum() for x in sums])
        new_d, new_max = self._estimate(s, d, d_max, new_r, length)
        for what, value in (("d", new_d), ("d_max", new_max), ("r", new_r)):
            graph.update(states[what], value)
        return [self._step_from_start(graph, s, (w, g), (d, new_d, rate)) for w, g in zip(params, grads, strict=True)]

    def _bias_correction(self, graph: Graph, s: Scalars, params: Sequence[Tensor]) -> Tensor | float:
        if not self.bias_correction:
            return 1.0
        beta1, beta2 = s["beta1"], s["beta2"]
        return self.by_update(graph, params[:1], lambda t: (1.0 - beta2**t).sqrt() / (1.0 - beta1**t))[0]

    def _sums(
        self, graph: Graph, s: Scalars, params: Sequence[Tensor], grads: Sequence[Tensor], pull: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The initial weight w₀ and the new s of every parameter."""
        starts, sums = [], []
        for w, g, first in zip(params, grads, self.by_update(graph, params, lambda t: t < 2.0), strict=True):
            start, total = self.state(graph, w, "start"), self.state(graph, w, "s")
            new_start = fn.where(first, w, start)
            new_total = s["beta2"].sqrt() * total + pull.astype(w.dtype) * g
            graph.update(start, new_start)
            graph.update(total, new_total)
            starts.append(new_start)
            sums.append(new_total)
        return starts, sums

    @staticmethod
    def _estimate(s: Scalars, d: Tensor, d_max: Tensor, r: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """The new d, and the largest d̂ so far.  The first increase from d0 is unlimited, later ones by at most
        `growth_rate`.

        Before the first nonzero gradient, d is unchanged.
        """
        has_gradient = length > 0.0
        estimate = fn.where(has_gradient, s["d_coef"] * r / fn.where(has_gradient, length, 1.0), d)
        begun = fn.where(d == s["d0"], fn.maximum(d, estimate), d)
        new_max = fn.maximum(d_max, estimate)
        return fn.where(has_gradient, fn.minimum(new_max, begun * s["growth_rate"]), d), new_max

    def _step_from_start(
        self, graph: Graph, s: Scalars, pair: tuple[Tensor, Tensor], rates: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        w, g = pair
        d, new_d, rate = (x.astype(w.dtype) for x in rates)
        m, v = self.state(graph, w, "m"), self.state(graph, w, "v")
        new_m = s["beta1"] * m + (1.0 - s["beta1"]) * d * g
        new_v = s["beta2"] * v + (1.0 - s["beta2"]) * d * d * g * g
        graph.update(m, new_m)
        graph.update(v, new_v)
        start = w * (1.0 - rate * s["weight_decay"]) if "weight_decay" in s and self.decays(w) else w
        # Before the first nonzero gradient both are 0, and so is the step.
        below = new_v.sqrt() + new_d * s["eps"]
        return start - rate * new_m / fn.where(below > 0.0, below, 1.0)
