"""Weights of several losses that are learnt in the step: by uncertainty, or by the norms of their gradients.

Both are modules that a loss function calls with its parts; it returns the weighted parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wholestep.compiler.frontend.functions.primitives import exp, maximum, stack, stop_gradient, where
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Buffer, Parameter

_TINY = 1e-30  # keeps a loss of 0 from dividing by zero


class _LossWeights(Module):
    """The base class of learnt weights of the parts of a loss, by name."""

    def __init__(self, parts: Sequence[str]) -> None:
        if isinstance(parts, str) or len(parts) < 2 or len({*parts}) < len(parts):
            fail(
                OptionError,
                f"{type(self).__name__} takes the names of two or more parts of a loss; received {parts!r}.",
            )
        self.parts = tuple(parts)

    def _in_order(self, losses: Mapping[str, Tensor]) -> list[Tensor]:
        if not isinstance(losses, Mapping) or {*losses} != {*self.parts}:
            received = ", ".join(losses) if isinstance(losses, Mapping) else repr(losses)
            fail(UsageError, f"{type(self).__name__} weighs the parts {', '.join(self.parts)}; received {received}.")
        return [losses[name] for name in self.parts]


class UncertaintyWeights(_LossWeights):
    """½·exp(-s)·loss + ½·s for each part, with a trained log-variance s (arXiv:1705.07115): noisy tasks count less.

    Args:
        parts: the names of the parts of the loss.

    Example::

        weigh = ws.nn.UncertaintyWeights(["depth", "labels"])

        def loss(out, target):
            depth = ws.losses.mse(out["depth"], target["depth"])
            return weigh({"depth": depth, "labels": ws.losses.cross_entropy(out["labels"], target["labels"])})
    """

    log_variance: Tensor

    def __init__(self, parts: Sequence[str]) -> None:
        super().__init__(parts)
        self.log_variance = Parameter((len(parts),), 0.0)  # type: ignore[assignment]

    def forward(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = self._in_order(losses)
        variances = [self.log_variance[i].astype(loss.dtype) for i, loss in enumerate(values)]
        weighted = [0.5 * (exp(-s) * loss + s) for s, loss in zip(variances, values, strict=True)]
        return dict(zip(self.parts, weighted, strict=True))


class GradNorm(_LossWeights):
    """Weights by which all tasks train at a similar rate (arXiv:1711.02257): after each step they move towards gradient
    norms of mean·rᵅ, where r is a part's loss, relative to its first value, divided by the mean of these ratios.

    The weights are buffers with the sum of the number of parts; each step moves them by the sign of their error times
    the norm of the part's gradient.

    Args:
        parts: the names of the parts of the loss.
        shared: the last layer that all parts depend on, whose gradients are compared.
        alpha: how strongly slow tasks are preferred.
        lr: the learning rate of the weights.

    Example: `weigh = ws.nn.GradNorm(["depth", "labels"], model.trunk)`, called like `UncertaintyWeights`.
    """

    weight: Tensor
    first: Tensor

    def __init__(self, parts: Sequence[str], shared: Module, alpha: float = 1.5, lr: float = 0.025) -> None:
        super().__init__(parts)
        if not isinstance(shared, Module):
            fail(OptionError, f"GradNorm: shared is a layer that all parts depend on; received {shared!r}.")
        if not alpha >= 0 or not lr > 0:
            fail(OptionError, f"GradNorm: alpha is at least 0 and lr above 0; received {alpha!r} and {lr!r}.")
        self.shared: Callable[[], Module] = lambda: shared  # a lambda hides it: not a submodule
        self.alpha, self.lr = alpha, lr
        self.weight = Buffer((len(parts),), 1.0)  # type: ignore[assignment]
        self.first = Buffer((len(parts),), 0.0)  # type: ignore[assignment]

    def forward(self, losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
        values = self._in_order(losses)
        weight = self.weight
        if weight.graph is not None:
            self._balance(values)
        weighted = [weight[i].astype(loss.dtype) * loss for i, loss in enumerate(values)]
        return dict(zip(self.parts, weighted, strict=True))

    def _balance(self, values: Sequence[Tensor]) -> None:
        weight, graph = self.weight, self.weight.graph
        assert graph is not None
        now = stop_gradient(stack([loss.astype(weight.dtype) for loss in values]))
        norms = stack([self._norm(loss).astype(weight.dtype) for loss in values])
        first = where(self.first > 0.0, self.first, now)
        rate = now / maximum(first, _TINY)
        rate = rate / maximum(rate.mean(), _TINY)
        aim = (weight * norms).mean() * rate**self.alpha
        gap = weight * norms - aim
        slope = where(gap > 0.0, norms, where(gap < 0.0, -norms, 0.0))
        moved = maximum(weight - self.lr * slope, 1e-4)
        graph.advance(self.first, lambda old: where(old > 0.0, old, now))
        graph.advance(weight, lambda _: moved * (len(values) / moved.sum()))

    def _norm(self, loss: Tensor) -> Tensor:
        squares = [(g * g).sum() for g in gradients(loss, self.shared()).values()]
        return stop_gradient(sum(squares[1:], start=squares[0]).sqrt())
