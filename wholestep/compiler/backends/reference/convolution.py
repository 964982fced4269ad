"""Convolutions, pools and their gradients: a Python loop over the taps of a window, NumPy arrays for everything else.

Images are (N, rows, columns, channels), weights (outputs, rows, columns, channels of a group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np

from wholestep.compiler.backends.reference.values import Array, Values, accumulator
from wholestep.compiler.ir.types import as_dtype
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import POOL_AXES, Level

Pair = tuple[int, int]


def run_window(window: Window, values: Values) -> None:
    operands = {o.name: values.over(o.load, o.axes) for o in window.operands}
    if window.results:  # a weight's gradient, which has no epilogue
        (result,) = window.results
        shape = tuple(values.extents[a] for a in result.axes)
        values.put(result.load, result.axes, WEIGHTS[window.op](window, operands, shape))
        return
    size = values.extents[1], values.extents[2]
    if window.pooled is not None:
        _run_pooled(window, values, operands, size)
        return
    (level,) = window.levels
    image, position = IMAGES[window.op](window, operands, size)
    _bind_result(values, level, image, position)
    values.run(level.body, level.stores)


def _run_pooled(window: Window, values: Values, operands: Mapping[str, Array], size: Pair) -> None:
    """A convolution, its epilogue, a pool over the result, and the pool's epilogue."""
    (rows, columns), (tall, wide) = size, window.pool
    image, _ = IMAGES[window.op](window, operands, (rows * tall, columns * wide))
    n, channels = image.shape[0], image.shape[-1]
    by_window = image.reshape(n, rows, tall, columns, wide, channels).transpose(0, 1, 3, 5, 2, 4)
    first, second = window.levels
    _bind_result(values, first, by_window, None)
    values.run(first.body)
    assert window.pooled is not None
    pooled = np.broadcast_to(values.computed[window.pooled], (*values.extents[:6], *(1,) * (len(values.extents) - 6)))
    pixels = pooled.reshape(*values.extents[:4], -1)
    assert POOL_AXES == (4, 5)
    _bind_result(values, second, pixels.max(axis=-1), pixels.argmax(axis=-1))
    values.run(second.body, second.stores)


def _bind_result(values: Values, level: Level, image: Array, position: Array | None) -> None:
    """Make the result of a window, an array over the kernel's first axes, available to a level's instructions."""
    for instr in level.body:
        source = {"acc": image, "position": position}.get(instr.op)
        if source is not None:
            shape = (*source.shape, *(1,) * (len(values.extents) - source.ndim))
            values.computed[instr.id] = source.reshape(shape).astype(instr.dtype.numpy)


# -- padding -----------------------------------------------------------------------------------------------------


def taps(tall: int, wide: int) -> Iterator[tuple[int, int, int]]:
    """Number, row and column of every tap, row by row."""
    for number in range(tall * wide):
        yield number, *divmod(number, wide)


def tap_view(frame: Array, row: int, column: int, count: Pair, window: Window) -> Array:
    """The pixels that a tap reads for every window: a view of the frame."""
    (down, across), (far_down, far_across) = window.stride, window.dilation
    top, left = row * far_down, column * far_across
    rows = slice(top, top + (count[0] - 1) * down + 1, down)
    columns = slice(left, left + (count[1] - 1) * across + 1, across)
    return frame[:, rows, columns]


def frame_size(count: Pair, kernel: Pair, window: Window, inside: Pair) -> tuple[int, int]:
    """The height and width of a frame that is large enough for all windows and for the padded image."""
    sizes = [
        max((n - 1) * stride + dilation * (k - 1) + 1, low + size)
        for n, k, stride, dilation, low, size in zip(
            count, kernel, window.stride, window.dilation, window.low, inside, strict=True
        )
    ]
    return sizes[0], sizes[1]


def pad_images(x: Array, count: Pair, kernel: Pair, window: Window, outside: float = 0.0) -> Array:
    """Padded images: the margins are filled with `outside`."""
    size = x.shape[1], x.shape[2]
    frame = np.full((x.shape[0], *frame_size(count, kernel, window, size), x.shape[3]), outside, x.dtype)
    crop_padding(frame, size, window)[...] = x
    return frame


def crop_padding(frame: Array, size: Pair, window: Window) -> Array:
    top, left = window.low
    return frame[:, top : top + size[0], left : left + size[1]]


def sums(x: Array) -> Array:
    """An operand of a product, in the accumulator's dtype."""
    return x.astype(accumulator(as_dtype(x.dtype)))


