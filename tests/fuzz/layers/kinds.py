"""Linear maps, windows, norms and activations: each fitted to a shape, in our words and in torch's."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import torch

import wholestep as ws
from tests.fuzz.layers import twins
from tests.fuzz.layers.layer import SIZES, Made, Row, Shape, fixed, nothing, some_axis
from tests.fuzz.layers.twins import TorchNormOfOne, TorchOnly

# -- products ----------------------------------------------------------------------------------------------------


def linear(shape: Shape, outputs: int, bias: bool = True) -> Made | None:
    if len(shape) < 2 or not fixed(shape, -1):
        return None
    n = shape[-1]
    return Made(ws.nn.Linear(n, outputs, bias), torch.nn.Linear(n, outputs, bias), (*shape[:-1], outputs))


def draw_linear(rng: Random, shape: Shape) -> dict[str, Any]:
    return {"outputs": rng.choice(SIZES), "bias": rng.random() < 0.8}


def linears(shape: Shape, widths: list[int], bias: bool) -> Made | None:
    """Several in a row with nothing between them: low rank factors, probes."""
    if len(shape) < 2 or not fixed(shape, -1):
        return None
    sizes = [(n, m, bias) for n, m in pairwise([shape[-1], *widths])]
    ours, theirs = [ws.nn.Linear(*size) for size in sizes], [torch.nn.Linear(*size) for size in sizes]
    return Made(ws.nn.Sequential(*ours), torch.nn.Sequential(*theirs), (*shape[:-1], widths[-1]))


def draw_linears(rng: Random, shape: Shape) -> dict[str, Any]:
    widths = [rng.choice(SIZES[:-1]) for _ in range(rng.randint(2, 5))]
    return {"widths": widths if rng.random() < 0.7 else [rng.choice(SIZES)] * len(widths), "bias": rng.random() < 0.6}


def tied(shape: Shape) -> Made | None:
    """One weight used twice, once as it is and once transposed."""
    if len(shape) < 2 or not fixed(shape, -1):
        return None
    return Made(twins.Tied(shape[-1]), twins.TorchTied(shape[-1]), shape)


# -- windows -----------------------------------------------------------------------------------------------------


def _extent(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    return (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1


def conv(shape: Shape, groups: int, each: int, kernel: list[int], stride: int, padding: int, dilation: int, bias: bool):
    """1d over three axes, 2d over four, 3d over five; `each` output channels a group.  Groups that do not divide become
    1; a kernel of fewer axes is as wide in the others.
    """
    space = len(shape) - 2
    kernel = [*kernel, *kernel[-1:] * space][:space]
    if space not in CONVOLUTIONS or not fixed(shape, *range(1, len(shape))):
        return None
    channels, groups = shape[1], groups if shape[1] % groups == 0 else 1
    sizes = [_extent(n, k, stride, padding, dilation) for n, k in zip(shape[2:], kernel)]
    if min(sizes) < 1:
        return None
    window = kernel[0] if space == 1 else tuple(kernel)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    ours, theirs = CONVOLUTIONS[space]
    outputs = groups * each
    made = ours(channels, outputs, window, **options), theirs(channels, outputs, window, **options)
    return Made(*made, (shape[0], outputs, *sizes))


CONVOLUTIONS = {
    1: (ws.nn.Conv1d, torch.nn.Conv1d),
    2: (ws.nn.Conv2d, torch.nn.Conv2d),
    3: (ws.nn.Conv3d, torch.nn.Conv3d),
}


def draw_conv(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if len(shape) not in (3, 4, 5) or not fixed(shape, *range(1, len(shape))):
        return None
    divisors = [g for g in range(1, shape[1] + 1) if shape[1] % g == 0]
    groups = rng.choice([1, rng.choice(divisors), shape[1]])
    each = rng.choice([1, 2, 3, 17, rng.randint(1, 47)]) if groups <= 3 else rng.choice([1, 1, 2])
    return {
        "groups": groups,
        "each": each,
        "kernel": [rng.choice([1, 2, 3, 3]), rng.choice([1, 2, 3, 3]), rng.choice([1, 2, 3])],
        "stride": rng.choice([1, 1, 2, 3]),
        "padding": rng.choice([0, 1, 1, 2]),
        "dilation": rng.choice([1, 1, 1, 2]),
        "bias": rng.random() < 0.7,
    }


def pool(shape: Shape, by: str, window: list[int], stride: int | None, padding: int) -> Made | None:
    if len(shape) != 4 or not fixed(shape, 1, 2, 3):
        return None
    steps = window if stride is None else [stride, stride]
    around = min(padding, min(window) // 2)
    sizes = [_extent(n, k, s, around, 1) for n, k, s in zip(shape[2:], window, steps)]
    if min(sizes) < 1:
        return None
    ours, theirs = POOLS[by]
    options = {"stride": stride, "padding": around}
    return Made(ours(tuple(window), **options), theirs(tuple(window), **options), (*shape[:2], *sizes))


POOLS = {"max": (ws.nn.MaxPool2d, torch.nn.MaxPool2d), "mean": (ws.nn.AvgPool2d, torch.nn.AvgPool2d)}


def draw_pool(rng: Random, shape: Shape) -> dict[str, Any] | None:
    if len(shape) != 4:
        return None
    window = rng.choice([[1, 1], [2, 2], [2, 2], [3, 3], [1, 2], [3, 2]])
    return {
        "by": rng.choice(["max", "max", "mean"]),
        "window": window,
        "stride": rng.choice([None, None, 1, 2]),
        "padding": rng.choice([0, 0, 1]),
    }


def global_pool(shape: Shape) -> Made | None:
    if len(shape) != 4 or not fixed(shape, 1, 2, 3):
        return None
    return Made(ws.nn.GlobalAvgPool2d(), TorchOnly(lambda x: x.mean((2, 3))), shape[:2])


# -- norms -------------------------------------------------------------------------------------------------------


def layer_norm(shape: Shape, axes: int) -> Made | None:
    if len(shape) <= axes or not fixed(shape, *range(-axes, 0)):
        return None
    of = shape[-axes:] if axes > 1 else shape[-1]
    theirs = TorchNormOfOne if math.prod(shape[-axes:]) == 1 else torch.nn.LayerNorm
    return Made(ws.nn.LayerNorm(of, 1e-3), theirs(of, 1e-3), shape)


def rms_norm(shape: Shape) -> Made | None:
    if len(shape) < 2 or not fixed(shape, -1):
        return None
    return Made(ws.nn.RMSNorm(shape[-1], 1e-3), torch.nn.RMSNorm(shape[-1], 1e-3), shape)


def group_norm(shape: Shape, groups: int) -> Made | None:
    if len(shape) < 3 or not fixed(shape, *range(1, len(shape))):
        return None
    channels, groups = shape[1], groups if shape[1] % groups == 0 else 1
    if math.prod(shape[1:]) == groups:
        return None  # torch refuses to normalise one value, which a batch of one row would have
    return Made(ws.nn.GroupNorm(groups, channels, 1e-3), torch.nn.GroupNorm(groups, channels, 1e-3), shape)


def batch_norm(shape: Shape) -> Made | None:
    """The batch has two rows at least; a first axis of 1 would leave nothing to normalise over."""
    if len(shape) not in (2, 3, 4) or not fixed(shape, 1) or shape[0] == 1:
        return None
    ours, theirs = (ws.nn.BatchNorm2d, torch.nn.BatchNorm2d) if len(shape) == 4 else BATCH_NORM_1D
    return Made(ours(shape[1], 1e-2), theirs(shape[1], 1e-2), shape)


BATCH_NORM_1D = (ws.nn.BatchNorm1d, torch.nn.BatchNorm1d)


# -- pointwise ---------------------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[], torch.nn.Module]]] = {
    "relu": (ws.nn.ReLU, torch.nn.ReLU),
    "leaky_relu": (lambda: ws.nn.LeakyReLU(0.1), lambda: torch.nn.LeakyReLU(0.1)),
    "elu": (ws.nn.ELU, torch.nn.ELU),
    "gelu": (ws.nn.GELU, torch.nn.GELU),
    "gelu_tanh": (lambda: ws.nn.GELU("tanh"), lambda: torch.nn.GELU("tanh")),
    "silu": (ws.nn.SiLU, torch.nn.SiLU),
    "mish": (ws.nn.Mish, torch.nn.Mish),
    "softplus": (ws.nn.Softplus, torch.nn.Softplus),
    "hardswish": (ws.nn.Hardswish, torch.nn.Hardswish),
    "hardtanh": (lambda: ws.nn.Hardtanh(-0.5, 1.5), lambda: torch.nn.Hardtanh(-0.5, 1.5)),
    "hardsigmoid": (ws.nn.Hardsigmoid, torch.nn.Hardsigmoid),
    "relu6": (ws.nn.ReLU6, torch.nn.ReLU6),
    "selu": (ws.nn.SELU, torch.nn.SELU),
    "celu": (lambda: ws.nn.CELU(0.5), lambda: torch.nn.CELU(0.5)),
    "logsigmoid": (ws.nn.LogSigmoid, torch.nn.LogSigmoid),
    "softsign": (ws.nn.Softsign, torch.nn.Softsign),
    "softshrink": (lambda: ws.nn.Softshrink(0.2), lambda: torch.nn.Softshrink(0.2)),
    "tanhshrink": (ws.nn.Tanhshrink, torch.nn.Tanhshrink),
    "tanh": (ws.nn.Tanh, torch.nn.Tanh),
    "sigmoid": (ws.nn.Sigmoid, torch.nn.Sigmoid),
    "dropout of 0": (lambda: ws.nn.Dropout(0.0), lambda: torch.nn.Dropout(0.0)),
}


def activation(shape: Shape, name: str) -> Made:
    ours, theirs = ACTIVATIONS[name]
    return Made(ours(), theirs(), shape)


def softmax(shape: Shape, axis: int) -> Made | None:
    if not 0 <= axis < len(shape):
        return None
    return Made(ws.nn.Softmax(axis), torch.nn.Softmax(axis), shape)


ROWS: dict[str, Row] = {
    "linear": Row(draw_linear, linear, 5),
    "linears": Row(draw_linears, linears, 2),
    "tied": Row(nothing, tied, 1),
    "conv": Row(draw_conv, conv, 10),
    "pool": Row(draw_pool, pool, 5),
    "global pool": Row(nothing, global_pool, 1),
    "layer norm": Row(lambda r, s: {"axes": r.choice([1, 1, 1, 2])}, layer_norm, 3),
    "rms norm": Row(nothing, rms_norm, 2),
    "group norm": Row(lambda r, s: {"groups": r.choice([1, 2, 3, 17])}, group_norm, 2),
    "batch norm": Row(nothing, batch_norm, 3),
    "activation": Row(lambda r, s: {"name": r.choice(list(ACTIVATIONS))}, activation, 8),
    "softmax": Row(some_axis, softmax, 1),
}
