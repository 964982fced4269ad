"""Lion: steps of constant magnitude, by the sign of the momentum."""

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
