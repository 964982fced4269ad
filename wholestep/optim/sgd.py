"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.base import Number, Optimizer, check_number, is_off, with_aliases


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class SGD(Optimizer):
    """w ← w - lr·v, with v ← momentum·v + (1 - dampening)·(g + weight_decay·w), as torch defines it.

    Without momentum v is the gradient itself; with nesterov the step is g + momentum·v.

    Args:
        lr: the learning rate.
        momentum: how much of the last direction is kept; 0 leaves momentum out of the program.
        dampening: how much of the gradient is left out of v, from the second step on.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        nesterov: look ahead along v (needs momentum, excludes dampening).

    Example: `ws.SGD(lr=0.1, momentum=0.9, nesterov=True)`.
    """

    lr: Number = 0.01
    momentum: Number = 0.0
    dampening: Number = 0.0
    weight_decay: Number = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        for what in ("lr", "momentum", "dampening", "weight_decay"):
            check_number("SGD", what, getattr(self, what))
        if self.nesterov and (is_off(self.momentum) or not is_off(self.dampening)):
            fail(
                OptionError,
                f"SGD: nesterov needs momentum and no dampening; received {self.momentum} and {self.dampening}.",
            )
        if is_off(self.momentum) and not is_off(self.dampening):
            fail(OptionError, f"SGD: dampening acts on momentum, which is off; received dampening={self.dampening}.")

    def hyperparameters(self) -> dict[str, Number]:
        optional = {"momentum": self.momentum, "dampening": self.dampening, "weight_decay": self.weight_decay}
        return {"lr": self.lr, **{k: v for k, v in optional.items() if not is_off(v)}}

    def apply(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> None:
        scalars = self.scalars(graph)
        for w, g in zip(params, grads, strict=True):
            if "weight_decay" in scalars and self.decays(w):
                g = g + scalars["weight_decay"] * w
            if "momentum" in scalars:
                g = self._direction(graph, scalars, w, g)
            graph.update(w, w - scalars["lr"] * g)

    def _direction(self, graph: Graph, scalars: dict[str, Tensor], w: Tensor, g: Tensor) -> Tensor:
        velocity = graph.state(f"{w.name}.sgd.velocity", w.shape, dtype=w.dtype)
        fresh = g
        if "dampening" in scalars:
            # The first gradient is not dampened: velocity starts as the gradient itself.
            fresh = (1.0 - scalars["dampening"] * fn.minimum(graph.step, 1.0)) * g
        moved = scalars["momentum"] * velocity + fresh
        graph.update(velocity, moved)
        return g + scalars["momentum"] * moved if self.nesterov else moved
