"""Images put together of blocks and sampled at places, and linear attention."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError
from wholestep.interop.onnx.ops.attention import heads_apart, heads_together
from wholestep.interop.onnx.ops.windows import Ints, pad_spatial, spatial
from wholestep.interop.onnx.read.sizes import extents, need_room
from wholestep.interop.onnx.read.table import Array, onnx_op


@onnx_op("Col2Im", static=("image", "block"))
def col2im(
    x: Tensor,
    image: Array,
    block: Array,
    *,
    dilations: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """(N, C · block, L) -> (N, C, *image): every block is added where it was taken from."""
    size, kernel = [int(e) for e in extents(image)], [int(e) for e in extents(block)]
    n = len(size)
    spread, stride, around = dilations or [1] * n, strides or [1] * n, pads or [0] * 2 * n
    whole = [s + around[d] + around[d + n] for d, s in enumerate(size)]
    counts = [(w - g * (k - 1) - 1) // s + 1 for w, g, k, s in zip(whole, spread, kernel, stride)]
    strides_of = [math.prod(whole[d + 1 :]) for d in range(n)]
    need_room([*kernel, *counts])
    places = np.zeros((*kernel, *counts), np.int64)
    for d in range(n):
        along = np.arange(kernel[d])[:, None] * spread[d] + np.arange(counts[d])[None] * stride[d]
        shape = [1] * 2 * n
        shape[d], shape[d + n] = kernel[d], counts[d]
        places = places + along.reshape(shape) * strides_of[d]
    channels = int(x.shape[1]) // math.prod(kernel)
    flat = x.reshape((x.shape[0], channels, places.size))
    added = ws.scatter_add(flat, as_tensor(places.reshape(-1)), math.prod(whole), 2)
    out = added.reshape((x.shape[0], channels, *whole))
    return pad_spatial(out, [-p for p in around[:n]], [-p for p in around[n:]])


@onnx_op("AffineGrid", static=("size",))
def affine_grid(theta: Tensor, size: Array, *, align_corners: int = 0) -> Tensor:
    _, _, *sizes = [int(e) for e in extents(size)]
    need_room([*sizes, len(sizes) + 1])
    axes = []
    for n in sizes:
        i = np.arange(n)
        axes.append(
            2 * i / (n - 1) - 1 if align_corners and n > 1 else (2 * i + 1) / n - 1 if not align_corners else 0 * i
        )
    mesh = np.meshgrid(*axes, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(sizes)], -1).reshape(1, -1, len(sizes) + 1)
    grid = ws.matmul(as_tensor(points.astype(theta.dtype.numpy)), theta.mT)
    return grid.reshape((theta.shape[0], *sizes, len(sizes)))


@onnx_op("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    """x (N, C, *sizes) at places (N, *wanted, axes), whose last axis names the last axis of x first, in -1 ... 1."""
    sizes = spatial(x)
    n = len(sizes)
    places = [grid[..., n - 1 - d] for d in range(n)]
    at = [(p + 1.0) * ((s - 1) / 2) if align_corners else ((p + 1.0) * s - 1.0) * 0.5 for p, s in zip(places, sizes)]
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if mode == "nearest":
        return gather_pixels(
            x, [ws.round(_inside(p, s, padding_mode, align_corners)) for p, s in zip(at, sizes)], padding_mode
        )
    if mode == "linear":
        at = [_inside(p, s, padding_mode, align_corners) for p, s in zip(at, sizes)]
    first = [ws.floor(p) for p in at]
    shares = [_shares(p - f, mode) for p, f in zip(at, first)]
    total: Tensor | None = None
    for taps in itertools.product(*(range(len(s)) for s in shares)):
        where = [f + float(offset_of(mode, t)) for f, t in zip(first, taps)]
        if mode == "cubic":
            where = [_inside(p, s, padding_mode, align_corners) for p, s in zip(where, sizes)]
        weight = math.prod([s[t] for s, t in zip(shares, taps)], start=as_tensor(x.dtype.numpy.type(1)))
        part = gather_pixels(x, where, padding_mode) * weight.reshape((x.shape[0], 1, *grid.shape[1:-1]))
        total = part if total is None else total + part
    assert total is not None
    return total


def offset_of(mode: str, tap: int) -> int:
    return tap if mode == "linear" else tap - 1


def _shares(t: Tensor, mode: str) -> list[Tensor]:
    if mode == "linear":
        return [1.0 - t, t]
    if mode != "cubic":
        raise OptionError(f"GridSample: the modes are nearest, linear and cubic; received {mode!r}.")
    a = -0.75

    def near(u: Tensor) -> Tensor:
        return ((a + 2) * u - (a + 3)) * u * u + 1.0

    def far(u: Tensor) -> Tensor:
        return ((a * u - 5 * a) * u + 8 * a) * u - 4 * a

    return [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]


def _inside(p: Tensor, size: int, mode: str, corners: int) -> Tensor:
    """A place outside of the image as one inside of it."""
    if mode == "border":
        return ws.clip(p, 0.0, float(size - 1))
    if mode != "reflection":
        return p
    low, high = (0.0, float(size - 1)) if corners else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return p * 0.0
    turned = ws.mod(ws.abs(p - low), 2 * span)
    return ws.clip(ws.where(turned > span, 2 * span - turned, turned) + low, 0.0, float(size - 1))


def gather_pixels(x: Tensor, places: Sequence[Tensor], mode: str) -> Tensor:
    """The elements at whole places, the same for every channel; 0 outside of the image."""
    sizes, inside = spatial(x), None
    together: Any = None
    for p, n in zip(places, sizes):
        here = (p >= 0) & (p <= n - 1)
        inside = here if inside is None else inside & here
        index = ws.clip(p, 0.0, float(n - 1)).astype("int32")
        together = index if together is None else together * n + index
    batch, channels = x.shape[:2]
    wanted = places[0].shape[1:]
    flat = x.reshape((batch, channels, product(sizes))).permute(0, 2, 1)
    index = together.reshape((batch, product(wanted), 1)).expand(batch, product(wanted), channels)
    found = ws.take_along_axis(flat, index, 1).permute(0, 2, 1).reshape((batch, channels, *wanted))
    if mode != "zeros":
        return found
    assert inside is not None
    return ws.where(inside.reshape((batch, 1, *wanted)), found, 0.0)


@onnx_op("LinearAttention")
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    chunk_size: int = 64,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """A state of keys by values, written at every step: S = exp(g)·S + k ⊗ (β)(v - Sᵀk); the output is scale·qᵀS."""
    heads, shared = q_num_heads, kv_num_heads
    queries, keys, values = heads_apart(q, heads), heads_apart(k, shared), heads_apart(v, shared)
    width, out_width = int(keys.shape[-1]), int(values.shape[-1])
    batch = q.shape[0]
    factor = scale or 1.0 / math.sqrt(width)
    first = ws.zeros((batch, shared, width, out_width), dtype=q.dtype) if state is None else state
    steps: dict[str, Tensor] = {"q": queries, "k": keys, "v": values}
    if decay is not None:
        steps["g"] = heads_apart(decay, shared)
    if beta is not None:
        steps["b"] = heads_apart(beta, int(beta.shape[-1]))

    def step(s: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        key, new = x["k"], x["v"].reshape((batch, shared, 1, out_width))
        s = s * ws.exp(x["g"]).reshape((*x["g"].shape, 1)) if "g" in x else s
        tall = key.reshape((batch, shared, width, 1))
        if "b" in x:
            seen = ws.matmul(key.reshape((batch, shared, 1, width)), s)
            new = (new - seen) * x["b"].reshape((*x["b"].shape, 1))
        s = s + tall * new
        wide = s.reshape((batch, shared, 1, width, out_width)).expand(batch, shared, heads // shared, width, out_width)
        out = ws.matmul(x["q"].reshape((batch, heads, 1, width)), wide.reshape((batch, heads, width, out_width)))
        return s, out.reshape((batch, heads, out_width)) * factor

    last, out = ws.scan(step, first, {name: t.permute(2, 0, 1, 3) for name, t in steps.items()})
    return heads_together(out.permute(1, 2, 0, 3)), last
