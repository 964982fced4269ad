"""Convolution and pooling of volumes (N, C, D, H, W), expressed by those of images: depth becomes channels."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.layers.convolution import conv2d, need_axes, need_output_padding, per_channel
from wholestep.compiler.frontend.layers.pooling import avg_pool2d, max_pool2d
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["avg_pool3d", "conv3d", "conv_transpose3d", "global_avg_pool3d", "max_pool3d"]

Triple = int | Sequence[int]


def triple(op: str, name: str, value: Triple) -> tuple[int, int, int]:
    """A number or three as (depth, vertical, horizontal)."""
    three = (value,) * 3 if isinstance(value, int) else tuple(value)
    if len(three) != 3 or not all(isinstance(v, int) for v in three):
        fail(OptionError, f"{op}: {name} is a number or three of them (depth, vertical, horizontal); {value!r}.")
    return three[0], three[1], three[2]


def conv3d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Triple = 1,
    padding: Triple | str = 0,
    dilation: Triple = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d` along three axes: x (N, C, D, H, W), weight (O, C / groups, KD, KH, KW).

    The KD images that a result sees become channels of one image: one convolution of N·D images.

    Example: `ws.conv3d(video, w, padding=1)`.
    """
    op, kernel = "conv3d", as_tensor(weight)
    need_axes(op, "volumes", x, "(N, C, D, H, W)")
    need_axes(op, "a weight", kernel, "(O, C / groups, KD, KH, KW)")
    steps, spread = triple(op, "stride", stride), triple(op, "dilation", dilation)
    sizes = [_number(op, t, e) for t, e in ((x, x.shape[2]), *((kernel, e) for e in kernel.shape[2:]))]
    depth, window = sizes[0], sizes[1:]
    low, high = _margins(op, padding, window, steps, spread)
    if low[0] or high[0]:
        x = pad(x, [(0, 0), (0, 0), (low[0], high[0]), (0, 0), (0, 0)])
    count = (depth + low[0] + high[0] - spread[0] * (window[0] - 1) - 1) // steps[0] + 1
    if count < 1:
        fail(ShapeError, f"{op}: a kernel of depth {window[0]} does not fit into {shape_text(x.shape)}; add padding.")
    images = _layers(x, window[0], count, steps[0], spread[0])  # (N·D', C·KD, H, W)
    flat = kernel.reshape((kernel.shape[0], -1, *window[1:]))
    if low[1:] != high[1:]:
        images = pad(images, [(0, 0), (0, 0), (low[1], high[1]), (low[2], high[2])])
    around = low[1:] if low[1:] == high[1:] else 0
    out = conv2d(images, flat, None, steps[1:], around, spread[1:], groups)
    out = out.reshape((x.shape[0], count, *out.shape[1:])).permute(0, 2, 1, 3, 4)
    return out if bias is None else out + per_channel(op, bias, out)


def _layers(x: Tensor, window: int, count: int, stride: int, dilation: int) -> Tensor:
    """For each output position along the depth, its `window` images stacked as channels (im2col along the depth)."""
    n, channels, _, height, width = x.shape
    last = (count - 1) * stride + 1
    taps = [x[:, :, k * dilation : k * dilation + last : stride] for k in range(window)]  # (N, C, D', H, W)
    stacked = taps[0] if window == 1 else stack(taps, 2)  # (N, C, KD, D', H, W)
    if window == 1:
        return stacked.permute(0, 2, 1, 3, 4).reshape((-1, channels, height, width))
    return stacked.permute(0, 3, 1, 2, 4, 5).reshape((n * count, channels * window, height, width))


def _margins(
    op: str, padding: Triple | str, window: Sequence[int], stride: Sequence[int], dilation: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if not isinstance(padding, str):
        around = triple(op, "padding", padding)
        return around, around
    if padding == "valid":
        return (0, 0, 0), (0, 0, 0)
    if padding != "same" or max(stride) > 1:
        fail(OptionError, f'{op}: padding is a number, three, "valid", or "same" where the stride is 1; {padding!r}.')
    total = [d * (k - 1) for d, k in zip(dilation, window, strict=True)]
    return tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)


