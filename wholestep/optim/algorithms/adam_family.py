"""NAdam, RAdam, Adamax, AdEMAMix: Adam with Nesterov momentum, a rectified second moment, a maximum, a slow average."""

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
class NAdam(Optimizer):
    """Adam with Nesterov's momentum (Dozat, 2016):

        μₜ = β₁·(1 - ½·0.96^(t·momentum_decay))      Πₜ = μ₁·…·μₜ
        m, v as in Adam
        w ← w - lr·((1 - μₜ)/(1 - Πₜ)·g + μₜ₊₁/(1 - Πₜ₊₁)·m) / (√v/√(1 - β₂ᵗ) + eps)

    Πₜ has no closed form: it is a float64 state of each parameter, `w.nadam.mu_product`.

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite, outside the root as in torch.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        momentum_decay: how quickly μ approaches β₁.
        decoupled_weight_decay: decay the weights as AdamW does.

    Example: `ws.NAdam(lr=2e-3)`.
    """

    lr: Number = number(2e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    momentum_decay: Number = number(4e-3, trial=4e-3)
    decoupled_weight_decay: bool = False

    slot: ClassVar[str] = "nadam"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g, (mu, mu_next, root) in zip(params, grads, self._momenta(graph, s, params), strict=True):
            product = self._product(graph, w, mu)
            along_g, along_m = s["lr"] * (1.0 - mu) / (1.0 - product), s["lr"] * mu_next / (1.0 - product * mu_next)
            start, g = self._apply_decay(s, w, g, decoupled=self.decoupled_weight_decay)
            m, v = moments(self, graph, s, w, g)
            direction = along_g.astype(w.dtype) * g + along_m.astype(w.dtype) * m
            new.append(start - direction / (v.sqrt() * root + s["eps"]))
        return new

    def _momenta(self, graph: Graph, s: Scalars, params: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The factors μₜ, μₜ₊₁ and 1/√(1 - β₂ᵗ)."""

        def mu(t: Tensor) -> Tensor:
            return s["beta1"] * (1.0 - 0.5 * 0.96 ** (t * s["momentum_decay"]))

        return self.by_update(graph, params, lambda t: (mu(t), mu(t + 1.0), (1.0 - s["beta2"] ** t).sqrt().recip()))

    def _product(self, graph: Graph, w: Tensor, mu: Tensor) -> Tensor:
        """μ₁·…·μₜ"""
        before = graph.state(f"{w.name}.{self.slot}.mu_product", (), 1.0, dtype="float64")
        after = before * mu
        graph.update(before, after)
        return after


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class RAdam(Optimizer):
    """Adam with a rectified second moment (arXiv:1908.03265); m and v as in Adam:

        ρ∞ = 2/(1 - β₂) - 1        ρₜ = ρ∞ - 2t·β₂ᵗ/(1 - β₂ᵗ)
        r = √((ρₜ - 4)(ρₜ - 2)ρ∞ / ((ρ∞ - 4)(ρ∞ - 2)ρₜ))
        w ← w - lr/(1 - β₁ᵗ)·m·r·√(1 - β₂ᵗ)/(√v + eps) where ρₜ > 5,  else  w - lr/(1 - β₁ᵗ)·m

    It departs from the paper as torch does: the threshold is 5 (paper: 4), and eps is outside the root.

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        eps: keeps the quotient finite.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        decoupled_weight_decay: decay the weights as AdamW does.

    Example: `ws.RAdam(lr=1e-3)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    decoupled_weight_decay: bool = False

    slot: ClassVar[str] = "radam"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        factors = self.by_update(graph, params, lambda t: (s["lr"] / (1.0 - beta1**t), *self._rectification(beta2, t)))
        new = []
        for w, g, (rate, adaptive, scale) in zip(params, grads, factors, strict=True):
            start, g = self._apply_decay(s, w, g, decoupled=self.decoupled_weight_decay)
            m, v = moments(self, graph, s, w, g)
            # One quotient for both cases: m·scale/(√v + eps), or m/1.
            divisor = adaptive * (v.sqrt() + s["eps"]) + (1.0 - adaptive)
            new.append(start - rate * scale * m / divisor)
        return new

    @staticmethod
    def _rectification(beta2: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Whether the second moment is used (1 or 0), and the factor of the step."""
        limit = 2.0 / (1.0 - beta2) - 1.0
        correction = 1.0 - beta2**t
        rho = limit - 2.0 * t * beta2**t / correction
        square = (rho - 4.0) * (rho - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * rho)
        used = rho > 5.0
        # Below the threshold the argument may be negative; its root is not used there.
        scale = fn.where(used, (fn.maximum(square, 0.0) * correction).sqrt(), 1.0)
        return fn.where(used, 1.0, 0.0), scale


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adam with the largest gradient in place of the second moment (arXiv:1412.6980, section 7), as torch defines it:

        m ← β₁·m + (1 - β₁)·g        u ← max(β₂·u, |g| + eps)        w ← w - lr/(1 - β₁ᵗ)·m/u

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the average and of the maximum.
        eps: keeps the quotient finite.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.

    Example: `ws.Adamax(lr=2e-3)`.
    """

    lr: Number = number(2e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adamax"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        rates = self.by_update(graph, params, lambda t: s["lr"] / (1.0 - beta1**t))
        new = []
        for w, g, rate in zip(params, grads, rates, strict=True):
            g = self.penalised(s, w, g)
            m, largest = self.state(graph, w, "m"), self.state(graph, w, "largest")
            new_m = beta1 * m + (1.0 - beta1) * g
            new_largest = fn.maximum(beta2 * largest, g.abs() + s["eps"])
            graph.update(m, new_m)
            graph.update(largest, new_largest)
            new.append(w - rate * new_m / new_largest)
        return new


@with_aliases(
    learning_rate="lr", beta1="betas[0]", beta2="betas[1]", beta3="betas[2]", epsilon="eps", t_alpha_beta3="warmup"
)
@dataclass(frozen=True)
class AdEMAMix(Optimizer):
    """AdEMAMix (arXiv:2409.03137); v and the fast average m as in Adam, t = 1, 2, ...:

        n ← β₃·n + (1 - β₃)·g
        w ← (1 - lr·weight_decay)·w - lr·(m/(1 - β₁ᵗ) + α·n) / (√v/√(1 - β₂ᵗ) + eps)

    With a `warmup` of T updates α grows along a line, αt/T, and β₃ from β₁ such that the half-life of n does:
    β₃(t) = exp(ln β₁·ln β₃ / ((1 - t/T)·ln β₃ + t/T·ln β₁)).

    Args:
        lr: the learning rate.
        betas: (β₁, β₂, β₃), the memory of the three averages.
        alpha: the weight of the slow average.
        eps: keeps the quotient finite.
        weight_decay: decoupled, by default on parameters with two or more axes.
        warmup: the updates in which α and β₃ reach their values; 0 leaves it out of the program.

    Example: `ws.AdEMAMix(lr=1e-3, warmup=10_000)`.
    """

    lr: Number = number(1e-3)
    betas: tuple[Number, Number, Number] = numbers(
        (0.9, 0.999, 0.9999), ("beta1", "beta2", "beta3"), below=1.0, trial=(0.6, 0.7, 0.8)
    )
    alpha: Number = number(5.0, trial=0.7)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    warmup: Number = number(0.0, optional=True, trial=10.0)

    slot: ClassVar[str] = "ademamix"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]

        def factors(t: Tensor) -> tuple[Tensor, ...]:
            return ((1.0 - beta1**t).recip(), (1.0 - beta2**t).sqrt().recip(), *self._slow(s, t))

        new = []
        for w, g, (unbias, root, alpha, beta3) in zip(
            params, grads, self.by_update(graph, params, factors), strict=True
        ):
            m, n, v = (self.state(graph, w, what) for what in ("m", "n", "v"))
            new_m = beta1 * m + (1.0 - beta1) * g
            new_n = beta3 * n + (1.0 - beta3) * g
            new_v = beta2 * v + (1.0 - beta2) * g * g
            for state, value in ((m, new_m), (n, new_n), (v, new_v)):
                graph.update(state, value)
            step = (unbias * new_m + alpha * new_n) / (new_v.sqrt() * root + s["eps"])
            new.append(self.shrunk(s, w) - s["lr"] * step)
        return new

    @staticmethod
    def _slow(s: Scalars, t: Tensor) -> tuple[Tensor, Tensor]:
        """The values of α and β₃ for an update."""
        if "warmup" not in s:
            return s["alpha"], s["beta3"]
        done = fn.minimum(t / s["warmup"], 1.0)
        first, last = fn.log(s["beta1"]), fn.log(s["beta3"])
        return s["alpha"] * done, fn.exp(first * last / ((1.0 - done) * last + done * first))
