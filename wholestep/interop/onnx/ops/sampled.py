"""Operators that assemble images from blocks or sample between pixels: Col2Im, GridSample, DeformConv, RoiAlign."""

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
from wholestep.interop.onnx.ops.windows import Ints, pad_spatial, spatial, with_bias
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
    """(N, C · block, L) -> (N, C, *image): each block is added at the position from which it was taken."""
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
    """The elements at integer positions, the same for every channel; 0 outside of the image."""
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


def corners(x: Tensor, places: Sequence[Tensor]) -> list[Tensor]:
    """Bilinear samples (N, C, ...) at positions (N, ...) between pixels; pixels outside of the image count as 0."""
    first = [ws.floor(p) for p in places]
    terms = []
    for taps in itertools.product((0, 1), repeat=len(places)):
        share: Tensor = as_tensor(x.dtype.numpy.type(1))
        for p, f, tap in zip(places, first, taps):
            share = share * ((p - f) if tap else (1.0 - (p - f)))
        values = gather_pixels(x, [f + float(tap) for f, tap in zip(first, taps)], "zeros")
        terms.append(values * share.reshape((x.shape[0], 1, *places[0].shape[1:])))
    return terms


@onnx_op("DeformConv")
def deform_conv(
    x: Tensor,
    weight: Tensor,
    offset: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """A deformable convolution (arXiv:1703.06211): offsets shift the taps at each output position."""
    spread, stride, around = dilations or [1, 1], strides or [1, 1], pads or [0] * 4
    batch, channels = x.shape[0], int(x.shape[1])
    kh, kw = (int(k) for k in weight.shape[2:])
    oh, ow = (int(n) for n in offset.shape[2:])
    each = channels // offset_group
    moved = offset.reshape((batch, offset_group, kh, kw, 2, oh, ow))
    regular = [
        np.arange(k).reshape((k, 1, 1, 1) if d == 0 else (1, k, 1, 1)) * spread[d]
        + np.arange(n).reshape((1, 1, n, 1) if d == 0 else (1, 1, 1, n)) * stride[d]
        - around[d]
        for d, (k, n) in enumerate(((kh, oh), (kw, ow)))
    ]
    columns = []
    for g in range(offset_group):
        places = [moved[:, g, :, :, d] + as_tensor(regular[d].astype(x.dtype.numpy)) for d in range(2)]
        first, *rest = corners(x[:, g * each : (g + 1) * each], places)
        seen = sum(rest, start=first)
        if mask is not None:
            seen = seen * mask.reshape((batch, offset_group, 1, kh, kw, oh, ow))[:, g]
        columns.append(seen)
    taps = ws.concat(columns, 1).reshape((batch, group, channels // group * kh * kw, oh * ow))
    flat = weight.reshape((group, int(weight.shape[0]) // group, channels // group * kh * kw))
    out = ws.matmul(flat, taps).reshape((batch, weight.shape[0], oh, ow))
    return with_bias(out, bias)


@onnx_op("RoiAlign")
def roi_align(
    x: Tensor,
    rois: Tensor,
    batch_index: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """RoIAlign (arXiv:1703.06870): pools the boxes (x1, y1, x2, y2) of images to one size."""
    if sampling_ratio < 1:
        raise OptionError(
            "RoiAlign with a sampling_ratio of 0 takes a number of samples that depends on data; give it a number."
        )
    half = coordinate_transformation_mode == "half_pixel"
    many, sizes, wanted = rois.shape[0], spatial(x), (output_height, output_width)
    need_room([wanted[0] * sampling_ratio, wanted[1] * sampling_ratio])
    places: list[Tensor] = []
    inside = None
    for d in range(2):  # rows, then columns
        start, end = (rois[:, column] * spatial_scale - (0.5 if half else 0.0) for column in (1 - d, 3 - d))
        length = end - start if half else ws.maximum(end - start, 1.0)
        steps = (np.arange(wanted[d] * sampling_ratio) + 0.5) / (sampling_ratio * wanted[d])
        shape = (1, -1, 1) if d == 0 else (1, 1, -1)
        at = as_tensor(steps.astype(x.dtype.numpy).reshape(shape)) * length.reshape((many, 1, 1)) + start.reshape(
            (many, 1, 1)
        )
        here = (at >= -1.0) & (at <= float(sizes[d]))
        inside = here if inside is None else inside & here
        places.append(ws.clip(at, 0.0, float(sizes[d] - 1)))
    full = (many, wanted[0] * sampling_ratio, wanted[1] * sampling_ratio)
    parts = corners(ws.gather(x, batch_index), [p.expand(*full) for p in places])
    assert inside is not None
    parts = [ws.where(inside.reshape((many, 1, *full[1:])), p, 0.0) for p in parts]
    shape6 = (many, x.shape[1], wanted[0], sampling_ratio, wanted[1], sampling_ratio)
    if mode == "max":
        best = parts[0]
        for part in parts[1:]:
            best = ws.maximum(best, part)
        return best.reshape(shape6).max((3, 5))
    return sum(parts[1:], start=parts[0]).reshape(shape6).mean((3, 5))
