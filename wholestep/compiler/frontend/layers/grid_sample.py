"""Images read at places that are computed: grids of an affine map, and pixels interpolated at the points of a grid."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product as pairs

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.elementwise import round as rounded
from wholestep.compiler.frontend.functions.primitives import floor, maximum, minimum
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.sort_topk import take_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, product, shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["affine_grid", "grid_sample"]

_MODES, _PADDING = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def affine_grid(theta: Tensor, size: Sequence[Extent], align_corners: bool = False) -> Tensor:
    """The points (x, y), from -1 to 1, to which each pixel of an image is mapped by theta (N, 2, 3); of volumes
    (x, y, z) by theta (N, 3, 4).

    Args:
        size: of the images that are to be made, (N, C, H, W) or (N, C, D, H, W).

    Example: `ws.grid_sample(images, ws.affine_grid(theta, images.shape))`.
    """
    sizes = [e for e in size[2:] if isinstance(e, int)]
    rank = len(size) - 2
    if rank not in (2, 3) or len(sizes) != rank or theta.shape[1:] != (rank, rank + 1):
        fail(
            ShapeError,
            f"affine_grid takes theta (N, 2, 3) and a size (N, C, H, W), or (N, 3, 4) and (N, C, D, H, W), sizes being "
            f"numbers; received {shape_text(theta.shape)} and {shape_text(tuple(size))}.",
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
    """Images (N, C, H, W) at the points of a grid (N, H', W', 2), each (x, y) from -1, the left or upper end, to 1; of
    volumes (N, C, D, H, W) with a grid (N, D', H', W', 3).  Gradients go to the images and to the grid.

    Args:
        mode: "bilinear", "nearest", or of images "bicubic".
        padding_mode: beyond the ends "zeros", "border" (the outermost pixel) or "reflection".
        align_corners: -1 and 1 are the middles of the outermost pixels, rather than their edges.

    Example: `ws.grid_sample(images, grid, padding_mode="border")`.
    """
    rank = x.ndim - 2
    sizes = [e for e in x.shape[2:] if isinstance(e, int)]
    if rank not in (2, 3) or len(sizes) != rank or grid.ndim != rank + 2 or grid.shape[-1] != rank:
        fail(
            ShapeError,
            f"grid_sample takes (N, C, H, W) and a grid (N, H', W', 2), or (N, C, D, H, W) and (N, D', H', W', 3), "
            f"heights and widths being numbers; received {shape_text(x.shape)} and {shape_text(grid.shape)}.",
        )
    if mode not in _MODES or padding_mode not in _PADDING or (mode == "bicubic" and rank == 3):
        fail(
            OptionError,
            f"grid_sample: mode is one of {_MODES} ('bicubic' of images), padding_mode of {_PADDING}; received "
            f"{mode!r}, {padding_mode!r}.",
        )
    points = grid.reshape((grid.shape[0], product(grid.shape[1:-1]), rank))
    places = [_pixels(points[..., rank - 1 - d], n, align_corners) for d, n in enumerate(sizes)]
    if mode != "bicubic":
        places = [_clamp_to_image(p, n, padding_mode, align_corners) for p, n in zip(places, sizes, strict=True)]
    taps = [_taps(p, mode) for p in places]
    flat = x.reshape((*x.shape[:2], product(sizes)))
    total: Tensor | None = None
    for corner in pairs(*taps):
        term = _read(flat, corner, sizes, padding_mode, align_corners, mode)
        total = term if total is None else total + term
    assert total is not None
    return total.reshape((*x.shape[:2], *grid.shape[1:-1]))


def _pixels(point: Tensor, size: int, corners: bool) -> Tensor:
    """-1 ... 1 as a place among the pixels."""
    return (point + 1.0) * ((size - 1) / 2) if corners else ((point + 1.0) * size - 1.0) * 0.5


def _clamp_to_image(place: Tensor, size: int, padding: str, corners: bool) -> Tensor:
    """Within the image, where the padding says so."""
    if padding == "zeros":
        return place
    if padding == "reflection":
        place = _reflect(place, size, corners)
    return _between(place, float(size - 1))


def _between(place: Tensor, last: float) -> Tensor:
    return where(place < 0, 0.0, where(place > last, last, place))


def _reflect(place: Tensor, size: int, corners: bool) -> Tensor:
    low, span = (0.0, float(size - 1)) if corners else (-0.5, float(size))
    if span == 0:
        return place * 0.0
    off = abs(place - low)
    turns = floor(off / span)
    rest = off - turns * span
    odd = turns - 2.0 * floor(turns * 0.5)
    return where(odd == 0, rest + low, span - rest + low)


Tap = tuple[Tensor, Tensor | None]  # the number of a pixel along one axis, as a float, and its weight; None is 1


def _taps(place: Tensor, mode: str) -> list[Tap]:
    if mode == "nearest":
        return [(rounded(place), None)]
    first = floor(place)
    t = place - first
    if mode == "bilinear":
        return [(first, 1.0 - t), (first + 1.0, t)]
    a = -0.75  # as of ws.interpolate

    def near(d: Tensor) -> Tensor:
        return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    return [(first - 1.0, far(t + 1.0)), (first, near(t)), (first + 1.0, near(1.0 - t)), (first + 2.0, far(2.0 - t))]


def _read(flat: Tensor, corner: Sequence[Tap], sizes: Sequence[int], padding: str, corners: bool, mode: str) -> Tensor:
    """The pixels of one corner of the cells, times their weights: (N, C, points)."""
    number: Tensor | None = None
    weight: Tensor | None = None
    seen: Tensor | None = None
    for (place, share), size in zip(corner, sizes, strict=True):
        if mode == "bicubic":
            place = _clamp_to_image(place, size, padding, corners)
        if padding == "zeros":
            here = (place >= 0) & (place <= float(size - 1))
            seen = here if seen is None else seen & here
        index = minimum(maximum(place.astype("int32"), 0), size - 1)
        number = index if number is None else number * size + index
        if share is not None:
            weight = share if weight is None else weight * share
    assert number is not None
    pixels = take_along_axis(flat, number.reshape((number.shape[0], 1, number.shape[1])), 2)
    if seen is not None:
        pixels = where(seen.reshape((seen.shape[0], 1, seen.shape[1])), pixels, 0.0)
    return pixels if weight is None else pixels * weight.reshape((weight.shape[0], 1, weight.shape[1]))


take_their_words(globals(), __all__)
