"""im2col and its adjoint col2im (unfold, fold), and sliding windows along one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import gather, stack
from wholestep.compiler.frontend.functions.reductions import normalize_axis
from wholestep.compiler.frontend.layers.transposed_convolution import conv_transpose2d
from wholestep.compiler.frontend.layers.window import Sizes, SlidingWindow, integers, need_axes, need_images, per_axis
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["fold", "unfold", "windows_along"]


def unfold(x: Tensor, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """The windows of images as columns: (N, C, H, W) -> (N, C·KH·KW, number of windows), as in torch.

    Example: `ws.unfold(images, 3, padding=1)`.
    """
    op = "unfold"
    need_images(op, x, 2)
    window = _window(op, kernel, dilation, padding, stride)
    counts = _counts(op, window, integers(op, x, x.shape[2:]))
    if any(window.low):
        x = pad(x, [(0, 0), (0, 0), *zip(window.low, window.high, strict=True)])
    taps = [tap for _, tap in window.taps(x, counts)]
    stacked = stack(taps, 2)  # (N, C, taps, rows, columns)
    return stacked.reshape((x.shape[0], x.shape[1] * len(taps), counts[0] * counts[1]))


def fold(x: Tensor, size: Sizes, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> Tensor:
    """The adjoint of `unfold`: columns (N, C·KH·KW, windows) are summed into images (N, C, H, W) of a given size.

    Example: `ws.fold(ws.unfold(images, 2, stride=2), images.shape[2:], 2, stride=2)` are the images again.
    """
    op = "fold"
    need_axes(op, "columns", x, "(N, C * KH * KW, windows)")
    image = per_axis(op, "size", size, 2)
    window = _window(op, kernel, dilation, padding, stride)
    counts = _counts(op, window, image)
    taps = window.size[0] * window.size[1]
    (columns,) = integers(op, x, x.shape[1:2])
    if columns % taps or x.shape[2] != counts[0] * counts[1]:
        fail(
            ShapeError,
            f"{op}: images of {image[0]} x {image[1]} have {counts[0] * counts[1]} windows of {taps} "
            f"pixels per channel; received {shape_text(x.shape)}.",
        )
    channels = columns // taps
    one_hot = np.eye(taps).reshape(taps, 1, *window.size)
    weight = as_tensor(np.tile(one_hot, (channels, 1, 1, 1)).astype(x.dtype.numpy))
    images = x.reshape((x.shape[0], columns, *counts))
    covered = window.span(counts)
    output_padding = tuple(n - c + 2 * p for n, c, p in zip(image, covered, window.low, strict=True))
    options = (window.stride, window.low, output_padding, window.dilation, channels)
    with pin_float32():
        return conv_transpose2d(images, weight, None, *options)


def _window(op: str, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> SlidingWindow:
    arguments = (("kernel", kernel), ("dilation", dilation), ("padding", padding), ("stride", stride))
    size, dilations, margin, strides = (per_axis(op, name, value, 2) for name, value in arguments)
    return SlidingWindow(size, strides, dilations, margin, margin)


def _counts(op: str, window: SlidingWindow, image: Sequence[int]) -> tuple[int, ...]:
    counts = window.counts(image)
    if min(counts) < 1:
        fail(ShapeError, f"{op}: a window of {window.size} does not fit into {tuple(image)} pixels; use more padding.")
    return counts


def windows_along(x: Tensor, axis: int, size: int, step: int = 1) -> Tensor:
    """Sliding windows of `size` elements along an axis, `step` apart: the axis becomes the number of windows, and a new
    last axis holds their elements; torch calls it `x.unfold(axis, size, step)`.

    Example: `ws.windows_along(signal, -1, 4, 2)`.
    """
    at = normalize_axis("windows_along", x, axis)
    (length,) = integers("windows_along", x, x.shape[at : at + 1])
    if not 1 <= size <= length or step < 1:
        fail(OptionError, f"windows_along: size must be from 1 to {length}, step at least 1; received {size}, {step}.")
    first = np.arange(0, length - size + 1, step, dtype=np.int32)
    if step == size:  # windows that do not overlap: a reshape
        truncated = x[(*(slice(None),) * at, slice(0, len(first) * size))]
        windows = truncated.reshape((*x.shape[:at], len(first), size, *x.shape[at + 1 :]))
    else:
        windows = gather(x, first[:, None] + np.arange(size, dtype=np.int32), at)
    order = [d for d in range(x.ndim + 1) if d != at + 1]
    return windows.permute([*order, at + 1])