def _number(op: str, t: Tensor, extent: object) -> int:
    if not isinstance(extent, int):
        fail(ShapeError, f"{op}: all sizes but the batch must be integers; received {shape_text(t.shape)}.")
    return extent


def conv_transpose3d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Triple = 1,
    padding: Triple = 0,
    output_padding: Triple = 0,
    dilation: Triple = 1,
    groups: int = 1,
) -> Tensor:
    """The adjoint of `conv3d`: x (N, C, D, H, W), weight (C, O / groups, KD, KH, KW); see `conv_transpose2d`.

    Example: `ws.conv_transpose3d(volumes, w, stride=2)`.
    """
    op, kernel = "conv_transpose3d", as_tensor(weight)
    need_axes(op, "volumes", x, "(N, C, D, H, W)")
    need_axes(op, "a weight", kernel, "(C, O / groups, KD, KH, KW)")
    if x.shape[1] != kernel.shape[0]:
        fail(
            ShapeError,
            f"{op}: the input has {x.shape[1]} channels, but the weight {shape_text(kernel.shape)} takes "
            f"{kernel.shape[0]}; its first axis is that of the input.",
        )
    steps, spread = triple(op, "stride", stride), triple(op, "dilation", dilation)
    around, more = triple(op, "padding", padding), triple(op, "output_padding", output_padding)
    need_output_padding(op, more, steps, spread)
    size = [
        (_number(op, x, n) - 1) * s - 2 * p + d * (_number(op, kernel, k) - 1) + m + 1
        for n, s, p, d, k, m in zip(x.shape[2:], steps, around, spread, kernel.shape[2:], more, strict=True)
    ]
    outputs = _number(op, kernel, kernel.shape[1]) * groups
    image = as_tensor(0.0).astype(x.dtype).expand(x.shape[0], outputs, *size)
    made = conv3d(image, kernel, None, steps, around, spread, groups)
    if any(m >= s for m, s in zip(more, steps, strict=True)):  # the convolution then has more positions than x
        made = made[:, :, : x.shape[2], : x.shape[3], : x.shape[4]]
    out = gradients((made * x).sum(), image)[0]
    return out if bias is None else out + per_channel(op, bias, out)


def max_pool3d(
    x: Tensor, window: Triple, stride: Triple | None = None, padding: Triple = 0, ceil_mode: bool = False
) -> Tensor:
    """`max_pool2d` along three axes: height and width, then depth.  Example: `ws.max_pool3d(video, 2)`."""
    return _pool_volume("max_pool3d", x, window, stride, padding, ceil_mode)


def avg_pool3d(
    x: Tensor,
    window: Triple,
    stride: Triple | None = None,
    padding: Triple = 0,
    ceil_mode: bool = False,
    count_padding: bool = True,
) -> Tensor:
    """`avg_pool2d` along three axes: height and width, then depth.  Example: `ws.avg_pool3d(video, 2)`."""
    return _pool_volume("avg_pool3d", x, window, stride, padding, ceil_mode, count_padding)


def _pool_volume(op: str, x: Tensor, window: Triple, stride: Triple | None, padding: Triple, *options: bool) -> Tensor:
    """Pools height and width with depth as channels, then depth with all pixels as the columns of one image."""
    need_axes(op, "volumes", x, "(N, C, D, H, W)")
    size = triple(op, "window", window)
    steps = size if stride is None else triple(op, "stride", stride)
    around = triple(op, "padding", padding)
    n, channels, depth, height, width = x.shape
    pool = max_pool2d if op.startswith("max") else avg_pool2d
    flat = pool(x.reshape((n, channels * depth, height, width)), size[1:], steps[1:], around[1:], *options)
    pixels = flat.shape[2:]
    deep = flat.reshape((n, channels, depth, pixels[0] * pixels[1]))
    out = pool(deep, (size[0], 1), (steps[0], 1), (around[0], 0), *options)
    return out.reshape((n, channels, out.shape[2], *pixels))


def global_avg_pool3d(x: Tensor) -> Tensor:
    """The mean of each channel: (N, C, D, H, W) -> (N, C).  Example: `ws.global_avg_pool3d(video)`."""
    need_axes("global_avg_pool3d", "volumes", x, "(N, C, D, H, W)")
    return x.mean((2, 3, 4))
