"""ASGD: gradient descent with an average of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import Number, number, with_aliases


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class ASGD(Optimizer):
    """Averaged descent (Polyak and Juditsky, 1992), as torch defines it; t = 1, 2, ...:

        η = lr/(1 + lambd·lr·(t - 1))^alpha        w ← (1 - lambd·η)·w - η·g
        a ← a + (w - a)/max(1, t - 1 - t0)

    The average is the state `<parameter>.asgd.average`; the model keeps w, as torch's does.  To evaluate and save an
    average, wrap any optimizer: `ws.optim.SWA(ws.SGD(lr=0.1), start=1000)`.  It departs from torch where lr changes: η
    follows in the same step, not one later.

    Args:
        lr: the learning rate.
        lambd: how quickly η falls, and a decay of every weight.
        alpha: the power of that fall.
        t0: the number of updates before averaging begins.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.

    Example: `ws.ASGD(lr=1e-2, t0=1000)`.
    """

    lr: Number = number(1e-2)
    lambd: Number = number(1e-4, trial=0.1)
    alpha: Number = number(0.75, trial=0.7)
    t0: Number = number(1e6, trial=1.0)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "asgd"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)

        def factors(t: Tensor) -> tuple[Tensor, Tensor]:
            """The learning rate η, and the weight of the new values in the average."""
            rate = s["lr"] / (1.0 + s["lambd"] * s["lr"] * (t - 1.0)) ** s["alpha"]
            return rate, fn.maximum(t - 1.0 - s["t0"], 1.0).recip()

        new = []
        for w, g, (rate, fresh) in zip(params, grads, self.by_update(graph, params, factors), strict=True):
            moved = w * (1.0 - s["lambd"] * rate) - rate * self.penalised(s, w, g)
            average = self.state(graph, w, "average")
            graph.update(average, (1.0 - fresh) * average + fresh * moved)
            new.append(moved)
        return new
