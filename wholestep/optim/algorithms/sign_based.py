"""Lion and Rprop: steps whose size does not depend on the magnitude of the gradient, only on signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import Number, number, numbers, with_aliases


@with_aliases(learning_rate="lr", beta1="betas[0]", beta2="betas[1]")
@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion, evolved sign momentum (arXiv:2302.06675):

        w ← (1 - lr·weight_decay)·w - lr·sign(β₁·m + (1 - β₁)·g)        m ← β₂·m + (1 - β₂)·g

    Args:
        lr: the learning rate; the paper's advice is a third to a tenth of AdamW's.
        betas: (β₁, β₂), the memory of the direction and of m.
        weight_decay: decoupled, by default on parameters with two or more axes.

    Example: `ws.Lion(lr=1e-4, weight_decay=0.1)`.
    """

    lr: Number = number(1e-4)
    betas: tuple[Number, Number] = numbers((0.9, 0.99), BETAS, below=1.0, trial=BETAS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "lion"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        new = []
        for w, g in zip(params, grads, strict=True):
            m = self.state(graph, w, "m")
            graph.update(m, beta2 * m + (1.0 - beta2) * g)
            new.append(self.shrunk(s, w) - s["lr"] * fn.sign(beta1 * m + (1.0 - beta1) * g))
        return new


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
