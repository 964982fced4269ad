"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import Number, is_off, number, with_aliases


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class SGD(Optimizer):
    """w ← w - lr·v, with v ← momentum·v + (1 - dampening)·(g + weight_decay·w), as torch defines it.

    Without momentum v is the gradient itself; with nesterov the step is g + momentum·v.

    Args:
        lr: the learning rate.
        momentum: the fraction of the last direction that is kept; 0 leaves momentum out of the program.
        dampening: the fraction of the gradient that v leaves out, from the second step on.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        nesterov: look ahead along v (needs momentum, excludes dampening).

    Example: `ws.SGD(lr=0.1, momentum=0.9, nesterov=True)`.
    """

    lr: Number = number(0.01)
    momentum: Number = number(0.0, optional=True, trial=0.6)
    dampening: Number = number(0.0, optional=True, trial=0.3)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    nesterov: bool = False

    slot: ClassVar[str] = "sgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nesterov and (is_off(self.momentum) or not is_off(self.dampening)):
            fail(
                OptionError,
                f"SGD: nesterov needs momentum and no dampening; received {self.momentum} and {self.dampening}.",
            )
        if is_off(self.momentum) and not is_off(self.dampening):
            fail(OptionError, f"SGD: dampening acts on momentum, which is off; received dampening={self.dampening}.")

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        return [w - s["lr"] * self._direction(graph, s, w, g) for w, g in zip(params, grads, strict=True)]

    def _direction(self, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> Tensor:
        g = self.penalised(s, w, g)
        if "momentum" not in s:
            return g
        velocity, fresh = self.state(graph, w, "velocity"), g
        if "dampening" in s:
            # The first gradient is not dampened: the velocity starts as the gradient itself.
            fresh = (1.0 - s["dampening"] * fn.minimum(self.update_number(graph, w) - 1.0, 1.0)) * g
        moved = s["momentum"] * velocity + fresh
        graph.update(velocity, moved)
        return g + s["momentum"] * moved if self.nesterov else moved
