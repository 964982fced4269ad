"""Resampling: interpolation (separable, one constant matrix per axis) and pixel shuffle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import gather
from wholestep.compiler.frontend.layers.adaptive_pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["interpolate", "pixel_shuffle", "pixel_unshuffle"]

Array = np.ndarray[Any, Any]


def interpolate(
    x: Tensor,
    size: int | Sequence[int] | None = None,
    scale: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Resizes signals (N, C, L), images (N, C, H, W) or volumes (N, C, D, H, W).

    Args:
        size: of the result, a number or one per axis; or
        scale: the factor of the size, a number or one per axis.
        mode: "nearest" (sampled at the upper left corner of a pixel, as in torch) or "nearest-exact" (at its centre),
            "linear" ("bilinear" and "trilinear" are the same), "cubic" ("bicubic") or "area", the mean over the area
            of a pixel of the result.
        align_corners: for "linear" and "cubic": align the centres of the outermost pixels, rather than their edges.

    Example: `ws.interpolate(images, scale=2)`.
    """
    current = _image_size(x)
    sizes, ratios = _targets(current, size, scale, align_corners)
    kind = _MODES.get(mode)
    if kind is None:
        fail(OptionError, f"interpolate: mode must be one of {', '.join(map(repr, _MODES))}; received {mode!r}.")
    if align_corners and kind not in _TAPS:
        fail(OptionError, f"interpolate: align_corners applies to 'linear' and 'cubic' only; received mode={mode!r}.")
    if kind == "area":
        if len(sizes) > 2:
            fail(OptionError, f"interpolate: 'area' supports signals and images only; received {shape_text(x.shape)}.")
        return adaptive_avg_pool1d(x, sizes[0]) if len(sizes) == 1 else adaptive_avg_pool2d(x, sizes)
    if kind in ("nearest", "nearest-exact"):
        return _nearest(x, current, sizes, ratios, 0.5 if kind == "nearest-exact" else 0.0)
    for axis, (n, m, ratio) in enumerate(zip(current, sizes, ratios, strict=True), start=2):
        if n != m or ratio != 1.0:
            x = _interpolate_axis(x, axis, _matrix(_TAPS[kind], n, m, ratio, align_corners))
    return x


_MODES = {
    "nearest": "nearest", "nearest-exact": "nearest-exact",
    "linear": "linear", "bilinear": "linear", "trilinear": "linear", "cubic": "cubic",
    "bicubic": "cubic", "area": "area",
}  # fmt: skip


def _image_size(x: Tensor) -> tuple[int, ...]:
    if not 3 <= x.ndim <= 5 or not all(isinstance(e, int) for e in x.shape[2:]):
        fail(
            ShapeError,
            f"interpolate needs (N, C, L), (N, C, H, W) or (N, C, D, H, W) with integer sizes; received "
            f"{shape_text(x.shape)}.",
        )
    return tuple(int(e) for e in x.shape[2:])


