"""Blocks of the networks that people bring: depthwise convolutions, gates over channels, attention with masks.

Each is fitted to a shape, in our words and in torch's.
"""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import torch

import wholestep as ws
from tests.fuzz.layers import kinds
from tests.fuzz.layers.layer import Made, Row, Shape, fixed

WINDOWS = (1, 2, 3, 3, 3, 4, 5, 7)


def _chain(*made: Made | None) -> Made | None:
    """One after the other; None if one does not fit."""
    parts = [m for m in made if m is not None]
    if len(parts) < len(made):
        return None
    return Made(
        ws.nn.Sequential(*(m.ours for m in parts)), torch.nn.Sequential(*(m.theirs for m in parts)), parts[-1].shape
    )


# -- convolutions ------------------------------------------------------------------------------------------------


def depthwise(
    shape: Shape, each: int, kernel: list[int], stride: int, padding: int, dilation: int, bias: bool
) -> Made | None:
    """Every channel has windows of its own."""
    if len(shape) < 3 or not fixed(shape, 1):
        return None
    return kinds.conv(shape, int(shape[1]), each, kernel, stride, padding, dilation, bias)


def draw_depthwise(rng: Random, shape: Shape) -> dict[str, Any]:
    size = rng.choice(WINDOWS)
    return {
        "each": rng.choice([1, 1, 1, 2, 3]),
        "kernel": [size, size if rng.random() < 0.7 else rng.choice(WINDOWS), rng.choice(WINDOWS)],
        "stride": rng.choice([1, 1, 2, 3]),
        "padding": rng.choice([size // 2, size // 2, 0, 1, 3]),
        "dilation": rng.choice([1, 1, 1, 2, 3]),
        "bias": rng.random() < 0.4,
    }


def separable(shape: Shape, size: int, stride: int, outputs: int, name: str) -> Made | None:
    """Depthwise, norm, activation, 1 x 1, norm: a block of a MobileNet."""
    if len(shape) != 4 or not fixed(shape, 1, 2, 3):
        return None
    wide = kinds.conv(shape, int(shape[1]), 1, [size, size], stride, size // 2, 1, False)
    if wide is None:
        return None
    norm, narrow = kinds.batch_norm(wide.shape), kinds.conv(wide.shape, 1, outputs, [1, 1], 1, 0, 1, False)
    last = None if narrow is None else kinds.batch_norm(narrow.shape)
    return _chain(wide, norm, kinds.activation(wide.shape, name), narrow, last)


def draw_separable(rng: Random, shape: Shape) -> dict[str, Any]:
    name = rng.choice(["relu", "relu6", "silu", "hardswish"])
    outputs = rng.choice([1, 3, 8, 16, 17, 24])
    return {"size": rng.choice([3, 3, 5, 7]), "stride": rng.choice([1, 1, 2]), "outputs": outputs, "name": name}


class Gate(ws.nn.Module):
    """x · σ(W₂ max(W₁ mean(x), 0)) over channels (squeeze and excitation, arXiv:1709.01507)."""

    def __init__(self, channels: int, inner: int) -> None:
        self.down, self.up = ws.nn.Linear(channels, inner), ws.nn.Linear(inner, channels)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        gate = ws.sigmoid(self.up(ws.relu(self.down(x.mean((2, 3))))))
        return x * gate.reshape((*gate.shape, 1, 1))


class TorchGate(torch.nn.Module):
    def __init__(self, channels: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = torch.nn.Linear(channels, inner), torch.nn.Linear(inner, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(self.up(torch.relu(self.down(x.mean((2, 3))))))[:, :, None, None]


def gate(shape: Shape, inner: int) -> Made | None:
    if len(shape) != 4 or not fixed(shape, 1, 2, 3):
        return None
    return Made(Gate(int(shape[1]), inner), TorchGate(int(shape[1]), inner), shape)


# -- attention ---------------------------------------------------------------------------------------------------

MASKS = ("none", "flag", "causal", "lengths", "window", "alibi", "learned", "data")


def mask_of(kind: str, time: int) -> np.ndarray | None:
    """A constant mask (queries, keys): True where attention is allowed, or numbers to add."""
    i, j = np.indices((time, time))
    return {
        "causal": j <= i,
        "lengths": j < max(1, time - 2),
        "window": abs(i - j) <= 1,
        "alibi": np.where(j <= i, 0.25 * (j - i), -np.inf),
    }.get(kind)


class Attention(ws.nn.Module):
    """Heads of their own for queries, shared ones for keys and values, under a mask."""

    def __init__(self, width: int, time: int, heads: int, shared: int, head: int, mask: str) -> None:
        # A bias of the keys adds one number to all scores of a query: its gradient is rounding, whose sign Lion uses.
        self.q, self.k = ws.nn.Linear(width, heads * head), ws.nn.Linear(width, shared * head, bias=False)
        self.v, self.o = ws.nn.Linear(width, shared * head), ws.nn.Linear(heads * head, width)
        self.time, self.head, self.mask = time, head, mask
        self.table = ws.nn.Parameter((heads, time, time)) if mask == "learned" else None

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        def heads(y: ws.Tensor) -> ws.Tensor:
            return y.reshape((x.shape[0], self.time, y.shape[-1] // self.head, self.head)).permute(0, 2, 1, 3)

        mask = self.table if self.mask == "learned" else mask_of(self.mask, self.time)
        if self.mask == "data":
            first = np.arange(self.time) == 0
            mask = ((x[:, :, 0] > -0.5) | first).reshape((x.shape[0], 1, 1, self.time))
        elif self.mask == "alibi":
            mask = mask.astype(x.dtype.name)
        out = ws.attention(heads(self.q(x)), heads(self.k(x)), heads(self.v(x)), causal=self.mask == "flag", mask=mask)
        return self.o(out.permute(0, 2, 1, 3).reshape((x.shape[0], self.time, out.shape[1] * self.head)))


class TorchAttention(torch.nn.Module):
    def __init__(self, width: int, time: int, heads: int, shared: int, head: int, mask: str) -> None:
        super().__init__()
        self.q, self.k = torch.nn.Linear(width, heads * head), torch.nn.Linear(width, shared * head, bias=False)
        self.v, self.o = torch.nn.Linear(width, shared * head), torch.nn.Linear(heads * head, width)
        self.time, self.head, self.mask, self.times = time, head, mask, heads // shared
        self.table = torch.nn.Parameter(torch.randn(heads, time, time)) if mask == "learned" else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(y: torch.Tensor, times: int = 1) -> torch.Tensor:
            return y.unflatten(-1, (-1, self.head)).transpose(1, 2).repeat_interleave(times, 1)

        constant = mask_of(self.mask, self.time)
        mask = self.table if constant is None else torch.from_numpy(constant)
        if self.mask == "data":
            mask = ((x[:, :, 0] > -0.5) | (torch.arange(self.time) == 0))[:, None, None]
        elif self.mask == "alibi":
            mask = mask.to(x.dtype)
        k, v = heads(self.k(x), self.times), heads(self.v(x), self.times)
        out = torch.nn.functional.scaled_dot_product_attention(
            heads(self.q(x)), k, v, attn_mask=mask, is_causal=self.mask == "flag"
        )
        return self.o(out.transpose(1, 2).flatten(2))


def masked_attention(shape: Shape, shared: int, times: int, head: int, mask: str) -> Made | None:
    if len(shape) != 3 or not fixed(shape, 1, 2) or shape[1] == 1:
        return None
    options = (int(shape[2]), int(shape[1]), shared * times, shared, head, mask)
    return Made(Attention(*options), TorchAttention(*options), shape)


def draw_masked_attention(rng: Random, shape: Shape) -> dict[str, Any]:
    return {
        "shared": rng.choice([1, 1, 2]),
        "times": rng.choice([1, 1, 2, 3]),
        "head": rng.choice([1, 2, 4, 8, 16, 17]),
        "mask": rng.choice(MASKS),
    }


ROWS: dict[str, Row] = {
    "depthwise": Row(draw_depthwise, depthwise, 10),
    "separable": Row(draw_separable, separable, 3),
    "gate": Row(lambda r, s: {"inner": r.choice([1, 2, 4])}, gate, 2),
    "masked attention": Row(draw_masked_attention, masked_attention, 5),
}
