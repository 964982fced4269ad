"""ASGD, schedule-free AdamW and SGD: the update rule keeps an average of the weights."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.update_counters import AVERAGE
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


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


@dataclass(frozen=True)
class _ScheduleFree(Optimizer):
    """The base class of schedule-free rules: y, at which gradients are taken, lies between z, which descends, and its
    average x.
    """

    slot: ClassVar[str] = "schedule_free"

    @abstractmethod
    def slopes(self, graph: Graph, s: Scalars, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """The direction in which z descends, for each parameter, without weight decay."""

    @abstractmethod
    def memory(self, s: Scalars) -> Tensor:
        """The part of x in y."""

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        factors = self.by_update(graph, params, lambda t: (t < 2.0, self._rate(s, t)))
        new = []
        for w, slope, (first, rate) in zip(params, self.slopes(graph, s, params, grads), factors, strict=True):
            z, x = self.state(graph, w, "z"), graph.state_like(w, w.name + AVERAGE)
            new_z = fn.where(first, w, z) - rate * self.penalised(s, w, slope)
            fresh = self._share(graph, w, first, rate).astype(w.dtype)
            new_x = (1.0 - fresh) * x + fresh * new_z
            graph.clocks.averaged.add(w.name)
            graph.update(z, new_z)
            graph.update(x, new_x)
            new.append((1.0 - self.memory(s)) * new_z + self.memory(s) * new_x)
        return new

    def update_number(self, graph: Graph, w: Tensor) -> Tensor:
        return graph.update_number(w.name + AVERAGE)  # the counter that all optimizers with averages use

    @staticmethod
    def _rate(s: Scalars, t: Tensor) -> Tensor:
        """γ"""
        return s["lr"] * fn.minimum(t / s["warmup"], 1.0) if "warmup" in s else s["lr"]

    def _share(self, graph: Graph, w: Tensor, first: Tensor, rate: Tensor) -> Tensor:
        """The share c of z in the average; 1 in the first update, which does not read x."""
        names = (f"{w.name}.{self.slot}.largest_rate", f"{w.name}.{self.slot}.weights")
        largest, total = (graph.state(name, (), 0.0, dtype="float64") for name in names)
        new_largest = fn.maximum(fn.where(first, 0.0, largest), rate)
        weight = new_largest * new_largest
        new_total = fn.where(first, 0.0, total) + weight
        graph.update(largest, new_largest)
        graph.update(total, new_total)
        return weight / fn.maximum(new_total, 1e-300)


@with_aliases(**ALIASES, warmup_steps="warmup")
@dataclass(frozen=True)
class ScheduleFreeAdamW(_ScheduleFree):
    """AdamW without a schedule (arXiv:2405.15682); gradients are taken at y, and the result is x; t = 1, 2, ...:

        γ = lr·min(t/warmup, 1)        v ← β₂·v + (1 - β₂)·g²
        z ← z - γ·(g/(√(v/(1 - β₂ᵗ)) + eps) + weight_decay·y)
        c = γ̂²/Σγ̂², γ̂ the largest γ so far        x ← (1 - c)·x + c·z        y ← (1 - β₁)·z + β₁·x

    The model shows x, in validation, `predict`, `save` and everywhere else, as with `ws.optim.EMA`; y is what
    `ws.optim.raw_weights(model)` shows.  It departs from the authors' code, which keeps y and z and works x out of
    them, by keeping x itself.  Give it a constant learning rate.

    Args:
        lr: the learning rate, one to ten times that of AdamW with a schedule.
        betas: (β₁, β₂), how near to x gradients are taken, and the memory of v.
        eps: keeps the quotient finite.
        weight_decay: decay of y, by default on parameters with two or more axes.
        warmup: the updates in which γ grows to lr; 0 leaves it out of the program.

    Example: `ws.ScheduleFreeAdamW(lr=2.5e-3, warmup=1000)`.
    """

    lr: Number = number(2.5e-3)
    betas: tuple[Number, Number] = numbers((0.9, 0.999), BETAS, below=1.0, trial=BETAS_TRIED)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    warmup: Number = number(0.0, optional=True, trial=10.0)

    def slopes(self, graph: Graph, s: Scalars, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        roots = self.by_update(graph, params, lambda t: (1.0 - s["beta2"] ** t).sqrt().recip())
        out = []
        for w, g, root in zip(params, grads, roots, strict=True):
            v = self.state(graph, w, "v")
            new_v = s["beta2"] * v + (1.0 - s["beta2"]) * g * g
            graph.update(v, new_v)
            out.append(g / (new_v.sqrt() * root + s["eps"]))
        return out

    def memory(self, s: Scalars) -> Tensor:
        return s["beta1"]


@with_aliases(learning_rate="lr", warmup_steps="warmup")
@dataclass(frozen=True)
class ScheduleFreeSGD(_ScheduleFree):
    """SGD without a schedule (arXiv:2405.15682); gradients are taken at y, and the result is x; t = 1, 2, ...:

        γ = lr·min(t/warmup, 1)        z ← z - γ·(g + weight_decay·y)
        c = γ̂²/Σγ̂², γ̂ the largest γ so far        x ← (1 - c)·x + c·z        y ← (1 - momentum)·z + momentum·x

    What the model shows, and where it departs from the authors' code: see `ws.ScheduleFreeAdamW`.

    Args:
        lr: the learning rate, ten to fifty times that of SGD with momentum and a schedule.
        momentum: how near to x gradients are taken.
        weight_decay: decay of y, by default on parameters with two or more axes.
        warmup: the updates in which γ grows to lr; 0 leaves it out of the program.

    Example: `ws.ScheduleFreeSGD(lr=1.0, warmup=1000)`.
    """

    lr: Number = number(1.0)
    momentum: Number = number(0.9, below=1.0, trial=0.6)
    weight_decay: Number = number(0.0, optional=True, trial=0.1)
    warmup: Number = number(0.0, optional=True, trial=10.0)

    def slopes(self, graph: Graph, s: Scalars, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        return list(grads)

    def memory(self, s: Scalars) -> Tensor:
        return s["momentum"]
