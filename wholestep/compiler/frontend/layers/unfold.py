"""im2col and its adjoint col2im (unfold, fold), and sliding windows along one axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import gather, stack
from wholestep.compiler.frontend.layers.convolution import Pair, conv_transpose2d, need_axes, pair
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.index_math import normalize_axis
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.type_rules.convolution import window_count
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["fold", "unfold", "windows_along"]


def unfold(x: Tensor, kernel: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> Tensor:
    """The windows of images as columns: (N, C, H, W) -> (N, C·KH·KW, number of windows), as in torch.

    Example: `ws.unfold(images, 3, padding=1)`.
    """
    op = "unfold"
    need_axes(op, "images", x, "(N, C, H, W)")
    size, dilations, paddings, steps = (
        pair(op, name, value)
        for name, value in (("kernel", kernel), ("dilation", dilation), ("padding", padding), ("stride", stride))
    )
    image_size = [_number(op, x, e) for e in x.shape[2:]]
    counts = _counts(op, image_size, size, steps, paddings, dilations)
    if any(paddings):
        x = pad(x, [(0, 0), (0, 0), (paddings[0], paddings[0]), (paddings[1], paddings[1])])
    ends = [(n - 1) * s + 1 for n, s in zip(counts, steps, strict=True)]
    taps = [
        x[:, :, u : u + ends[0] : steps[0], v : v + ends[1] : steps[1]]
        for u in range(0, size[0] * dilations[0], dilations[0])
        for v in range(0, size[1] * dilations[1], dilations[1])
    ]
    stacked = stack(taps, 2)  # (N, C, taps, rows, columns)
    return stacked.reshape((x.shape[0], x.shape[1] * len(taps), counts[0] * counts[1]))


def fold(x: Tensor, size: Pair, kernel: Pair, dilation: Pair = 1, padding: Pair = 0, stride: Pair = 1) -> Tensor:
    """The adjoint of `unfold`: columns (N, C·KH·KW, windows) are summed into images (N, C, H, W) of a given size.

    Example: `ws.fold(ws.unfold(images, 2, stride=2), images.shape[2:], 2, stride=2)` are the images again.
    """
    op = "fold"
    need_axes(op, "columns", x, "(N, C * KH * KW, windows)")
    image_size, window, dilations, paddings, steps = (
        pair(op, name, value)
        for name, value in (
            ("size", size), ("kernel", kernel), ("dilation", dilation), ("padding", padding), ("stride", stride)
        )
    )  # fmt: skip
    counts = _counts(op, image_size, window, steps, paddings, dilations)
    taps = window[0] * window[1]
    columns = _number(op, x, x.shape[1])
    if columns % taps or x.shape[2] != counts[0] * counts[1]:
        fail(
            ShapeError,
            f"{op}: images of {image_size[0]} x {image_size[1]} have {counts[0] * counts[1]} windows of {taps} "
            f"pixels per channel; received {shape_text(x.shape)}.",
        )
    channels = columns // taps
    one_hot = np.eye(taps).reshape(taps, 1, *window)
    weight = as_tensor(np.tile(one_hot, (channels, 1, 1, 1)).astype(x.dtype.numpy))
    images = x.reshape((x.shape[0], columns, *counts))
    full = [(n - 1) * s - 2 * p + d * (k - 1) + 1 for n, s, p, d, k in zip(counts, steps, paddings, dilations, window)]
    output_padding = tuple(n - f for n, f in zip(image_size, full, strict=True))
    with pin_float32():
        return conv_transpose2d(images, weight, None, steps, paddings, output_padding, dilations, channels)


def _counts(
    op: str,
    size: Sequence[int],
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, int]:
    counts = [
        window_count(n, k, s, p, p, d) for n, k, s, p, d in zip(size, window, stride, padding, dilation, strict=True)
    ]
    if min(counts) < 1:
        fail(ShapeError, f"{op}: a window of {tuple(window)} does not fit into {tuple(size)} pixels; use more padding.")
    return counts[0], counts[1]


def _number(op: str, x: Tensor, extent: object) -> int:
    if not isinstance(extent, int):
        fail(ShapeError, f"{op}: all sizes but the batch must be integers; received {shape_text(x.shape)}.")
    return extent


def windows_along(x: Tensor, axis: int, size: int, step: int = 1) -> Tensor:
    """Sliding windows of `size` elements along an axis, `step` apart: the axis becomes the number of windows, and a new
    last axis holds their elements; torch calls it `x.unfold(axis, size, step)`.

    Example: `ws.windows_along(signal, -1, 4, 2)`.
    """
    at = normalize_axis("windows_along", x, axis)
    length = _number("windows_along", x, x.shape[at])
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
