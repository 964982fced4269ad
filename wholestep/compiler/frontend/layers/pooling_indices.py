"""Less common pooling: dilated, with indices of the maxima, unpooling, adaptive 3-d; and local response norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.layers.convolution import Padding, Pair, need_axes, pair
from wholestep.compiler.frontend.layers.convolution3d import Triple, triple
from wholestep.compiler.frontend.layers.pooling import LOWEST, _averages, _margins, _spans, avg_pool2d, max_pool2d
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.scatter import put_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = [
    "adaptive_avg_pool3d", "adaptive_max_pool3d", "local_response_norm", "max_pool2d_with_indices", "max_unpool2d",
]  # fmt: skip


def max_pool2d_with_indices(
    x: Tensor,
    window: Pair,
    stride: Pair | None = None,
    padding: Padding = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """`max_pool2d`, and the int32 index of each maximum (the first of equal ones) among the pixels of its image.

    Args:
        dilation: the distance between the pixels of a window.

    Example: `values, places = ws.max_pool2d_with_indices(images, 2)`.
    """
    op = "max_pool2d_with_indices"
    need_axes(op, "images", x, "(N, C, H, W)")
    size, dilations = pair(op, "window", window), pair(op, "dilation", dilation)
    steps = size if stride is None else pair(op, "stride", stride)
    extent = (dilations[0] * (size[0] - 1) + 1, dilations[1] * (size[1] - 1) + 1)
    low, high = _margins(op, x, extent, steps, padding, ceil_mode)
    taps = _taps(op, pad(x, [(0, 0), (0, 0), *zip(low, high, strict=True)], LOWEST), size, extent, steps, dilations)
    tap = taps.argmax(2)
    rows, columns = (np.arange(int(n)) * s - lo for n, s, lo in zip(taps.shape[3:], steps, low, strict=True))
    window_width = as_tensor(np.int32(size[1]))
    row = tap // window_width * dilations[0] + as_tensor(rows.astype(np.int32).reshape(-1, 1))
    column = tap % window_width * dilations[1] + as_tensor(columns.astype(np.int32))
    width = x.shape[3]
    assert isinstance(width, int)
    if dilations == (1, 1):
        return max_pool2d(x, window, stride, padding, ceil_mode), row * width + column
    return taps.max(2), row * width + column


def _taps(
    op: str, x: Tensor, size: Sequence[int], extent: Sequence[int], stride: Sequence[int], dilations: Sequence[int]
) -> Tensor:
    """The pixels of each window: (N, C, pixels, rows, columns)."""
    counts = []
    for n, r, s in zip(x.shape[2:], extent, stride, strict=True):
        if not isinstance(n, int) or n < r:
            fail(ShapeError, f"{op}: windows of {tuple(extent)} do not fit into images {shape_text(x.shape)}.")
        counts.append((n - r) // s + 1)
    ends = [(n - 1) * s + 1 for n, s in zip(counts, stride, strict=True)]
    taps = [
        x[
            :,
            :,
            u * dilations[0] : u * dilations[0] + ends[0] : stride[0],
            v * dilations[1] : v * dilations[1] + ends[1] : stride[1],
        ]
        for u in range(size[0])
        for v in range(size[1])
    ]
    return stack(taps, 2)


def max_unpool2d(x: Tensor, indices: Tensor, size: Pair) -> Tensor:
    """Images of a given size with the pixels of x at the indices of `max_pool2d_with_indices`, and 0 elsewhere.

    Example: `ws.max_unpool2d(values, places, (28, 28))`.
    """
    need_axes("max_unpool2d", "images", x, "(N, C, H, W)")
    height, width = pair("max_unpool2d", "size", size)
    if indices.shape != x.shape or not indices.dtype.is_integer:
        error = ShapeError if indices.dtype.is_integer else DTypeError
        fail(error, f"max_unpool2d needs one integer index per pixel of {shape_text(x.shape)}; received {indices!r}.")
    pixels = x.shape[2] * x.shape[3]
    zeros = as_tensor(0.0).astype(x.dtype).expand(*x.shape[:2], height * width)
    flat, flat_indices = (t.reshape((*x.shape[:2], pixels)) for t in (x, indices))
    return put_along_axis(zeros, flat_indices, flat, 2).reshape((*x.shape[:2], height, width))


def adaptive_avg_pool3d(x: Tensor, size: Triple) -> Tensor:
    """`adaptive_avg_pool2d` of volumes, (N, C, D, H, W).  Example: `ws.adaptive_avg_pool3d(video, (1, 4, 4))`."""
    target, current = _sizes("adaptive_avg_pool3d", x, size)
    for axis, (n, m) in enumerate(zip(current, target, strict=True), start=2):
        if m == 1:
            x = x.mean(axis, keepdims=True)
        elif n != m:
            with pin_float32():
                later_axes = x.shape[axis + 1 :]
                flat = x.reshape((*x.shape[: axis + 1], -1)) if later_axes else x.reshape((*x.shape, 1))
                x = (_averages(n, m, x) @ flat).reshape((*x.shape[:axis], m, *later_axes))
    return x


def adaptive_max_pool3d(x: Tensor, size: Triple) -> Tensor:
    """`adaptive_max_pool2d` of volumes, (N, C, D, H, W).  Example: `ws.adaptive_max_pool3d(video, 2)`."""
    target, current = _sizes("adaptive_max_pool3d", x, size)
    for axis, (n, m) in enumerate(zip(current, target, strict=True), start=2):
        before = (slice(None),) * axis
        if m == 1:
            x = x.max(axis, keepdims=True)
        elif n != m:
            x = stack([x[(*before, slice(a, b))].max(axis) for a, b in _spans(n, m)], axis)
    return x


def _sizes(op: str, x: Tensor, size: Triple) -> tuple[tuple[int, ...], tuple[int, ...]]:
    need_axes(op, "volumes", x, "(N, C, D, H, W)")
    target = triple(op, "size", size)
    current = tuple(e for e in x.shape[2:] if isinstance(e, int))
    if len(current) != 3 or min(target) < 1:
        fail(ShapeError, f"{op}: sizes must be integers of at least 1; received {shape_text(x.shape)} and {size!r}.")
    return target, current


def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · mean of x² over `size` neighbouring channels)^beta (AlexNet), of (N, C, ...), as in torch.

    Example: `ws.local_response_norm(images, 5)`.
    """
    if x.ndim < 3 or not isinstance(size, int) or size < 1:
        error = OptionError if x.ndim >= 3 else ShapeError
        fail(
            error,
            f"local_response_norm needs (N, C, L) or more axes and a size of at least 1; received {x!r}, {size!r}.",
        )
    squares = (x * x).reshape((x.shape[0], 1, x.shape[1], -1))
    padded = pad(squares, [(0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    means = avg_pool2d(padded, (size, 1), (1, 1)).reshape(x.shape)
    return x / (means * alpha + k) ** beta
