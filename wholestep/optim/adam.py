"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.base import Number, Optimizer, check_number, is_off, with_aliases


@with_aliases(learning_rate="lr", beta1="betas[0]", beta2="betas[1]", epsilon="eps")
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

    Example: `ws.Adam(lr=1e-3)`.
    """

    lr: Number = 1e-3
    betas: tuple[Number, Number] = (0.9, 0.999)
    eps: Number = 1e-8
    weight_decay: Number = 0.0

    def __post_init__(self) -> None:
        kind = type(self).__name__
        for what in ("lr", "eps", "weight_decay"):
            check_number(kind, what, getattr(self, what))
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            fail(OptionError, f"{kind}: betas is a pair, e.g. (0.9, 0.999); received {self.betas!r}.")
        for position, beta in enumerate(self.betas):
            check_number(kind, f"betas[{position}]", beta, below=1.0)
        object.__setattr__(self, "betas", tuple(self.betas))

    def hyperparameters(self) -> dict[str, Number]:
        always = {"lr": self.lr, "beta1": self.betas[0], "beta2": self.betas[1], "eps": self.eps}
        return always if is_off(self.weight_decay) else {**always, "weight_decay": self.weight_decay}

    def apply(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        t = graph.step + 1.0
        rate = s["lr"] / (1.0 - beta1**t)
        root = (1.0 - beta2**t).sqrt().recip()
        fresh1, fresh2 = 1.0 - beta1, 1.0 - beta2
        for w, g in zip(params, grads, strict=True):
            w_start, g = self._decayed(s, w, g)
            m = graph.state(f"{w.name}.adam.m", w.shape, dtype=w.dtype)
            v = graph.state(f"{w.name}.adam.v", w.shape, dtype=w.dtype)
            new_m = beta1 * m + fresh1 * g
            new_v = beta2 * v + fresh2 * g * g
            graph.update(m, new_m)
            graph.update(v, new_v)
            graph.update(w, w_start - rate * new_m / (new_v.sqrt() * root + s["eps"]))

    def _decayed(self, s: dict[str, Tensor], w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """Where the step starts from, and along which gradient."""
        if "weight_decay" in s and self.decays(w):
            return w, g + s["weight_decay"] * w
        return w, g


@with_aliases(learning_rate="lr", beta1="betas[0]", beta2="betas[1]", epsilon="eps")
@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay acts on the weights, w ← (1 - lr·weight_decay)·w, not on the gradient (arXiv:1711.05101).

    Example: `ws.AdamW(lr=1e-3, weight_decay=0.01)`.
    """

    weight_decay: Number = 0.01

    def _decayed(self, s: dict[str, Tensor], w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        if "weight_decay" in s and self.decays(w):
            return w * (1.0 - s["lr"] * s["weight_decay"]), g
        return w, g
