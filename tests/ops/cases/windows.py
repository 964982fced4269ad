"""Convolutions and pools, ours and torch's: odd sizes, every option, and the chains that share a kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import wholestep as ws

_RNG = np.random.default_rng(4)

Row = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def normal(*shape: int) -> Any:
    return _RNG.normal(size=shape)


def both(name: str, *arrays: Any, **options: Any) -> Row:
    """A function that both packages have under one name."""
    ours, theirs = getattr(ws, name), getattr(F, name)
    return lambda *xs: ours(*xs, **options), lambda *xs: theirs(*xs, **options), arrays


def conv_pool(x: Any, w: Any, b: Any) -> ws.Tensor:
    return ws.max_pool2d(ws.relu(ws.conv2d(x, w, b, padding=1)), 2)


def torch_conv_pool(x: Any, w: Any, b: Any) -> torch.Tensor:
    return F.max_pool2d(F.relu(F.conv2d(x, w, b, padding=1)), 2)


TIES = np.round(normal(2, 3, 7, 8))

WINDOWS: dict[str, Row] = {
    "conv2d": both("conv2d", normal(2, 3, 7, 6), normal(5, 3, 3, 2), normal(5)),
    "conv2d, one channel, padded": both("conv2d", normal(3, 1, 9, 11), normal(6, 1, 5, 5), normal(6), padding=2),
    "conv2d, many channels": both("conv2d", normal(2, 17, 6, 5), normal(37, 17, 3, 3), padding=1),
    "conv2d, strided": both("conv2d", normal(2, 4, 9, 8), normal(6, 4, 3, 2), stride=(2, 3), padding=(1, 0)),
    "conv2d, 1 x 1 strided": both("conv2d", normal(2, 8, 7, 7), normal(16, 8, 1, 1), stride=2),
    "conv2d, dilated": both("conv2d", normal(2, 3, 11, 10), normal(4, 3, 3, 3), dilation=(2, 3), padding=2),
    "conv2d, strided and dilated": both("conv2d", normal(1, 2, 13, 12), normal(3, 2, 3, 3), stride=2, dilation=(2, 3)),
    "conv2d, groups": both("conv2d", normal(2, 6, 6, 7), normal(10, 3, 3, 3), groups=2, padding=1),
    "conv2d, each channel": both("conv2d", normal(2, 19, 6, 7), normal(19, 1, 3, 3), groups=19, padding=1, stride=2),
    "conv2d, each of many channels": both("conv2d", normal(2, 36, 5, 6), normal(36, 1, 5, 5), groups=36, padding=2),
    "conv2d, same": both("conv2d", normal(2, 3, 5, 6), normal(4, 3, 5, 3), padding="same"),
    "conv2d, more padding than kernel": both("conv2d", normal(1, 2, 4, 3), normal(3, 2, 2, 2), padding=3),
    "conv1d": both("conv1d", normal(2, 3, 12), normal(5, 3, 4), normal(5), stride=2, padding=1, dilation=2),
    "max_pool2d": (lambda x: ws.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), (normal(2, 3, 7, 8),)),
    "max_pool2d, ties": (lambda x: ws.max_pool2d(x, 2), lambda x: F.max_pool2d(x, 2), (TIES,)),
    "max_pool2d, overlapping": (
        lambda x: ws.max_pool2d(x, 3, 2, 1), lambda x: F.max_pool2d(x, 3, 2, 1), (normal(2, 18, 7, 8),),
    ),
    "max_pool2d, large window": (
        lambda x: ws.max_pool2d(x, (17, 16)), lambda x: F.max_pool2d(x, (17, 16)), (normal(1, 2, 35, 32),),
    ),
    "avg_pool2d": (lambda x: ws.avg_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), (normal(2, 3, 7, 8),)),
    "avg_pool2d, padded": (
        lambda x: ws.avg_pool2d(x, 3, 2, 1), lambda x: F.avg_pool2d(x, 3, 2, 1), (normal(2, 3, 7, 8),),
    ),
    "global_avg_pool2d": (lambda x: ws.global_avg_pool2d(x), lambda x: x.mean((2, 3)), (normal(2, 5, 3, 4),)),
    "conv, relu, pool": (conv_pool, torch_conv_pool, (normal(3, 2, 9, 10), normal(6, 2, 3, 3), normal(6))),
    "conv, relu, pool of 3": (
        lambda x, w: ws.max_pool2d(ws.relu(ws.conv2d(x, w)), (3, 2)),
        lambda x, w: F.max_pool2d(F.relu(F.conv2d(x, w)), (3, 2)),
        (normal(2, 3, 12, 9), normal(20, 3, 3, 2)),
    ),
    "conv, tanh, pool": (
        lambda x, w: ws.max_pool2d(ws.tanh(ws.conv2d(x, w)), 2),
        lambda x, w: F.max_pool2d(torch.tanh(F.conv2d(x, w)), 2),
        (normal(2, 3, 8, 9), normal(17, 3, 3, 3)),
    ),
    "residual": (
        lambda x, w, v: ws.relu(ws.conv2d(ws.relu(ws.conv2d(x, w, padding=1)), v, padding=1) + x),
        lambda x, w, v: F.relu(F.conv2d(F.relu(F.conv2d(x, w, padding=1)), v, padding=1) + x),
        (normal(2, 8, 5, 6), normal(8, 8, 3, 3), normal(8, 8, 3, 3)),
    ),
    "channels joined and cut": (
        lambda x, w: ws.concat([ws.conv2d(x, w)[:, 1:3], x[:, :, 1:-1, 1:-1]], 1)[:, :, ::2],
        lambda x, w: torch.cat([F.conv2d(x, w)[:, 1:3], x[:, :, 1:-1, 1:-1]], 1)[:, :, ::2],
        (normal(2, 3, 7, 6), normal(4, 3, 3, 3)),
    ),
}  # fmt: skip
