"""Rows of test_interpret.py for convolutions and pools: attributes, arrays, and torch's or a plain loop's answer."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional

from wholestep.compiler.ir import attrs as at

RNG = np.random.default_rng(11)
PICTURES, WEIGHT, MAP = RNG.normal(size=(2, 4, 6, 7)), RNG.normal(size=(6, 2, 3, 2)), RNG.normal(size=(2, 6, 3, 3))
CONV = ((2, 2), (1, 0), (1, 0), (1, 2), 2, False)
POOL = ((2, 2), (2, 2), (0, 0), (0, 0), False)
CELLS, PLACES = RNG.normal(size=(2, 4, 3, 3)), RNG.integers(0, 4, (2, 4, 3, 3)).astype(np.uint8)
LAST = (0, 2, 3, 1)


def convolved(x, w):
    return functional.conv2d(x, w, stride=2, padding=(1, 0), dilation=(1, 2), groups=2)


def adjoint(shape, linear, given):
    """The adjoint of a linear function, at `given`."""
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    (linear(x) * given).sum().backward()
    return x.grad


def spread(g, index, width=7):
    """A pool's gradient by hand: windows of 2 x 2 side by side."""
    out = torch.zeros(*g.shape[:2], 6, width, dtype=g.dtype)
    for n, c, i, j in np.ndindex(*g.shape):
        k = int(index[n, c, i, j])
        out[n, c, 2 * i + k // 2, 2 * j + k % 2] += g[n, c, i, j]
    return out


def positions(x):
    """torch's flat positions as positions in windows of 3 that begin at every second pixel."""
    _, flat = functional.max_pool2d(x, 3, 2, return_indices=True)
    top, left = torch.arange(flat.shape[2])[:, None] * 2, torch.arange(flat.shape[3]) * 2
    return ((flat // x.shape[3] - top) * 3 + flat % x.shape[3] - left).to(torch.uint8)


def first(x):
    return x.permute(0, 3, 1, 2)


def padded(x, w):
    """A convolution of images and weights with their channels last; so is its result."""
    return functional.conv2d(first(x), first(w), padding=1)


def by_parts(x, g, index):
    """Of two images, the first ends part 7 of 16 and the second part 15."""
    parts, grown = torch.zeros(16, 4, 3, 3, 2, dtype=torch.float64), spread(first(g), first(index))
    for part, image in ((7, slice(0, 1)), (15, slice(1, 2))):
        parts[part] = adjoint((4, 3, 3, 2), lambda w, image=image: padded(x[image], w), grown[image])
    return parts


CASES = {
    "conv2d": (at.ConvAttrs(*CONV), (PICTURES, WEIGHT), convolved),
    "conv2d_grad_input": (
        at.ConvGradAttrs(*CONV, (6, 7)), (MAP, WEIGHT),
        lambda g, w: adjoint((2, 4, 6, 7), lambda x: convolved(x, w), g),
    ),
    "conv2d_grad_weight": (
        at.ConvGradAttrs(*CONV, (3, 2)), (PICTURES, MAP),
        lambda x, g: adjoint((6, 2, 3, 2), lambda w: convolved(x, w), g),
    ),
    "max_pool2d": (
        at.PoolAttrs((3, 3), (2, 2), (1, 1), (1, 1), False), (PICTURES,), lambda x: functional.max_pool2d(x, 3, 2, 1),
    ),
    "max_pool2d_index": (at.PoolAttrs((3, 3), (2, 2), (0, 0), (0, 0), False), (np.round(PICTURES),), positions),
    "max_pool2d_grad": (at.PoolGradAttrs(*POOL, (6, 7)), (CELLS, PLACES), spread),
    "max_pool2d_pick": (
        at.PoolAttrs(*POOL), (PICTURES, PLACES), lambda x, i: adjoint((2, 4, 3, 3), lambda g: spread(g, i), x),
    ),
    "pooled_grad_weight": (
        at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (6, 7), (3, 3), parts=16),
        (PICTURES[:, :2].transpose(LAST), CELLS.transpose(LAST), PLACES.transpose(LAST)),
        by_parts,
    ),
    "pooled_grad_input": (
        at.PooledConvAttrs((1, 1), (1, 1), (2, 2), (6, 7), (6, 7)),
        (CELLS.transpose(LAST), PLACES.transpose(LAST), WEIGHT[:4, :, :, [0, 1, 0]].transpose(LAST)),
        lambda g, i, w: adjoint((2, 6, 7, 2), lambda x: padded(x, w), spread(first(g), first(i))),
    ),
}  # fmt: skip
