"""LARS: momentum with each parameter's learning rate proportional to the norm of its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, with_aliases


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
