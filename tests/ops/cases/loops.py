"""Loops for the table of ops: the same body under `ws.scan` and as a Python loop over torch tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import wholestep as ws

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(5)


def loop(body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, reverse: bool = False) -> tuple[Any, Any]:
    """What ws.scan computes, step by step in torch; xs is a tensor, ys are stacked."""
    steps = list(enumerate(xs))
    ys: list[Any] = [None] * len(steps)
    for i, x in reversed(steps) if reverse else steps:
        carry, ys[i] = body(carry, x)
    return carry, torch.stack(ys)


def recurrent(scan: Any, tanh: Any, reverse: bool = False) -> Any:
    """The last state and all of them, so that gradients arrive at both."""

    def run(x: Any, h: Any, w: Any, u: Any) -> Any:
        def cell(h: Any, x: Any) -> tuple[Any, Any]:
            h = tanh(x @ w + h @ u)
            return h, h * x.sum(-1)[:, None]

        last, every = scan(cell, h, x, reverse=reverse)
        return every * last

    return run


def gated(scan: Any, sigmoid: Any) -> Any:
    """Two carries, a product with a slice of the weights, a value that is steady but not a weight."""

    def run(x: Any, u: Any, scale: Any) -> Any:
        def cell(state: Any, x: Any) -> tuple[Any, Any]:
            h, c = state
            gates = h @ u
            c = sigmoid(gates[:, :4]) * c + x * (scale * scale)
            h = sigmoid(gates[:, 4:]) * c
            return (h, c), c - h

        (h, c), every = scan(cell, (x[0] * 0, x[1] * 0), x)
        return every + (h * c)

    return run


def nested(scan: Any) -> Any:
    """A loop in a loop: the inner one runs over the rows of a slice and uses the outer carry."""

    def run(x: Any, w: Any) -> Any:
        def outer(total: Any, rows: Any) -> tuple[Any, Any]:
            last, every = scan(lambda c, row: ((c + row * w) * 0.5, c * total), total, rows)
            return last, every

        return scan(outer, x[0, 0] * 0, x)[1]

    return run


def counting(scan: Any) -> Any:
    """One carry that is a number, no weights."""

    def run(x: Any) -> Any:
        return scan(lambda c, v: (c * 0.5 + (v * v).sum(), v * c), x.sum() * 0, x)[1]

    return run


def normal(*shape: int) -> Array:
    return 0.7 * _RNG.normal(size=shape)


# name: ours, theirs, arrays
LOOPS = {
    "recurrent": (
        recurrent(ws.scan, ws.tanh),
        recurrent(loop, torch.tanh),
        (normal(5, 3, 4), normal(3, 6), normal(4, 6), normal(6, 6)),
    ),
    "recurrent in reverse": (
        recurrent(ws.scan, ws.tanh, True),
        recurrent(loop, torch.tanh, True),
        (normal(4, 3, 4), normal(3, 6), normal(4, 6), normal(6, 6)),
    ),
    "gated": (gated(ws.scan, ws.sigmoid), gated(loop, torch.sigmoid), (normal(6, 3, 4), normal(4, 8), normal(4))),
    "nested": (nested(ws.scan), nested(loop), (normal(3, 4, 5), normal(5))),
    "counting": (counting(ws.scan), counting(loop), (normal(5, 3),)),
    "one step": (counting(ws.scan), counting(loop), (normal(1, 3),)),
}
