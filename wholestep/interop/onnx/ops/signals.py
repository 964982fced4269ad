"""Images assembled from blocks or sampled at the points of a grid; linear attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import product
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
    sizes = [int(e) for e in extents(size)]
    need_room([*sizes[2:], len(sizes) - 1])
    return ws.affine_grid(theta, sizes, bool(align_corners))


@onnx_op("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    names = {"linear": "bilinear", "cubic": "bicubic"}
    return ws.grid_sample(x, grid, names.get(mode, mode), padding_mode, bool(align_corners))


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
    pixels = ws.take_along_axis(flat, index, 1).permute(0, 2, 1).reshape((batch, channels, *wanted))
    if mode != "zeros":
        return pixels
    assert inside is not None
    return ws.where(inside.reshape((batch, 1, *wanted)), pixels, 0.0)


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