def by_groups(x: Array, groups: int) -> Array:
    """Reshape (..., channels) to (groups, pixels, channels of a group)."""
    return x.reshape(-1, groups, x.shape[-1] // groups).swapaxes(0, 1)


# -- images ------------------------------------------------------------------------------------------------------

Operands = Mapping[str, Array]
PixelResult = tuple[Array, Array | None]  # pixels, and for pools the position of each maximum in its window


def conv2d(window: Window, operands: Operands, size: Pair) -> PixelResult:
    x, weight = operands["x"], operands["weight"]
    outputs, tall, wide, _ = weight.shape
    frame = pad_images(sums(x), size, (tall, wide), window)
    weights = sums(weight).reshape(window.groups, outputs // window.groups, *weight.shape[1:])
    total = np.zeros((window.groups, x.shape[0] * size[0] * size[1], outputs // window.groups), frame.dtype)
    for _, row, column in taps(tall, wide):
        pixels = by_groups(tap_view(frame, row, column, size, window), window.groups)
        total += pixels @ weights[:, :, row, column].swapaxes(1, 2)
    return total.swapaxes(0, 1).reshape(x.shape[0], *size, outputs), None


def conv2d_grad_input(window: Window, operands: Operands, size: Pair) -> PixelResult:
    return _scatter_taps(window, operands["g"], operands["weight"], size), None


def _scatter_taps(window: Window, g: Array, weight: Array, size: Pair) -> Array:
    """Add the gradient of every tap of every window to the pixel that the tap reads."""
    outputs, tall, wide, inner = weight.shape
    count, channels = (g.shape[1], g.shape[2]), inner * window.groups
    pixels = by_groups(sums(g), window.groups)
    weights = sums(weight).reshape(window.groups, outputs // window.groups, *weight.shape[1:])
    frame = np.zeros((g.shape[0], *frame_size(count, (tall, wide), window, size), channels), pixels.dtype)
    for _, row, column in taps(tall, wide):
        contribution = (pixels @ weights[:, :, row, column]).swapaxes(0, 1)
        tap_view(frame, row, column, count, window)[...] += contribution.reshape(g.shape[0], *count, channels)
    return crop_padding(frame, size, window)


def max_pool2d(window: Window, operands: Operands, size: Pair) -> PixelResult:
    tall, wide = window.pool
    frame = pad_images(operands["x"], size, (tall, wide), window, -np.inf)
    pixels = np.stack([tap_view(frame, row, column, size, window) for _, row, column in taps(tall, wide)])
    return pixels.max(axis=0), pixels.argmax(axis=0)  # the first of equal maxima


def max_pool2d_grad(window: Window, operands: Operands, size: Pair) -> PixelResult:
    return _scatter_to_maxima(window, operands["g"], operands["index"], size), None


def _scatter_to_maxima(window: Window, g: Array, index: Array, size: Pair) -> Array:
    """The gradient of a pool at the positions of the maxima, zeros elsewhere."""
    count, (tall, wide) = (g.shape[1], g.shape[2]), window.pool
    frame = np.zeros((g.shape[0], *frame_size(count, (tall, wide), window, size), g.shape[3]), sums(g).dtype)
    for number, row, column in taps(tall, wide):
        tap_view(frame, row, column, count, window)[...] += np.where(index == number, g, 0.0)
    return crop_padding(frame, size, window)


def max_pool2d_pick(window: Window, operands: Operands, size: Pair) -> PixelResult:
    x, index, (tall, wide) = operands["x"], operands["index"], window.pool
    frame, picked = pad_images(x, size, (tall, wide), window), np.zeros(index.shape, x.dtype)
    for number, row, column in taps(tall, wide):
        picked = np.where(index == number, tap_view(frame, row, column, size, window), picked)
    return picked, None


def grad_input_through_pool(window: Window, operands: Operands, size: Pair) -> PixelResult:
    gradient = _grad_before_pool(window, operands["g"], operands["index"])
    return _scatter_taps(window, gradient, operands["weight"], size), None


def _grad_before_pool(window: Window, g: Array, index: Array) -> Array:
    """The gradient between a convolution and the pool after it, whose windows do not overlap."""
    (tall, wide), (rows, columns) = window.pool, g.shape[1:3]
    pool = Window("max_pool2d_grad", (), stride=window.pool, pool=window.pool)
    return _scatter_to_maxima(pool, g, index, (rows * tall, columns * wide))


IMAGES: Mapping[str, Callable[[Window, Operands, Pair], PixelResult]] = {
    "conv2d": conv2d,
    "conv2d_grad_input": conv2d_grad_input,
    "pooled_grad_input": grad_input_through_pool,
    "max_pool2d": max_pool2d,
    "max_pool2d_index": max_pool2d,
    "max_pool2d_grad": max_pool2d_grad,
    "max_pool2d_pick": max_pool2d_pick,
}


# -- weights -----------------------------------------------------------------------------------------------------

Sizes = tuple[int, ...]


def conv2d_grad_weight(window: Window, operands: Operands, shape: Sizes) -> Array:
    return _correlate_taps(window, operands["x"], operands["g"], shape)


def _correlate_taps(window: Window, x: Array, g: Array, shape: Sizes) -> Array:
    """Correlate the pixels that every tap reads with the gradients of the results."""
    _, tall, wide, inner = shape
    count = g.shape[1], g.shape[2]
    frame, gradients = (
        pad_images(sums(x), count, (tall, wide), window),
        by_groups(sums(g), window.groups).swapaxes(1, 2),
    )
    out = np.zeros(shape, frame.dtype)
    for _, row, column in taps(tall, wide):
        pixels = by_groups(tap_view(frame, row, column, count, window), window.groups)
        out[:, row, column] = (gradients @ pixels).reshape(-1, inner)
    return out


def grad_weight_through_pool(window: Window, operands: Operands, shape: Sizes) -> Array:
    """The weight's gradient of each part of the batch."""
    parts, *weight = shape
    x, gradients = operands["x"], _grad_before_pool(window, operands["g"], operands["index"])
    cuts = [p * len(x) // parts for p in range(parts + 1)]
    return np.stack([_correlate_taps(window, x[lo:hi], gradients[lo:hi], tuple(weight)) for lo, hi in pairwise(cuts)])


WEIGHTS: Mapping[str, Callable[[Window, Operands, Sizes], Array]] = {
    "conv2d_grad_weight": conv2d_grad_weight,
    "pooled_grad_weight": grad_weight_through_pool,
}
