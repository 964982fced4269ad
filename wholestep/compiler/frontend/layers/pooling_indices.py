"""Max pooling with the indices of the maxima or with dilation, unpooling, and local response normalization."""

from __future__ import annotations

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.layers.pooling import LOWEST, avg_pool2d, max_pool2d
from wholestep.compiler.frontend.layers.window import Padding, Sizes, need_images, per_axis, sliding_window
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.scatter import put_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["local_response_norm", "max_pool2d_with_indices", "max_unpool2d"]


def max_pool2d_with_indices(
    x: Tensor,
    window: Sizes,
    stride: Sizes | None = None,
    padding: Padding = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """`max_pool2d`, and the int32 index of each maximum (the first of equal ones) among the pixels of its image.

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
        fail(
            error,
            f"local_response_norm needs (N, C, L) or more axes and a size of at least 1; received {x!r}, {size!r}.",
        )
    squares = (x * x).reshape((x.shape[0], 1, x.shape[1], -1))
    padded = pad(squares, [(0, 0), (0, 0), (size // 2, (size - 1) // 2), (0, 0)])
    means = avg_pool2d(padded, (size, 1), (1, 1)).reshape(x.shape)
    return x / (means * alpha + k) ** beta
