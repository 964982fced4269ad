"""Pooling: maxima and means of windows; strided, global, and adaptive (a given number of windows)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.layers.convolution import Padding, Pair, conv2d, need_axes, padding_pairs, pair
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "avg_pool1d", "avg_pool2d", "global_avg_pool1d", "global_avg_pool2d", "global_max_pool1d", "global_max_pool2d",
    "max_pool1d", "max_pool2d",
]  # fmt: skip

LOWEST = -float("inf")


def max_pool2d(
    x: Tensor,
    window: Pair,
    stride: Pair | None = None,
    padding: Padding = 0,
    ceil_mode: bool = False,
    dilation: Pair = 1,
) -> Tensor:
    """The largest element of each window of (N, C, H, W); the first of equal ones gets the gradient.

    Args:
        window: a number, or a pair (vertical, horizontal).
        stride: the window's own size unless given.
        padding: never the maximum; at most half of the window, or "same" or "valid".
        ceil_mode: include a last window that is only partly inside the image.
        dilation: the distance between the pixels of a window.

    Example: `ws.max_pool2d(images, 2)`.
    """
    need_axes("max_pool2d", "images", x, "(N, C, H, W)")
    if pair("max_pool2d", "dilation", dilation) != (1, 1):
        from wholestep.compiler.frontend.layers.pooling_indices import max_pool2d_with_indices

        return max_pool2d_with_indices(x, window, stride, padding, dilation, ceil_mode)[0]
    size = pair("max_pool2d", "window", window)
    steps = size if stride is None else pair("max_pool2d", "stride", stride)
    low, high = _margins("max_pool2d", x, size, steps, padding, ceil_mode)
    # The op accepts padding of at most half of the window; the rest is added by an explicit pad.
    allowed = tuple(max(k // 2, lo) for k, lo in zip(size, low, strict=True))
    excess = tuple(max(0, hi - m) for hi, m in zip(high, allowed, strict=True))
    if any(excess):
        x = pad(x, [(0, 0), (0, 0), (0, excess[0]), (0, excess[1])], LOWEST)
    inside = tuple(hi - b for hi, b in zip(high, excess, strict=True))
    return Tensor(record("max_pool2d", [x.node], at.PoolAttrs(size, steps, low, inside, False)), x.graph)


def avg_pool2d(
    x: Tensor,
    window: Pair,
    stride: Pair | None = None,
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
    need_axes(op, "images", x, "(N, C, H, W)")
    channels = x.shape[1]
    if not isinstance(channels, int):
        fail(ShapeError, f"{op}: the number of channels must be an integer; received {shape_text(x.shape)}.")
    size = pair(op, "window", window)
    if min(size) < 1:
        fail(OptionError, f"{op}: the window must be at least 1; received {window!r}.")
    steps = size if stride is None else pair(op, "stride", stride)
    low, high = _margins(op, x, size, steps, padding, ceil_mode)
    declared = low if isinstance(padding, str) else pair(op, "padding", padding)
    counts_all = count_padding and not isinstance(padding, str)
    even = low == high == declared and (counts_all or max(low) == 0)
    kernel = np.full((channels, 1, *size), 1.0 / (size[0] * size[1]) if even else 1.0, x.dtype.numpy)
    with pin_float32():  # a mean, not a convolution with weights of the model: exempt from autocast
        if even:
            return conv2d(x, kernel, stride=steps, padding=low, groups=channels)
        counted = declared if counts_all else (0, 0)
        counts = [
            _counts(int(n), *arguments)
            for n, *arguments in zip(x.shape[2:], size, steps, low, high, counted, strict=True)
        ]
        edges = [(0, 0), (0, 0), (low[0], high[0]), (low[1], high[1])]
        sums = conv2d(pad(x, edges), kernel, stride=steps, groups=channels)
    return sums * as_tensor((1.0 / np.outer(*counts)).astype(x.dtype.numpy))


def _counts(size: int, window: int, stride: int, low: int, high: int, counted: int) -> np.ndarray:
    """The number of elements of each window along one axis that are in the image or in padding that counts."""
    starts = np.arange(0, size + low + high - window + 1, stride) - low
    return np.minimum(starts + window, size + counted) - np.maximum(starts, -counted)


def _margins(
    op: str, x: Tensor, size: Sequence[int], stride: Sequence[int], padding: Padding, ceil_mode: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding (top, left) and (bottom, right); `ceil_mode` extends the latter so that a partial window fits."""
    low, high = padding_pairs(op, padding, x.shape[2:], size, stride)
    if not ceil_mode:
        return low, high
    return low, tuple(
        _ceil_padding(op, x, *arguments) for arguments in zip(x.shape[2:], size, stride, low, high, strict=True)
    )


