"""Pooling to a given output size: adaptive pools, whose windows cover the image, and global pools."""

from __future__ import annotations

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.layers.pooling import avg_pool2d, max_pool2d
from wholestep.compiler.frontend.layers.window import (
    Sizes,
    image_as_signal,
    integers,
    need_images,
    per_axis,
    signal_as_image,
)
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "global_avg_pool1d", "global_avg_pool2d", "global_avg_pool3d", "global_max_pool1d",
    "global_max_pool2d",
]  # fmt: skip


def spans(current: int, target: int) -> list[tuple[int, int]]:
    """First element and end of each of `target` windows that cover `current` elements, as in torch."""
    return [(i * current // target, -(-(i + 1) * current // target)) for i in range(target)]


def _sizes(op: str, x: Tensor, size: Sizes, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes of the result and of x, both by axis."""
    need_images(op, x, axes)
    target = per_axis(op, "size", size, axes)
    if min(target) < 1:
        fail(OptionError, f"{op}: the size of the result must be at least 1; received {size!r}.")
    return target, integers(op, x, x.shape[2:])


def adaptive_avg_pool2d(x: Tensor, size: Sizes) -> Tensor:
    """The means of `size` windows that cover (N, C, H, W): of n rows and m windows, window i has the rows
    ⌊i·n/m⌋ ... ⌈(i + 1)·n/m⌉ - 1.

    Example: `ws.adaptive_avg_pool2d(images, 7)`.
    """
    target, current = _sizes("adaptive_avg_pool2d", x, size, 2)
    if all(n % m == 0 for n, m in zip(current, target, strict=True)):
        if target == (1, 1):
            return x.mean((2, 3), keepdims=True)
        return avg_pool2d(x, tuple(n // m for n, m in zip(current, target, strict=True)))
    rows, columns = (_averages(n, m, x) for n, m in zip(current, target, strict=True))
    with pin_float32():
        return rows @ x @ columns.T


def _averages(current: int, target: int, x: Tensor) -> Tensor:
    """The (target, current) matrix that averages the elements of each window."""
    matrix = np.zeros((target, current))
    for i, (first, end) in enumerate(spans(current, target)):
        matrix[i, first:end] = 1.0 / (end - first)
    return as_tensor(matrix.astype(x.dtype.numpy))


def adaptive_max_pool2d(x: Tensor, size: Sizes) -> Tensor:
    """The largest elements of `size` windows of (N, C, H, W), placed as in `adaptive_avg_pool2d`.

    Example: `ws.adaptive_max_pool2d(images, 7)`.
    """
    target, current = _sizes("adaptive_max_pool2d", x, size, 2)
    if all(n % m == 0 for n, m in zip(current, target, strict=True)):
        return max_pool2d(x, tuple(n // m for n, m in zip(current, target, strict=True)))
    return _maxima(_maxima(x, 2, current[0], target[0]), 3, current[1], target[1])


def _maxima(x: Tensor, axis: int, current: int, target: int) -> Tensor:
    """The largest element of each window along one axis."""
    before = (slice(None),) * axis
    return stack([x[(*before, slice(first, end))].max(axis) for first, end in spans(current, target)], axis)


def adaptive_avg_pool1d(x: Tensor, size: int) -> Tensor:
    """`adaptive_avg_pool2d` along one axis: (N, C, L).  Example: `ws.adaptive_avg_pool1d(signals, 4)`."""
    need_images("adaptive_avg_pool1d", x, 1)
    return image_as_signal(adaptive_avg_pool2d(signal_as_image(x), (1, size)))


def adaptive_max_pool1d(x: Tensor, size: int) -> Tensor:
    """`adaptive_max_pool2d` along one axis: (N, C, L).  Example: `ws.adaptive_max_pool1d(signals, 4)`."""
    need_images("adaptive_max_pool1d", x, 1)
    return image_as_signal(adaptive_max_pool2d(signal_as_image(x), (1, size)))


def adaptive_avg_pool3d(x: Tensor, size: Sizes) -> Tensor:
    """`adaptive_avg_pool2d` of volumes, (N, C, D, H, W).  Example: `ws.adaptive_avg_pool3d(video, (1, 4, 4))`."""
    target, current = _sizes("adaptive_avg_pool3d", x, size, 3)
    for axis, (n, m) in enumerate(zip(current, target, strict=True), start=2):
        if m == 1:
            x = x.mean(axis, keepdims=True)
        elif n != m:
            with pin_float32():
                later_axes = x.shape[axis + 1 :]
                flat = x.reshape((*x.shape[: axis + 1], -1)) if later_axes else x.reshape((*x.shape, 1))
                x = (_averages(n, m, x) @ flat).reshape((*x.shape[:axis], m, *later_axes))
    return x


def adaptive_max_pool3d(x: Tensor, size: Sizes) -> Tensor:
    """`adaptive_max_pool2d` of volumes, (N, C, D, H, W).  Example: `ws.adaptive_max_pool3d(video, 2)`."""
    target, current = _sizes("adaptive_max_pool3d", x, size, 3)
    for axis, (n, m) in enumerate(zip(current, target, strict=True), start=2):
        if m == 1:
            x = x.max(axis, keepdims=True)
        elif n != m:
            x = _maxima(x, axis, n, m)
    return x


# -- global ------------------------------------------------------------------------------------------------------


def global_avg_pool1d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, L) -> (N, C).  Example: `ws.global_avg_pool1d(signals)`."""
    need_images("global_avg_pool1d", x, 1)
    return x.mean(2)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) -> (N, C).  Example: `ws.global_avg_pool2d(images)`."""
    need_images("global_avg_pool2d", x, 2)
    return x.mean((2, 3))


def global_avg_pool3d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, D, H, W) -> (N, C).  Example: `ws.global_avg_pool3d(video)`."""
    need_images("global_avg_pool3d", x, 3)
    return x.mean((2, 3, 4))


def global_max_pool1d(x: Tensor) -> Tensor:
    """The largest element of each channel: (N, C, L) -> (N, C).  Example: `ws.global_max_pool1d(signals)`."""
    need_images("global_max_pool1d", x, 1)
    return x.max(2)


def global_max_pool2d(x: Tensor) -> Tensor:
    """The largest element of each channel: (N, C, H, W) -> (N, C).  Example: `ws.global_max_pool2d(images)`."""
    need_images("global_max_pool2d", x, 2)
    return x.max((2, 3))
