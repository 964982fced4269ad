"""SophiaG: momentum divided by an estimate of the Hessian's diagonal, and clipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any, ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.graph import toposort
from wholestep.errors import GraphError, UsageError
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, with_aliases


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class SophiaG(Optimizer):
    """Sophia with the Gauss-Newton-Bartlett estimator (arXiv:2305.14342), for cross entropy; ĝ is the gradient of the
    mean loss of B rows at labels that are drawn from the model's own probabilities:

        m ← β₁·m + (1 - β₁)·g        h ← β₂·h + (1 - β₂)·B·ĝ² at updates 1, 1 + every, 1 + 2·every, ...
        w ← (1 - lr·weight_decay)·w - lr·clip(m/(rho·h + eps), -1, 1)

    ĝ is computed in every step, since a program has no branches: a step costs a second backward pass.  In a `@ws.step`
    of your own, take the gradients from the optimizer: `rule.gradients(loss, params)`.

    Args:
        lr: the learning rate; the authors advise a third to a half of AdamW's.
        betas: (β₁, β₂), the memory of the two averages.
        rho: the factor of h; larger values clip less.
        eps: keeps the quotient finite.
        weight_decay: decoupled, by default on parameters with two or more axes.
        every: the updates between two estimates.

    Example: `ws.SophiaG(lr=3e-4, weight_decay=0.1)`.
    """

    lr: Number = number(1e-4)
    betas: tuple[Number, Number] = numbers((0.965, 0.99), BETAS, below=1.0, trial=BETAS_TRIED)
    rho: Number = number(0.04, trial=0.05)
    eps: Number = number(1e-15, trial=EPS_TRIED)
    weight_decay: Number = number(0.1, optional=True, trial=0.1)
    every: Number = number(10, low=1, trial=1.0)

    slot: ClassVar[str] = "sophia"

    def gradients(self, loss: Tensor, params: Any) -> Any:
        """The gradients of the loss; also records the update of h."""
        listed = (
            list(params.values())
            if isinstance(params, Mapping)
            else [params]
            if isinstance(params, Tensor)
            else list(params)
        )
        if listed:
            self._record_estimates(loss, listed)
        return super().gradients(loss, params)

    def _record_estimates(self, loss: Tensor, params: Sequence[Tensor]) -> None:
        graph = common_graph(loss, *params)
        assert graph is not None, "parameters belong to a graph"
        scores = [Tensor(n.inputs[0], graph) for n in toposort([loss.node]) if n.op == "cross_entropy"]
        if not scores:
            fail(
                UsageError,
                "SophiaG estimates the Hessian of a cross entropy with class indices as targets; this loss has none. "
                "Use another optimizer, such as ws.AdamW.",
            )
        s = self.scalars(graph)
        sampled = _loss_at_sampled_labels(graph, scores[0])
        for other in scores[1:]:
            sampled = sampled + _loss_at_sampled_labels(graph, other)
        rows = reduce(mul, (fn.size(extent) for extent in scores[0].shape[:-1]))

        def share(t: Tensor) -> Tensor:
            return fn.where(fn.mod(t - 1.0, s["every"]) < 1.0, 1.0 - s["beta2"], 0.0)

        for w, g, new in zip(params, gradients(sampled, params), self.by_update(graph, params, share), strict=True):
            h = self.state(graph, w, "h")
            graph.update(h, h + new.astype(w.dtype) * (rows.astype(w.dtype) * g * g - h))

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g in zip(params, grads, strict=True):
            h = graph.states.get(f"{w.name}.{self.slot}.h")
            if h is None:
                fail(
                    GraphError,
                    "SophiaG estimates the Hessian where gradients are taken: grads = rule.gradients(loss, params), "
                    "then rule.update(g, params, grads). It needs the loss of the whole batch: no accumulate=, no "
                    "arrays, and no group of another optimizer.",
                )
            m = self.state(graph, w, "m")
            new_m = s["beta1"] * m + (1.0 - s["beta1"]) * g
            graph.update(m, new_m)
            step = fn.minimum(fn.maximum(new_m / (s["rho"] * graph.latest(h) + s["eps"]), -1.0), 1.0)
            new.append(self.shrunk(s, w) - s["lr"] * step)
        return new


def _loss_at_sampled_labels(graph: Graph, scores: Tensor) -> Tensor:
    """The mean cross entropy at labels drawn from softmax(scores), by the largest of scores with Gumbel noise."""
    noise = -(-fn.random_uniform(graph, scores.shape, dtype=scores.dtype).log()).log()
    noisy = fn.stop_gradient(scores) + noise
    chosen = (noisy == noisy.max(-1, keepdims=True)).astype(scores.dtype)
    return -(chosen * fn.log_softmax(scores)).sum(-1).mean()
