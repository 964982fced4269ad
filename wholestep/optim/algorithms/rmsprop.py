"""RMSprop, Adagrad and Adadelta: the gradient divided by the root of its accumulated squares."""

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
class RMSprop(Optimizer):
    """RMSprop (Hinton, 2012; centered: arXiv:1308.0850), eps outside the root as in torch:

        v ← α·v + (1 - α)·g²         centered: a ← α·a + (1 - α)·g,  v̂ = v - a²,  else v̂ = v
        w ← w - lr·g/(√v̂ + eps)     with momentum: b ← momentum·b + g/(√v̂ + eps),  w ← w - lr·b

    It departs from torch where rounding makes v - a² negative: that counts as 0 and not as NaN.

    Args:
        lr: the learning rate.
        alpha: the memory of the averages.
        eps: keeps the quotient finite.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        momentum: the fraction of the last step that is kept; 0 leaves it out of the program.
        centered: divide by the deviation instead of the magnitude.

    Example: `ws.RMSprop(lr=1e-2, centered=True)`.
    """

    lr: Number = number(1e-2)
    alpha: Number = number(0.99, below=1.0, trial=0.7)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    momentum: Number = number(0.0, optional=True, trial=0.6)
    centered: bool = False

    slot: ClassVar[str] = "rmsprop"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        return [w - s["lr"] * self._direction(graph, s, w, g) for w, g in zip(params, grads, strict=True)]

    def _direction(self, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> Tensor:
        g = self.penalised(s, w, g)
        alpha = s["alpha"]
        v = self.state(graph, w, "v")
        new_v = alpha * v + (1.0 - alpha) * g * g
        graph.update(v, new_v)
        if self.centered:
            mean = self.state(graph, w, "mean")
            new_mean = alpha * mean + (1.0 - alpha) * g
            graph.update(mean, new_mean)
            new_v = fn.maximum(new_v - new_mean * new_mean, 0.0)
        step = g / (new_v.sqrt() + s["eps"])
        if "momentum" not in s:
            return step
        velocity = self.state(graph, w, "velocity")
        moved = s["momentum"] * velocity + step
        graph.update(velocity, moved)
        return moved


@with_aliases(learning_rate="lr", epsilon="eps")
@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011), eps outside the root as in torch:

        s ← s + g²        w ← w - lr/(1 + (t - 1)·lr_decay)·g/(√s + eps)

    Args:
        lr: the learning rate.
        lr_decay: how quickly the rate falls, in addition to the effect of the sum.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.
        initial_accumulator_value: the initial s.
        eps: keeps the quotient finite.

    Example: `ws.Adagrad(lr=1e-2)`.
    """

    lr: Number = number(1e-2)
    lr_decay: Number = number(0.0, trial=0.1)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    initial_accumulator_value: float = number(0.0, structural=True)
    eps: Number = number(1e-10, trial=EPS_TRIED)

    slot: ClassVar[str] = "adagrad"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        rates = self.by_update(graph, params, lambda t: s["lr"] / (1.0 + (t - 1.0) * s["lr_decay"]))
        new = []
        for w, g, rate in zip(params, grads, rates, strict=True):
            g = self.penalised(s, w, g)
            total = self.state(graph, w, "sum", init=self.initial_accumulator_value)
            new_total = total + g * g
            graph.update(total, new_total)
            new.append(w - rate * g / (new_total.sqrt() + s["eps"]))
        return new


@with_aliases(learning_rate="lr", epsilon="eps")
@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (arXiv:1212.5701), with a learning rate as torch has it:

        v ← ρ·v + (1 - ρ)·g²        d = √(a + eps)/√(v + eps)·g
        a ← ρ·a + (1 - ρ)·d²        w ← w - lr·d

    Args:
        lr: the factor of the steps; the paper has 1.
        rho: the memory of the two averages.
        eps: keeps the quotient finite, and the first steps from being 0.
        weight_decay: an L2 penalty, by default on parameters with two or more axes.

    Example: `ws.Adadelta(lr=1.0)`.
    """

    lr: Number = number(1.0)
    rho: Number = number(0.9, high=1.0, trial=0.05)
    eps: Number = number(1e-6, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)

    slot: ClassVar[str] = "adadelta"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        rho, fresh, eps = s["rho"], 1.0 - s["rho"], s["eps"]
        new = []
        for w, g in zip(params, grads, strict=True):
            g = self.penalised(s, w, g)
            v, steps = self.state(graph, w, "v"), self.state(graph, w, "steps")
            new_v = rho * v + fresh * g * g
            d = (steps + eps).sqrt() / (new_v + eps).sqrt() * g
            graph.update(v, new_v)
            graph.update(steps, rho * steps + fresh * d * d)
            new.append(w - s["lr"] * d)
        return new