def _ceil_padding(op: str, x: Tensor, size: object, window: int, stride: int, low: int, high: int) -> int:
    if not isinstance(size, int):
        fail(ShapeError, f"{op}: ceil_mode needs images of a known size; received {shape_text(x.shape)}.")
    count = -(-(size + low + high - window) // stride) + 1
    if (count - 1) * stride >= size + low:  # the last window would start outside of the image
        count -= 1
    return max(high, (count - 1) * stride + window - size - low)


# -- global ------------------------------------------------------------------------------------------------------


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) -> (N, C).  Example: `ws.global_avg_pool2d(images)`."""
    need_axes("global_avg_pool2d", "images", x, "(N, C, H, W)")
    return x.mean((2, 3))


def global_max_pool2d(x: Tensor) -> Tensor:
    """The largest element of each channel: (N, C, H, W) -> (N, C).  Example: `ws.global_max_pool2d(images)`."""
    need_axes("global_max_pool2d", "images", x, "(N, C, H, W)")
    return x.max((2, 3))


def global_avg_pool1d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, L) -> (N, C).  Example: `ws.global_avg_pool1d(signals)`."""
    need_axes("global_avg_pool1d", "signals", x, "(N, C, L)")
    return x.mean(2)


def global_max_pool1d(x: Tensor) -> Tensor:
    """The largest element of each channel: (N, C, L) -> (N, C).  Example: `ws.global_max_pool1d(signals)`."""
    need_axes("global_max_pool1d", "signals", x, "(N, C, L)")
    return x.max(2)


# -- signals -----------------------------------------------------------------------------------------------------


def max_pool1d(
    x: Tensor, window: int, stride: int | None = None, padding: int | str = 0, ceil_mode: bool = False
) -> Tensor:
    """`max_pool2d` along one axis: (N, C, L).  Example: `ws.max_pool1d(signals, 2)`."""
    rows, steps, around = _as_rows("max_pool1d", x, stride, padding)
    return _as_signals(max_pool2d(rows, (1, window), steps, around, ceil_mode))


def avg_pool1d(
    x: Tensor,
    window: int,
    stride: int | None = None,
    padding: int | str = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Tensor:
    """`avg_pool2d` along one axis: (N, C, L).  Example: `ws.avg_pool1d(signals, 2)`."""
    rows, steps, around = _as_rows("avg_pool1d", x, stride, padding)
    return _as_signals(avg_pool2d(rows, (1, window), steps, around, ceil_mode, count_padding))


def _as_rows(op: str, x: Tensor, stride: int | None, padding: int | str) -> tuple[Tensor, Pair | None, Padding]:
    need_axes(op, "signals", x, "(N, C, L)")
    rows = x.reshape((*x.shape[:2], 1, x.shape[2]))
    return rows, None if stride is None else (1, stride), padding if isinstance(padding, str) else (0, padding)


def _as_signals(x: Tensor) -> Tensor:
    return x.reshape((*x.shape[:2], x.shape[3]))


# -- adaptive ----------------------------------------------------------------------------------------------------


def adaptive_avg_pool2d(x: Tensor, size: Pair) -> Tensor:
    """The means of `size` windows that cover (N, C, H, W): of n rows and m windows, window i has the rows
    ⌊i·n/m⌋ ... ⌈(i + 1)·n/m⌉ - 1.

    Example: `ws.adaptive_avg_pool2d(images, 7)`.
    """
    target, current = _sizes("adaptive_avg_pool2d", x, size)
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
    for i, (first, last) in enumerate(_spans(current, target)):
        matrix[i, first:last] = 1.0 / (last - first)
    return as_tensor(matrix.astype(x.dtype.numpy))


def adaptive_max_pool2d(x: Tensor, size: Pair) -> Tensor:
    """The largest elements of `size` windows of (N, C, H, W), placed as those of `adaptive_avg_pool2d`.

    Example: `ws.adaptive_max_pool2d(images, 7)`.
    """
    target, current = _sizes("adaptive_max_pool2d", x, size)
    if all(n % m == 0 for n, m in zip(current, target, strict=True)):
        return max_pool2d(x, tuple(n // m for n, m in zip(current, target, strict=True)))
    x = stack([x[:, :, a:b].max(2) for a, b in _spans(current[0], target[0])], 2)
    return stack([x[:, :, :, a:b].max(3) for a, b in _spans(current[1], target[1])], 3)


def _spans(current: int, target: int) -> list[tuple[int, int]]:
    return [(i * current // target, -(-(i + 1) * current // target)) for i in range(target)]


def _sizes(op: str, x: Tensor, size: Pair) -> tuple[tuple[int, int], tuple[int, int]]:
    need_axes(op, "images", x, "(N, C, H, W)")
    target = pair(op, "size", size)
    if min(target) < 1:
        fail(OptionError, f"{op}: the size of the result must be at least 1; received {size!r}.")
    height, width = x.shape[2:]
    if not isinstance(height, int) or not isinstance(width, int):
        fail(ShapeError, f"{op}: height and width must be integers; received {shape_text(x.shape)}.")
    return target, (height, width)


def adaptive_avg_pool1d(x: Tensor, size: int) -> Tensor:
    """`adaptive_avg_pool2d` along one axis: (N, C, L).  Example: `ws.adaptive_avg_pool1d(signals, 4)`."""
    return _as_signals(adaptive_avg_pool2d(_as_rows("adaptive_avg_pool1d", x, None, 0)[0], (1, size)))


def adaptive_max_pool1d(x: Tensor, size: int) -> Tensor:
    """`adaptive_max_pool2d` along one axis: (N, C, L).  Example: `ws.adaptive_max_pool1d(signals, 4)`."""
    return _as_signals(adaptive_max_pool2d(_as_rows("adaptive_max_pool1d", x, None, 0)[0], (1, size)))
