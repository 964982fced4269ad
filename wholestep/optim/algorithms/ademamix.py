"""AdEMAMix: Adam with a second, much slower momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


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
