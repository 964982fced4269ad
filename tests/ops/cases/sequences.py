"""Functions along one axis for the table of ops: split, flip, cumsum, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import wholestep as ws

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(9)
X, HEADS = _RNG.normal(size=(4, 5, 6)), _RNG.normal(size=(2, 3, 7, 8))


def rotated(interleaved: bool, start: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
    """Pairs as complex numbers, turned by complex numbers."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        time, width = x.shape[-2:]
        frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(start, start + time, dtype=torch.float64), frequency)
        pairs = x.reshape(*x.shape[:-1], -1, 2).unbind(-1) if interleaved else x.chunk(2, -1)
        z = torch.complex(*pairs) * torch.polar(torch.ones_like(angles), angles)
        parts = z.real, z.imag
        return torch.stack(parts, -1).reshape(x.shape) if interleaved else torch.cat(parts, -1)

    return rotate


# name: (ours, torch's, arrays)
SEQUENCES: dict[str, tuple[Callable[..., Any], Callable[..., Any], tuple[Array, ...]]] = {
    "split": (
        lambda x: ws.concat([p * (i + 1.0) for i, p in enumerate(ws.split(x, 2, 1))], 1),
        lambda x: torch.cat([p * (i + 1.0) for i, p in enumerate(x.split(2, 1))], 1),
        (X,),
    ),
    "split by sizes": (
        lambda x: ws.split(x, [1, 2, 3], -1)[1] * ws.split(x, [2, 2, 2], -1)[2],
        lambda x: x.split([1, 2, 3], -1)[1] * x.split([2, 2, 2], -1)[2],
        (X,),
    ),
    "flip": (lambda x: ws.flip(x) * x, lambda x: x.flip(-1) * x, (X,)),
    "flip of two axes": (lambda x: ws.flip(x, (0, 1)) * x, lambda x: x.flip((0, 1)) * x, (X,)),
    "cumsum": (lambda x: ws.cumsum(x) * x, lambda x: x.cumsum(-1) * x, (X,)),
    "cumsum over the first": (lambda x: ws.cumsum(x, 0), lambda x: x.cumsum(0), (X,)),
    "cumsum from the end": (
        lambda x: ws.cumsum(x * x, 1, reverse=True),
        lambda x: (x * x).flip(1).cumsum(1).flip(1),
        (X,),
    ),
    "cumsum of a row": (lambda x: ws.cumsum(x), lambda x: x.cumsum(0), (X[0, 0],)),
    "rotary": (ws.rotary, rotated(False), (HEADS,)),
    "rotary, interleaved": (lambda x: ws.rotary(x, interleaved=True, start=3), rotated(True, 3), (HEADS,)),
}

# over (batch, time, 5)
SYMBOLIC: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "flip over time": (lambda x: ws.flip(x, 1), lambda x: x.flip(1)),
    "cumsum over time": (lambda x: ws.cumsum(x, 1), lambda x: x.cumsum(1)),
    "rotary over time": (lambda x: ws.rotary(x[..., :4]), lambda x: rotated(False)(x[..., :4])),
}
