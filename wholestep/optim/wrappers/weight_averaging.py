"""Wrappers of optimizers: averages of the weights, and Lookahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.update_counters import AVERAGE
from wholestep.errors import UsageError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.groups import Group
from wholestep.optim.core.options import Number, number, runtime_numbers


@dataclass(frozen=True)
class Wrapper(Optimizer):
    """The base class of optimizers that wrap another one and use its groups, freezing and learning rate."""

    optimizer: Optimizer
    # Options that only the inner optimizer has.
    decay_on: tuple[str, ...] | None = field(init=False, default=None)
    groups: tuple[Group, ...] = field(init=False, default=())
    maximize: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        if not isinstance(self.optimizer, Optimizer):
            fail(
                UsageError,
                f"{kind} wraps an optimizer, e.g. ws.optim.{kind}(ws.SGD(lr=0.1)); received {self.optimizer!r}.",
            )
        super().__post_init__()
        if self.name in self._names_inside():
            fail(UsageError, f"{kind}: an optimizer inside is called {self.name!r}, too; give it a name: name='outer'.")

    def _names_inside(self) -> set[str]:
        inner = self.optimizer
        return {inner.name} | (inner._names_inside() if isinstance(inner, Wrapper) else set())

    def gradients(self, loss: Tensor, params: Any) -> Any:
        return self.optimizer.gradients(loss, params)

    def trainable(self, params: Sequence[Tensor]) -> list[Tensor]:
        return self.optimizer.trainable(params)

    def hyperparameters(self) -> dict[str, Number]:
        return runtime_numbers(self)

    def runtime_values(self) -> dict[str, float]:
        return {**self.optimizer.runtime_values(), **super().runtime_values()}

    def structure(self) -> tuple[object, ...]:
        return type(self).__name__, self.name, tuple(self.runtime_values()), self.optimizer.structure()

    def named(self, name: str) -> Self:
        """The same wrapper with `name` for the inner optimizer; the wrapper is called `<name>.<own name>`."""
        return replace(self, optimizer=self.optimizer.named(name), name=f"{name}.{self.name}")

    @property
    def lr_name(self) -> str:
        return self.optimizer.lr_name


@dataclass(frozen=True)
class EMA(Wrapper):
    """An exponential average of the weights, which the model has under the parameters' names:

        ē ← decay·ē + (1 - decay)·w,  where w is the weight after the optimizer's update; the first average is w itself

    Training is not changed by it: it continues with w, stored in the states `<parameter>.raw`.  Under the parameters'
    own names are the averages, so validation, `evaluate`, `predict`, `save`, `state_dict` and checkpoints have these;
    inside `with ws.optim.raw_weights(model):` they have w.  Buffers, such as running statistics, are not averaged.

    Args:
        optimizer: the optimizer that trains the weights.
        decay: the memory of the average.

    Example: `ws.optim.EMA(ws.AdamW(lr=1e-3), decay=0.999)`.
    """

    decay: Number = number(0.999, high=1.0, trial=0.999)
    name: str = field(default="ema", kw_only=True)

    slot: ClassVar[str] = "ema"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        new = self.optimizer.apply(graph, params, grads)
        decay = self.scalars(graph)["decay"]
        memory = self.by_update(graph, params, lambda t: decay * fn.minimum(t - 1.0, 1.0))
        for w, value, factor in zip(params, new, memory, strict=True):
            average = graph.state_like(w, w.name + AVERAGE)
            graph.clocks.averaged.add(w.name)
            graph.update(average, factor * average + (1.0 - factor) * value)
        return new


@dataclass(frozen=True)
class SWA(Wrapper):
    """The plain mean of the weights from the update `start` on (arXiv:1803.05407), which the model then shows:

        ē ← ē + (w - ē)/(n + 1) every `every` updates, n being how many it is of; until `start` ē is w

    As with `EMA`, training continues with w, `ws.optim.raw_weights(model)` shows it, and everything else has the mean.
    Running statistics of batch norms are those of w: they are not averaged.  `ws.schedules.SWALR` is the rate for it.

    Args:
        optimizer: the optimizer that trains the weights.
        start: the updates before the first one that counts: epochs times steps of an epoch.
        every: every how many updates the weights count: the steps of an epoch, in the paper.

    Example: `ws.optim.SWA(ws.SGD(lr=0.05, momentum=0.9), start=750, every=10)`.
    """

    start: Number = number(0, trial=1.0)
    every: Number = number(1, low=1, trial=1.0)
    name: str = field(default="swa", kw_only=True)

    slot: ClassVar[str] = "ema"  # the update counter that all averages share

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        new = self.optimizer.apply(graph, params, grads)
        s = self.scalars(graph)

        def fresh(t: Tensor) -> Tensor:
            """The weight of the new values in the mean: 1 until the first update that counts."""
            past = t - s["start"] - 1.0  # the update `start` + 1 is the first to count
            counts = fn.where(fn.mod(fn.maximum(past, 0.0), s["every"]) < 1.0, 1.0, 0.0)
            counted = fn.floor(fn.maximum(past, 0.0) / s["every"])
            return fn.where(past < 0.0, 1.0, counts / (counted + 1.0))

        for w, value, share in zip(params, new, self.by_update(graph, params, fresh), strict=True):
            average = graph.state_like(w, w.name + AVERAGE)
            graph.clocks.averaged.add(w.name)
            graph.update(average, (1.0 - share) * average + share * value)
        return new


@dataclass(frozen=True)
class Lookahead(Wrapper):
    """Slow weights that follow the fast ones (arXiv:1907.08610), the slow ones as states `<parameter>.lookahead.slow`:

        every k steps:  s ← s + α·(w - s),  w ← s

    Args:
        optimizer: the optimizer of the fast weights w.
        k: the number of steps between updates of the slow weights.
        alpha: the fraction of the distance by which the slow weights follow.

    Example: `ws.optim.Lookahead(ws.Adam(lr=1e-3), k=5, alpha=0.5)`.
    """

    k: Number = number(5, low=1, trial=5)
    alpha: Number = number(0.5, high=1.0, trial=0.7)
    name: str = field(default="lookahead", kw_only=True)

    slot: ClassVar[str] = "lookahead"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        moved = self.optimizer.apply(graph, params, grads)
        factors = self.by_update(graph, params, lambda t: (t < 2.0, fn.where(fn.mod(t, s["k"]) < 1.0, 1.0, 0.0)))
        out = []
        for w, fast, (first, meet) in zip(params, moved, factors, strict=True):
            if fast is w:  # frozen
                out.append(w)
                continue
            follow = meet * s["alpha"]
            slow = self.state(graph, w, "slow")
            start = fn.where(first, w, slow)
            new_slow = start + follow * (fast - start)
            graph.update(slow, new_slow)
            out.append(fn.where(meet > 0.5, new_slow, fast))
        return out
