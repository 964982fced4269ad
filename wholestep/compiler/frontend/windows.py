"""Functions with windows: convolution and pooling.  Images are (N, C, H, W), weights (O, C / groups, KH, KW)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.precision import operand, pinning
from wholestep.compiler.frontend.promote import promote
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["avg_pool2d", "conv1d", "conv2d", "global_avg_pool2d", "max_pool2d"]

Pair = int | Sequence[int]
Padding = int | str | Sequence[int]


def _pair(op: str, name: str, value: Pair) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2 or not all(isinstance(v, int) for v in pair):
        fail(OptionError, f"{op}: {name} is a number or a pair (vertical, horizontal) of numbers; received {value!r}.")
    return pair[0], pair[1]


def _margins(
    op: str, padding: Padding, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """((top, left), (bottom, right)); "same" keeps the size, the odd row below and the odd column behind."""
    if not isinstance(padding, str):
        around = _pair(op, "padding", padding)
        return around, around
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding != "same":
        fail(OptionError, f'{op}: padding is a number, a pair, "same" or "valid"; received {padding!r}.')
    if max(stride) != 1:
        fail(
            OptionError,
            f'{op}: padding="same" keeps the size of the image, which a stride of {tuple(stride)} does not; give '
            "numbers.",
        )
    total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    return (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)


def _images(op: str, what: str, x: Tensor, text: str) -> None:
    rank = text.count(",") + 1
    if x.ndim != rank:
        fail(ShapeError, f"{op} needs {what} of shape {text}; received {shape_text(x.shape)}.")


def _kernel_size(op: str, weight: Tensor) -> tuple[int, int]:
    height, width = weight.shape[2:]
    if not isinstance(height, int) or not isinstance(width, int):
        fail(ShapeError, f"{op}: the height and width of a kernel are numbers; received {shape_text(weight.shape)}.")
    return height, width


def conv2d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Pair = 1,
    padding: Padding = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """y[n, o, i, j] = Σ x[n, c, i·stride + u·dilation - padding, ...]·weight[o, c, u, v] + bias[o] over c, u, v.

    Args:
        x: images, (N, C, H, W).
        weight: (O, C / groups, KH, KW), as in torch.
        bias: (O,); left out, it is 0.
        stride, dilation: a number, or a pair (vertical, horizontal).
        padding: zeros around the image: a number, a pair, "valid" (none) or "same" (the result is as large as x).
        groups: output channels of group g see the input channels of group g alone.

    Example: `ws.conv2d(images, w, b, padding=2)`.
    """
    kernel = as_tensor(weight)
    _images("conv2d", "images", x, "(N, C, H, W)")
    _images("conv2d", "a weight", kernel, "(O, C / groups, KH, KW)")
    steps, spread = _pair("conv2d", "stride", stride), _pair("conv2d", "dilation", dilation)
    low, high = _margins("conv2d", padding, _kernel_size("conv2d", kernel), steps, spread)
    nodes = promote("conv2d", [x.node, kernel.node])
    attrs = at.ConvAttrs(steps, low, high, spread, groups, False)
    made = Tensor(record("conv2d", [operand(nodes[0]), nodes[1]], attrs), common_graph(x, kernel))
    out = made.astype(nodes[0].type.dtype)
    return out if bias is None else out + _per_channel("conv2d", bias, out)


def _per_channel(op: str, bias: Operand, out: Tensor) -> Tensor:
    b = as_tensor(bias)
    if b.shape != (out.shape[1],):
        fail(
            ShapeError,
            f"{op}: a bias has one number for each of the {out.shape[1]} output channels; received "
            f"{shape_text(b.shape)}.",
        )
    return b.reshape((out.shape[1], 1, 1))


def conv1d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution along one axis: x (N, C, L), weight (O, C / groups, K).  The arguments are those of `conv2d`.

    Example: `ws.conv1d(signal, w, padding="same")`.
    """
    kernel = as_tensor(weight)
    _images("conv1d", "signals", x, "(N, C, L)")
    _images("conv1d", "a weight", kernel, "(O, C / groups, K)")
    rows = x.reshape((*x.shape[:2], 1, x.shape[2]))
    flat = kernel.reshape((*kernel.shape[:2], 1, kernel.shape[2]))
    around = padding if isinstance(padding, str) else (0, padding)
    out = conv2d(rows, flat, bias, (1, stride), around, (1, dilation), groups)
    return out.reshape((*out.shape[:2], out.shape[3]))


def max_pool2d(x: Tensor, window: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    """The largest element of each window of (N, C, H, W); its gradient goes to the first of equal ones.

    Args:
        window: a number, or a pair (vertical, horizontal).
        stride: the window's own size unless given.
        padding: what lies outside the image is never the maximum; at most half of the window.

    Example: `ws.max_pool2d(images, 2)`.
    """
    _images("max_pool2d", "images", x, "(N, C, H, W)")
    size = _pair("max_pool2d", "window", window)
    steps = size if stride is None else _pair("max_pool2d", "stride", stride)
    around = _pair("max_pool2d", "padding", padding)
    attrs = at.PoolAttrs(size, steps, around, around, False)
    return Tensor(record("max_pool2d", [x.node], attrs), x.graph)


def avg_pool2d(x: Tensor, window: Pair, stride: Pair | None = None, padding: Pair = 0) -> Tensor:
    """The mean of each window of (N, C, H, W), zeros of the padding included: a convolution of each channel.

    Args:
        window: a number, or a pair (vertical, horizontal).
        stride: the window's own size unless given.

    Example: `ws.avg_pool2d(images, 2)`.
    """
    _images("avg_pool2d", "images", x, "(N, C, H, W)")
    channels = x.shape[1]
    if not isinstance(channels, int):
        fail(ShapeError, f"avg_pool2d: the number of channels must be known; received {shape_text(x.shape)}.")
    size = _pair("avg_pool2d", "window", window)
    if min(size) < 1:
        fail(OptionError, f"avg_pool2d: the window must be at least 1; received {window!r}.")
    share = np.full((channels, 1, *size), 1.0 / (size[0] * size[1]), x.dtype.numpy)
    with pinning():  # a mean, not a product with weights
        return conv2d(x, share, stride=size if stride is None else stride, padding=padding, groups=channels)


def global_avg_pool2d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, H, W) -> (N, C).

    Example: `ws.global_avg_pool2d(images)`.
    """
    _images("global_avg_pool2d", "images", x, "(N, C, H, W)")
    return x.mean((2, 3))
