"""Spatial transformers: affine grids, and images sampled at the points of a grid by interpolation.

A sample is the weighted sum over the corners of its cell; each corner is one gather of flat pixel indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs

import numpy as np

from wholestep.compiler.frontend.functions.elementwise import round as rounded
from wholestep.compiler.frontend.functions.primitives import floor, maximum, minimum
from wholestep.compiler.frontend.layers.resize import cubic_taps
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.sort_topk import take_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["affine_grid", "grid_sample"]

_MODES, _PADDING = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Sequence[Extent], align_corners: bool = False) -> Tensor:
    """The points (x, y) in [-1, 1] that the affine maps theta (N, 2, 3) assign to the pixels of images; for volumes,
    (x, y, z) by theta (N, 3, 4).

    Args:
        size: of the sampled images, (N, C, H, W) or (N, C, D, H, W).

    Example: `ws.grid_sample(images, ws.affine_grid(theta, images.shape))`.
    """
    sizes = [e for e in size[2:] if isinstance(e, int)]
    rank = len(size) - 2
    if rank not in (2, 3) or len(sizes) != rank or theta.shape[1:] != (rank, rank + 1):
        fail(
            ShapeError,
            f"affine_grid needs theta (N, 2, 3) and a size (N, C, H, W), or (N, 3, 4) and (N, C, D, H, W), with "
            f"integer sizes; received {shape_text(theta.shape)} and {shape_text(tuple(size))}.",
        )
    lines = [_line(n, align_corners) for n in sizes]
    axes = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(axes), np.ones(sizes)], -1).reshape(-1, rank + 1)
    with pin_float32():
        out = as_tensor(points.astype(theta.dtype.numpy)) @ theta.transpose(1, 2)
    return out.reshape((theta.shape[0], *sizes, rank))


def _line(n: int, corners: bool) -> np.ndarray:
    if corners:
        return np.linspace(-1.0, 1.0, n) if n > 1 else np.zeros(1)
    return (2 * np.arange(n) + 1) / n - 1


def grid_sample(
    x: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Tensor:
    """Images (N, C, H, W) sampled at the points of a grid (N, H', W', 2), each (x, y) from -1 (left, top) to 1; or
    volumes (N, C, D, H, W) with a grid (N, D', H', W', 3).  Images and grid both get gradients.

    Args:
        mode: "bilinear", "nearest", or, for images only, "bicubic".
        padding_mode: outside of the image: "zeros", "border" (the outermost pixel) or "reflection".
        align_corners: -1 and 1 are the centres of the outermost pixels, rather than their edges.

    Example: `ws.grid_sample(images, grid, padding_mode="border")`.
    """
    rank = x.ndim - 2
    sizes = [e for e in x.shape[2:] if isinstance(e, int)]
    if rank not in (2, 3) or len(sizes) != rank or grid.ndim != rank + 2 or grid.shape[-1] != rank:
        fail(
            ShapeError,
            f"grid_sample needs (N, C, H, W) and a grid (N, H', W', 2), or (N, C, D, H, W) and (N, D', H', W', 3), "
            f"with integer sizes of the image; received {shape_text(x.shape)} and {shape_text(grid.shape)}.",
        )
    if mode not in _MODES or padding_mode not in _PADDING or (mode == "bicubic" and rank == 3):
        fail(
            OptionError,
            f"grid_sample: mode must be one of {_MODES} ('bicubic' for images only), padding_mode of {_PADDING}; "
            f"received {mode!r}, {padding_mode!r}.",
        )
    points = grid.reshape((grid.shape[0], product(grid.shape[1:-1]), rank))
    positions = [_pixels(points[..., rank - 1 - d], n, align_corners) for d, n in enumerate(sizes)]
    if mode != "bicubic":
        positions = [_clamp_to_image(p, n, padding_mode, align_corners) for p, n in zip(positions, sizes, strict=True)]
    taps = [_taps(p, mode) for p in positions]
    flat = x.reshape((*x.shape[:2], product(sizes)))
    total: Tensor | None = None
    for corner in pairs(*taps):
        term = _read(flat, corner, sizes, padding_mode, align_corners, mode)
        total = term if total is None else total + term
    assert total is not None
    return total.reshape((*x.shape[:2], *grid.shape[1:-1]))


def _pixels(point: Tensor, size: int, corners: bool) -> Tensor:
    """A coordinate in [-1, 1] as a fractional pixel index."""
    return (point + 1.0) * ((size - 1) / 2) if corners else ((point + 1.0) * size - 1.0) * 0.5


def _clamp_to_image(position: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """Pixel positions moved into the image by "border" or "reflection" padding; unchanged for "zeros"."""
    if padding == "zeros":
        return position
    if padding == "reflection":
        position = _reflect(position, size, corners)
    return _between(position, float(size - 1))


def _between(position: Tensor, last: float) -> Tensor:
    return where(position < 0, 0.0, where(position > last, last, position))


def _reflect(position: Tensor, size: int, corners: bool) -> Tensor:
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return position * 0.0
    off = abs(position - low)
    reflections = floor(off / span)
    rest = off - reflections * span
    odd = reflections - 2.0 * floor(reflections * 0.5)
    return where(odd == 0, rest + low, span - rest + low)


Tap = tuple[Tensor, Tensor | None]  # (pixel index along one axis, as a float; its weight, or None for 1)


def _taps(position: Tensor, mode: str) -> list[Tap]:
    if mode == "nearest":
        return [(rounded(position), None)]
    first = floor(position)
    t = position - first
    if mode == "bilinear":
        return [(first, 1.0 - t), (first + 1.0, t)]
    return [(first + float(offset), weight) for offset, weight in cubic_taps(t)]


def _read(flat: Tensor, corner: Sequence[Tap], sizes: Sequence[int], padding: str, corners: bool, mode: str) -> Tensor:
    """The pixels at one corner of the cells, times their weights: (N, C, points)."""
    pixel: Tensor | None = None
    weight: Tensor | None = None
    visible: Tensor | None = None
    for (position, axis_weight), size in zip(corner, sizes, strict=True):
        if mode == "bicubic":
            position = _clamp_to_image(position, size, padding, corners)
        if padding == "zeros":
            in_range = (position >= 0) & (position <= float(size - 1))
            visible = in_range if visible is None else visible & in_range
        index = minimum(maximum(position.astype("int32"), 0), size - 1)
        pixel = index if pixel is None else pixel * size + index
        if axis_weight is not None:
            weight = axis_weight if weight is None else weight * axis_weight
    assert pixel is not None
    pixels = take_along_axis(flat, pixel.reshape((pixel.shape[0], 1, pixel.shape[1])), 2)
    if visible is not None:
        pixels = where(visible.reshape((visible.shape[0], 1, visible.shape[1])), pixels, 0.0)
    return pixels if weight is None else pixels * weight.reshape((weight.shape[0], 1, weight.shape[1]))