def _targets(
    current: tuple[int, ...], size: Any, scale: Any, align_corners: bool
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The size of the result, and the distance of its pixels in units of x's pixels."""
    if (size is None) == (scale is None):
        fail(OptionError, f"interpolate needs either size= or scale=; received size={size}, scale={scale}.")
    argument = size if scale is None else scale
    per_axis = tuple(argument) if isinstance(argument, tuple | list) else (argument,) * len(current)
    if len(per_axis) != len(current) or not all(isinstance(e, int | float) and e > 0 for e in per_axis):
        what = "size" if scale is None else "scale"
        fail(
            OptionError, f"interpolate: {what} must be positive, one or {len(current)} numbers; received {argument!r}."
        )
    if scale is None:
        sizes = tuple(int(e) for e in per_axis)
        ratios = tuple(n / m for n, m in zip(current, sizes, strict=True))
    else:
        sizes = tuple(math.floor(n * s) for n, s in zip(current, per_axis, strict=True))
        ratios = tuple(1 / s for s in per_axis)
    if min(sizes) < 1:
        fail(OptionError, f"interpolate: scale={scale} of {current} leaves no pixel; use a larger one.")
    if align_corners:
        ratios = tuple((n - 1) / (m - 1) if m > 1 else 0.0 for n, m in zip(current, sizes, strict=True))
    return sizes, ratios


def _nearest(x: Tensor, current: Sequence[int], sizes: Sequence[int], ratios: Sequence[float], offset: float) -> Tensor:
    if all(m % n == 0 and ratio == n / m for n, m, ratio in zip(current, sizes, ratios, strict=True)):
        with_unit_axes = [e for n in current for e in (n, 1)]
        repeated = [e for n, m in zip(current, sizes, strict=True) for e in (n, m // n)]
        return (
            x.reshape((*x.shape[:2], *with_unit_axes)).expand(*x.shape[:2], *repeated).reshape((*x.shape[:2], *sizes))
        )
    for axis, (n, m, ratio) in enumerate(zip(current, sizes, ratios, strict=True), start=2):
        if n != m:
            positions = np.floor((np.arange(m) + offset) * np.float32(ratio)).astype(np.int32)
            x = gather(x, np.minimum(positions, n - 1), axis)
    return x


# -- weighted sums of neighbours: one matrix per axis ------------------------------------------------------------


def _interpolate_axis(x: Tensor, axis: int, matrix: Array) -> Tensor:
    weights = as_tensor(matrix.astype(x.dtype.numpy))
    with pin_float32():  # an average, not a matmul with weights of the model: exempt from autocast
        if axis == x.ndim - 1:
            return x @ weights.T
        later_axes = x.shape[axis + 1 :]
        flat = x if len(later_axes) == 1 else x.reshape((*x.shape[: axis + 1], -1))
        out = weights @ flat
    return out.reshape((*out.shape[:-1], *later_axes))


def _matrix(taps: Callable[[Array], list[tuple[int, Array]]], n: int, m: int, ratio: float, corners: bool) -> Array:
    """The (m, n) interpolation matrix: the weights of the n inputs for each of the m results."""
    positions = np.arange(m) * ratio if corners else (np.arange(m) + 0.5) * ratio - 0.5
    if taps is _linear and not corners:
        positions = np.maximum(positions, 0.0)
    first = np.floor(positions).astype(np.int64)
    matrix = np.zeros((m, n))
    for offset, weight in taps(positions - first):
        np.add.at(matrix, (np.arange(m), np.clip(first + offset, 0, n - 1)), weight)
    return matrix


def _linear(t: Array) -> list[tuple[int, Array]]:
    return [(0, 1.0 - t), (1, t)]


def cubic_taps(t: Any, a: float = -0.75) -> list[tuple[int, Any]]:
    """Keys' convolution kernel (1981) with the slope that torch and OpenCV use, of arrays or tensors."""

    def near(d: Any) -> Any:
        return ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0

    def far(d: Any) -> Any:
        return ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a

    return [(-1, far(t + 1.0)), (0, near(t)), (1, near(1.0 - t)), (2, far(2.0 - t))]


_TAPS: dict[str, Callable[[Array], list[tuple[int, Array]]]] = {"linear": _linear, "cubic": cubic_taps}


# -- channels and pixels -----------------------------------------------------------------------------------------


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    """(N, C·r², H, W) -> (N, C, H·r, W·r): channels become pixels (arXiv:1609.05158).

    Example: `ws.pixel_shuffle(x, 2)`.
    """
    channels = _channels("pixel_shuffle", x, factor)
    if channels % (factor * factor):
        fail(
            ShapeError,
            f"pixel_shuffle: factor {factor} needs a multiple of {factor * factor} channels; received "
            f"{shape_text(x.shape)}.",
        )
    n, (h, w) = x.shape[0], x.shape[2:]
    split = x.reshape((n, channels // (factor * factor), factor, factor, h, w))
    return split.permute(0, 1, 4, 2, 5, 3).reshape((n, channels // (factor * factor), h * factor, w * factor))


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    """(N, C, H·r, W·r) -> (N, C·r², H, W): the inverse of `pixel_shuffle`.  Example: `ws.pixel_unshuffle(x, 2)`."""
    channels = _channels("pixel_unshuffle", x, factor)
    n, (h, w) = x.shape[0], x.shape[2:]
    if not isinstance(h, int) or not isinstance(w, int) or h % factor or w % factor:
        fail(
            ShapeError,
            f"pixel_unshuffle needs multiples of {factor} as height and width; received {shape_text(x.shape)}.",
        )
    split = x.reshape((n, channels, h // factor, factor, w // factor, factor))
    return split.permute(0, 1, 3, 5, 2, 4).reshape((n, channels * factor * factor, h // factor, w // factor))


def _channels(op: str, x: Tensor, factor: int) -> int:
    if x.ndim != 4 or not isinstance(x.shape[1], int):
        fail(ShapeError, f"{op} needs images (N, C, H, W); received {shape_text(x.shape)}.")
    if not isinstance(factor, int) or factor < 1:
        fail(OptionError, f"{op}: the factor must be an integer of at least 1; received {factor!r}.")
    return x.shape[1]
