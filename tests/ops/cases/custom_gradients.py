"""Functions with custom gradients for the table of ops, and each as a torch.autograd.Function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import wholestep as ws

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(8)


def theirs(value: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """`value(*inputs)`, and `gradient(*inputs, *upstream)` as its gradient."""

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            ctx.save_for_backward(*inputs)
            return value(*inputs)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            return gradient(*ctx.saved_tensors, *upstream)

    return Function.apply


@ws.custom_gradient
def straight_through(x: Any) -> Any:
    return ws.floor(x), lambda upstream: upstream


@ws.custom_gradient
def reversed_gradient(x: Any, factor: float = 0.5) -> Any:
    return x, lambda upstream: -factor * upstream


@ws.custom_gradient
def clipped(x: Any) -> Any:
    return x * x, lambda upstream: ws.maximum(ws.minimum(2.0 * x * upstream, 0.8), -0.8)


@ws.custom_gradient
def spike(x: Any) -> Any:
    """A step whose gradient is that of x / (1 + |x|)."""
    return (x > 0).astype(x.dtype), lambda upstream: upstream / (1.0 + ws.abs(x)) ** 2


@ws.custom_gradient
def softly_rounded(x: Any) -> Any:
    """The gradient of another function, taken by `ws.gradients`."""

    def gradient(upstream: Any) -> Any:
        return ws.gradients((ws.tanh(x) * upstream).sum(), x)

    return ws.floor(x + 0.5), gradient


@ws.custom_gradient
def softplus(x: Any) -> Any:
    """The true gradient, steady for large x: the example of TensorFlow's documentation."""
    e = ws.exp(x)
    return ws.log(1.0 + e), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + e))


@ws.custom_gradient
def projected(x: Any, w: Any) -> Any:
    """Two results of different shapes that share a product, and a gradient for each argument."""
    y = x @ w
    e = ws.exp(0.3 * y)

    def gradient(at_product: Any, at_total: Any) -> Any:
        slope = at_product + 0.3 * e * at_total[:, None]
        return slope @ w.T, x.T @ slope

    return (y, e.sum(1)), gradient


@ws.custom_gradient
def looked_up(table: Any, index: Any) -> Any:
    """Integers have no gradient; rows that are read twice have their gradients divided by two."""

    def gradient(upstream: Any) -> Any:
        hits = ws.scatter_add(upstream * 0.0 + 1.0, index, 7)
        return ws.scatter_add(upstream, index, 7) / ws.maximum(hits, 1.0), None

    return ws.gather(table, index), gradient


def _their_lookup(table: Any, index: Any) -> Any:
    def gradient(table: Any, index: Any, upstream: Any) -> Any:
        zeros = torch.zeros_like(table)
        hits = zeros.index_add(0, index.long(), torch.ones_like(upstream))
        return zeros.index_add(0, index.long(), upstream) / torch.clamp(hits, min=1.0), None

    return theirs(lambda t, i: t[i.long()], gradient)(table, index)


def _their_projection(x: Any, w: Any) -> Any:
    def gradient(x: Any, w: Any, at_product: Any, at_total: Any) -> Any:
        slope = at_product + 0.3 * torch.exp(0.3 * (x @ w)) * at_total[:, None]
        return slope @ w.T, x.T @ slope

    return theirs(lambda x, w: (x @ w, torch.exp(0.3 * (x @ w)).sum(1)), gradient)(x, w)


def _both(function: Any) -> Any:
    """One tensor of two results, each used twice."""

    def run(x: Any, w: Any) -> Any:
        product, total = function(x, w)
        return product * total[:, None] + product

    return run


def _one_of(function: Any) -> Any:
    """Nothing arrives at the first result."""
    return lambda x, w: function(x, w)[1]


def _nested(function: Any) -> Any:
    return lambda x: function(function(0.8 * x) + x)


X = _RNG.normal(size=(6, 17))
SMALL = 0.5 * _RNG.normal(size=(17, 5))
ROWS = np.array([1, 6, 0, 6, 6], np.int32)
_SPIKE = theirs(lambda x: (x > 0).to(x.dtype), lambda x, g: g / (1.0 + torch.abs(x)) ** 2)
_CLIPPED = theirs(lambda x: x * x, lambda x, g: torch.clamp(2.0 * x * g, -0.8, 0.8))

BENT = {"clipped, twice"}  # gradients that do not grow with what arrives

# name: ours, theirs, arrays
CUSTOM = {
    "straight through": (straight_through, theirs(torch.floor, lambda x, g: g), (3.0 * X,)),
    "reversed": (reversed_gradient, theirs(lambda x: x.clone(), lambda x, g: -0.5 * g), (X,)),
    "clipped, twice": (_nested(clipped), _nested(_CLIPPED), (X,)),
    "spike": (spike, _SPIKE, (X,)),
    "gradient of another": (
        softly_rounded,
        theirs(lambda x: torch.floor(x + 0.5), lambda x, g: g * (1.0 - torch.tanh(x) ** 2)),
        (2.0 * X,),
    ),
    "steady softplus": (softplus, torch.nn.functional.softplus, (X,)),
    "two results": (_both(projected), _both(_their_projection), (X, SMALL)),
    "one of two results": (_one_of(projected), _one_of(_their_projection), (X, SMALL)),
    "lookup": (looked_up, _their_lookup, (_RNG.normal(size=(7, 9)), ROWS)),
}
