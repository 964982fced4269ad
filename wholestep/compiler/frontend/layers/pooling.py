"""Pooling: maxima and means of windows, of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W)."""

from __future__ import annotations

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.layers.convolution import conv2d
from wholestep.compiler.frontend.layers.window import (
    Padding,
    Sizes,
    image_as_signal,
    integers,
    need_images,
    per_axis,
    signal_as_image,
    signal_padding,
    sliding_window,
)
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.scatter import put_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = [
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "local_response_norm", "max_pool1d", "max_pool2d",
    "max_pool2d_with_indices", "max_pool3d", "max_unpool2d",
]  # fmt: skip

LOWEST = -float("inf")


def max_pool2d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    dilation: Sizes = 1,
) -> Tensor:
    """The largest element of each window of (N, C, H, W); of equal elements the first gets the gradient.

    Args:
        window: a number, or a pair (vertical, horizontal).
        stride: the window's own size unless given.
        padding: never the maximum; at most half of the window, or "same" or "valid".
        ceil_mode: include a last window that is only partly inside the image.
        dilation: the distance between the pixels of a window.

    Example: `ws.max_pool2d(images, 2)`.
    """
    op = "max_pool2d"
    need_images(op, x, 2)
    if per_axis(op, "dilation", dilation, 2) != (1, 1):
        return max_pool2d_with_indices(x, window, stride, padding, dilation, ceil_mode)[0]
    w = sliding_window(op, x, window, stride, padding, ceil_mode=ceil_mode)
    # The op accepts padding of at most half of the window; an explicit pad adds the remaining padding.
    allowed = tuple(max(k // 2, low) for k, low in zip(w.size, w.low, strict=True))
    excess = tuple(max(0, high - most) for high, most in zip(w.high, allowed, strict=True))
    if any(excess):
        x = pad(x, [(0, 0), (0, 0), (0, excess[0]), (0, excess[1])], LOWEST)
    inside = tuple(high - more for high, more in zip(w.high, excess, strict=True))
    return Tensor(record(op, [x.node], at.PoolAttrs(w.size, w.stride, w.low, inside, False)), x.graph)


def avg_pool2d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Tensor:
    """The mean of each window of (N, C, H, W), computed as a depthwise convolution.

    Args:
        window: a number, or a pair (vertical, horizontal).
        stride: the window's own size unless given.
        padding: zeros around the image: a number, a pair, "same" (zeros not in the mean, as in Keras) or "valid".
        ceil_mode: include a last window that is only partly inside the image.
        count_padding: whether the mean includes the zeros of the padding, as in torch.

    Example: `ws.avg_pool2d(images, 2)`.
    """
    op = "avg_pool2d"
    need_images(op, x, 2)
    channels = x.shape[1]
    if not isinstance(channels, int):
        fail(ShapeError, f"{op}: the number of channels must be an integer; received {shape_text(x.shape)}.")
    if min(per_axis(op, "window", window, 2)) < 1:
        fail(OptionError, f"{op}: the window must be at least 1; received {window!r}.")
    w = sliding_window(op, x, window, stride, padding, ceil_mode=ceil_mode)
    declared = w.low if isinstance(padding, str) else per_axis(op, "padding", padding, 2)
    counts_all = count_padding and not isinstance(padding, str)
    even = w.low == w.high == declared and (counts_all or max(w.low) == 0)
    kernel = np.full((channels, 1, *w.size), 1.0 / (w.size[0] * w.size[1]) if even else 1.0, x.dtype.numpy)
    with pin_float32():  # a mean, not a convolution with weights of the model: exempt from autocast
        if even:
            return conv2d(x, kernel, stride=w.stride, padding=w.low, groups=channels)
        counted = declared if counts_all else (0, 0)
        fields = (integers(op, x, x.shape[2:]), w.size, w.stride, w.low, w.high, counted)
        counts = [_elements(*axis) for axis in zip(*fields, strict=True)]
        edges = [(0, 0), (0, 0), (w.low[0], w.high[0]), (w.low[1], w.high[1])]
        sums = conv2d(pad(x, edges), kernel, stride=w.stride, groups=channels)
    return sums * as_tensor((1.0 / np.outer(*counts)).astype(x.dtype.numpy))


def _elements(image: int, window: int, stride: int, low: int, high: int, counted: int) -> np.ndarray:
    """The number of elements of each window along one axis that are in the image or in padding that counts."""
    starts = np.arange(0, image + low + high - window + 1, stride) - low
    return np.minimum(starts + window, image + counted) - np.maximum(starts, -counted)


# -- signals -----------------------------------------------------------------------------------------------------


def max_pool1d(
    x: Tensor, window: int, stride: int | None = None, padding: int | str = 0, ceil_mode: bool = False
) -> Tensor:
    """`max_pool2d` along one axis: (N, C, L).  Example: `ws.max_pool1d(signals, 2)`."""
    need_images("max_pool1d", x, 1)
    options = (None if stride is None else (1, stride), signal_padding(padding), ceil_mode)
    return image_as_signal(max_pool2d(signal_as_image(x), (1, window), *options))


def avg_pool1d(
    x: Tensor,
    window: int,
    stride: int | None = None,
    padding: int | str = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Tensor:
    """`avg_pool2d` along one axis: (N, C, L).  Example: `ws.avg_pool1d(signals, 2)`."""
    need_images("avg_pool1d", x, 1)
    options = (None if stride is None else (1, stride), signal_padding(padding), ceil_mode, count_padding)
    return image_as_signal(avg_pool2d(signal_as_image(x), (1, window), *options))


# -- volumes -----------------------------------------------------------------------------------------------------


def max_pool3d(
    x: Tensor, window: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False
) -> Tensor:
    """`max_pool2d` along three axes: height and width, then depth.  Example: `ws.max_pool3d(video, 2)`."""
    return _pool_volume("max_pool3d", x, window, stride, padding, ceil_mode)


def avg_pool3d(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Tensor:
    """`avg_pool2d` along three axes: height and width, then depth.  Example: `ws.avg_pool3d(video, 2)`."""
    return _pool_volume("avg_pool3d", x, window, stride, padding, ceil_mode, count_padding)


def _pool_volume(op: str, x: Tensor, window: Sizes, stride: Sizes | None, padding: Sizes, *options: bool) -> Tensor:
    """Pools height and width with depth as channels, then depth with all pixels as the columns of one image."""
    need_images(op, x, 3)
    size = per_axis(op, "window", window, 3)
    steps = size if stride is None else per_axis(op, "stride", stride, 3)
    around = per_axis(op, "padding", padding, 3)
    n, channels, depth, height, width = x.shape
    pool = max_pool2d if op.startswith("max") else avg_pool2d
    flat = pool(x.reshape((n, channels * depth, height, width)), size[1:], steps[1:], around[1:], *options)
    pixels = flat.shape[2:]
    columns = flat.reshape((n, channels, depth, pixels[0] * pixels[1]))
    out = pool(columns, (size[0], 1), (steps[0], 1), (around[0], 0), *options)
    return out.reshape((n, channels, out.shape[2], *pixels))


def max_pool2d_with_indices(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """`max_pool2d`, and the int32 index of each maximum (the first of equal elements) among the pixels of its image.

    Args:
        dilation: the distance between the pixels of a window.

    Example: `values, places = ws.max_pool2d_with_indices(images, 2)`.
    """
    op = "max_pool2d_with_indices"
    need_images(op, x, 2)
    w = sliding_window(op, x, window, stride, padding, dilation, ceil_mode)
    padded = pad(x, [(0, 0), (0, 0), *zip(w.low, w.high, strict=True)], LOWEST)
    image = [n for n in padded.shape[2:] if isinstance(n, int)]
    if len(image) != 2 or any(n < e for n, e in zip(image, w.extent, strict=True)):
        fail(ShapeError, f"{op}: windows of {w.extent} do not fit into images {shape_text(padded.shape)}.")
    counts = [(n - e) // s + 1 for n, e, s in zip(image, w.extent, w.stride, strict=True)]
    taps = stack([tap for _, tap in w.taps(padded, counts)], 2)  # (N, C, taps, rows, columns)
    tap = taps.argmax(2)
    rows, columns = (np.arange(n) * s - low for n, s, low in zip(counts, w.stride, w.low, strict=True))
    window_width = as_tensor(np.int32(w.size[1]))
    row = tap // window_width * w.dilation[0] + as_tensor(rows.astype(np.int32).reshape(-1, 1))
    column = tap % window_width * w.dilation[1] + as_tensor(columns.astype(np.int32))
    width = x.shape[3]
    assert isinstance(width, int)
    index = row * width + column
    if w.dilation == (1, 1):
        return max_pool2d(x, window, stride, padding, ceil_mode), index
    return taps.max(2), index


def max_unpool2d(x: Tensor, indices: Tensor, size: Sizes) -> Tensor:
    """Images of a given size with the pixels of x at the indices of `max_pool2d_with_indices`, and 0 elsewhere.

    Example: `ws.max_unpool2d(values, places, (28, 28))`.
    """
    need_images("max_unpool2d", x, 2)
    height, width = per_axis("max_unpool2d", "size", size, 2)
    if indices.shape != x.shape or not indices.dtype.is_integer:
        error = ShapeError if indices.dtype.is_integer else DTypeError
        fail(error, f"max_unpool2d needs one integer index per pixel of {shape_text(x.shape)}; received {indices!r}.")
    pixels = x.shape[2] * x.shape[3]
    zeros = as_tensor(0.0).astype(x.dtype).expand(*x.shape[:2], height * width)
    flat, flat_indices = (t.reshape((*x.shape[:2], pixels)) for t in (x, indices))
    return put_along_axis(zeros, flat_indices, flat, 2).reshape((*x.shape[:2], height, width))


def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · mean of x² over `size` neighbouring channels)^beta (AlexNet), of (N, C, ...), as in torch.

    Example: `ws.local_response_norm(images, 5)`.
    """
    if x.ndim < 3 or not isinstance(size, int) or size < 1:
        error = OptionError if x.ndim >= 3 else ShapeError
        fail(error, f"local_response_norm needs (N, C, L, ...) and a size of at least 1; received {x!r}, {size!r}.")
    squares = (x * x).reshape((x.shape[0], 1, x.shape[1], -1))
    padded = pad(squares, [(0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    means = avg_pool2d(padded, (size, 1), (1, 1)).reshape(x.shape)
    return x / (means * alpha + k) ** beta
