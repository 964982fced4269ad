"""Layers that make images larger, smaller or framed: each fitted to a shape, in our words and in torch's."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

import wholestep as ws
from tests.fuzz.layers.layer import Made, Row, Shape, fixed


def _images(shape: Shape) -> bool:
    return len(shape) == 4 and fixed(shape, 1, 2, 3)


def conv_transpose(
    shape: Shape, outputs: int, kernel: list[int], stride: int, padding: int, more: int, dilation: int, bias: bool
) -> Made | None:
    if not _images(shape):
        return None
    more = min(more, max(stride, dilation) - 1)
    sizes = [(n - 1) * stride - 2 * padding + dilation * (k - 1) + more + 1 for n, k in zip(shape[2:], kernel)]
    if min(sizes) < 1:
        return None
    options = {"stride": stride, "padding": padding, "output_padding": more, "dilation": dilation, "bias": bias}
    arguments = shape[1], outputs, tuple(kernel)
    made = ws.nn.ConvTranspose2d(*arguments, **options), torch.nn.ConvTranspose2d(*arguments, **options)
    return Made(*made, (shape[0], outputs, *sizes))


def draw_conv_transpose(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if not _images(shape):
        return None
    return {
        "outputs": rng.choice([1, 2, 3, 17]),
        "kernel": [rng.choice([1, 2, 3, 4]), rng.choice([1, 2, 3])],
        "stride": rng.choice([1, 2, 2, 3]),
        "padding": rng.choice([0, 0, 1]),
        "more": rng.choice([0, 0, 1, 2]),
        "dilation": rng.choice([1, 1, 2, 3]),
        "bias": rng.random() < 0.7,
    }


def upsample(shape: Shape, size: list[int], mode: str) -> Made | None:
    if not _images(shape):
        return None
    options = {} if mode in ("nearest", "area") else {"align_corners": size[0] % 2 == 0}
    ours, theirs = ws.nn.Upsample(tuple(size), mode=mode, **options), torch.nn.Upsample(size, mode=mode, **options)
    return Made(ours, theirs, (*shape[:2], *size))


def draw_upsample(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if not _images(shape):
        return None
    doubled = [2 * int(e) for e in shape[2:]]
    size = rng.choice([doubled, doubled, [rng.randint(1, 9), rng.randint(1, 9)]])
    return {"size": size, "mode": rng.choice(["nearest", "bilinear", "bicubic", "area"])}


def frame(shape: Shape, kind: str, sides: list[int]) -> Made | None:
    """Mirrors need more pixels than they show."""
    if not _images(shape):
        return None
    most = [int(shape[3]) - 1] * 2 + [int(shape[2]) - 1] * 2
    sides = [min(s, m) for s, m in zip(sides, most)]
    name = f"{kind}Pad2d"
    made = getattr(ws.nn, name)(sides), getattr(torch.nn, name)(sides)
    return Made(*made, (*shape[:2], shape[2] + sides[2] + sides[3], shape[3] + sides[0] + sides[1]))


def draw_frame(rng: Random, shape: Shape) -> dict[str, Any] | None:
    kind = rng.choice(["Zero", "Reflection", "Replication", "Circular"])
    return {"kind": kind, "sides": [rng.randint(0, 2) for _ in range(4)]} if _images(shape) else None


def adaptive_pool(shape: Shape, by: str, size: list[int]) -> Made | None:
    if not _images(shape):
        return None
    name = f"Adaptive{by}Pool2d"
    return Made(getattr(ws.nn, name)(tuple(size)), getattr(torch.nn, name)(tuple(size)), (*shape[:2], *size))


def draw_adaptive_pool(rng: Random, shape: Shape) -> dict[str, Any] | None:
    size = [rng.randint(1, 4), rng.randint(1, 4)]
    return {"by": rng.choice(["Avg", "Avg", "Max"]), "size": size} if _images(shape) else None


def instance_norm(shape: Shape, affine: bool) -> Made | None:
    if not _images(shape) or shape[2] * shape[3] == 1:
        return None
    options = {"eps": 1e-2, "affine": affine}
    return Made(ws.nn.InstanceNorm2d(shape[1], **options), torch.nn.InstanceNorm2d(shape[1], **options), shape)


def shuffle(shape: Shape, factor: int) -> Made | None:
    if not _images(shape) or shape[1] % (factor * factor):
        return None
    out = (shape[0], shape[1] // factor**2, shape[2] * factor, shape[3] * factor)
    return Made(ws.nn.PixelShuffle(factor), torch.nn.PixelShuffle(factor), out)


ROWS: dict[str, Row] = {
    "conv transpose": Row(draw_conv_transpose, conv_transpose, 3),
    "upsample": Row(draw_upsample, upsample, 2),
    "frame": Row(draw_frame, frame, 1),
    "adaptive pool": Row(draw_adaptive_pool, adaptive_pool, 1),
    "instance norm": Row(lambda r, s: {"affine": r.random() < 0.5}, instance_norm, 1),
    "shuffle": Row(lambda r, s: {"factor": 2}, shuffle, 1),
}
