"""Convolutions of signals (N, C, L), images (N, C, H, W) and volumes (N, C, D, H, W).

The weight is (O, C / groups, ...), as in torch.  A signal is an image with one row; of a volume the depth becomes
channels, so that each of them is one `conv2d` node.
"""

from __future__ import annotations

from wholestep.compiler.frontend.functions.primitives import matmul, stack
from wholestep.compiler.frontend.layers.segments import PackedSegments, current_segments
from wholestep.compiler.frontend.layers.window import (
    Padding,
    Sizes,
    SlidingWindow,
    image_as_signal,
    integers,
    margins,
    need_images,
    need_weight,
    signal_as_image,
    signal_padding,
    sliding_window,
)
from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError

__all__ = ["conv1d", "conv2d", "conv3d"]


def conv2d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """y[n, o, i, j] = Σ x[n, c, i·stride + u·dilation - padding, ...]·weight[o, c, u, v] + bias[o] over c, u, v.

    Args:
        x: images, (N, C, H, W).
        weight: (O, C / groups, KH, KW), as in torch.
        bias: (O,); 0 by default.
        stride, dilation: a number, or a pair (vertical, horizontal).
        padding: zeros around the image: a number, a pair, "valid" (none) or "same" (the result is as large as x, or has
            one pixel for each step of the stride).
        groups: output channels of group g depend on the input channels of group g only.

    Example: `ws.conv2d(images, w, b, padding=2)`.
    """
    op, kernel = "conv2d", as_tensor(weight)
    window = _window(op, x, kernel, 2, stride, padding, dilation)
    nodes = promote(op, [x.node, kernel.node])
    attrs = at.ConvAttrs(window.stride, window.low, window.high, window.dilation, groups, False)
    product = Tensor(record(op, [matmul_operand(nodes[0]), nodes[1]], attrs), common_graph(x, kernel))
    out = product.astype(nodes[0].type.dtype)
    return out if bias is None else out + per_channel(op, bias, out)


def _window(
    op: str, x: Tensor, kernel: Tensor, axes: int, stride: Sizes, padding: Padding, dilation: Sizes
) -> SlidingWindow:
    """The window of a convolution, after a check of its operands' ranks."""
    need_images(op, x, axes)
    need_weight(op, kernel, axes)
    return sliding_window(op, x, kernel_size(op, kernel), stride, padding, dilation)


def kernel_size(op: str, weight: Tensor) -> tuple[int, ...]:
    return integers(op, weight, weight.shape[2:], "the sizes of a kernel")


def per_channel(op: str, bias: Operand, out: Tensor) -> Tensor:
    """A bias over channels, reshaped to broadcast against (N, C, ...)."""
    b = as_tensor(bias)
    if b.shape != (out.shape[1],):
        fail(ShapeError, f"{op}: a bias needs {out.shape[1]} values, one per channel; received {shape_text(b.shape)}.")
    return b.reshape((out.shape[1], *[1] * (out.ndim - 2)))


def conv1d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """A convolution along one axis: x (N, C, L), weight (O, C / groups, K).  Same arguments as `conv2d`.

    With padding="causal", zeros before the signal only, element i depends on elements 0 to i.

    Example: `ws.conv1d(signal, w, padding="same")`.
    """
    kernel = as_tensor(weight)
    need_images("conv1d", x, 1)
    need_weight("conv1d", kernel, 1)
    segments = current_segments()
    if segments is not None:
        return _packed_conv1d(segments, x, kernel, bias, stride, padding, dilation, groups)
    if padding == "causal":
        before = dilation * (kernel_size("conv1d", kernel)[0] - 1)
        x, padding = pad(x, [(0, 0), (0, 0), (before, 0)]), 0
    rows, flat = signal_as_image(x), signal_as_image(kernel)
    return image_as_signal(
        conv2d(rows, flat, bias, (1, stride), signal_padding(padding), (1, dilation), groups),
    )


def _packed_conv1d(
    segments: PackedSegments,
    x: Tensor,
    weight: Tensor,
    bias: Operand | None,
    stride: int,
    padding: int | str,
    dilation: int,
    groups: int,
) -> Tensor:
    """A convolution along packed rows: one product with the taps of the kernel, which are 0 in other segments."""
    (size,) = kernel_size("conv1d", weight)
    total = dilation * (size - 1)
    low, high = (total, 0) if padding == "causal" else _signal_margins(x, size, stride, padding, dilation)
    taps = stack(segments.taps(x, size, low, high if stride == 1 else -1, dilation), 2)  # (N, C, K, L)
    outputs, inputs = integers("conv1d", weight, weight.shape[:2])
    by_group = taps.reshape((x.shape[0], groups, inputs * size, x.shape[2]))
    product = matmul(weight.reshape((1, groups, outputs // groups, inputs * size)), by_group)
    out = product.reshape((x.shape[0], outputs, x.shape[2]))
    return segments.register_convolution(out if bias is None else out + per_channel("conv1d", bias, out))


def _signal_margins(x: Tensor, size: int, stride: int, padding: int | str, dilation: int) -> tuple[int, int]:
    (low,), (high,) = margins("conv1d", padding, x.shape[2:], (size,), (stride,), (dilation,))
    return low, high


def conv3d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """`conv2d` along three axes: x (N, C, D, H, W), weight (O, C / groups, KD, KH, KW).

    The KD images that a result sees become channels of one image: one convolution of N·D images.

    Example: `ws.conv3d(video, w, padding=1)`.
    """
    op, kernel = "conv3d", as_tensor(weight)
    window = _window(op, x, kernel, 3, stride, padding, dilation)
    (depth,) = integers(op, x, x.shape[2:3])
    low, high, steps = window.low, window.high, window.stride
    if low[0] or high[0]:
        x = pad(x, [(0, 0), (0, 0), (low[0], high[0]), (0, 0), (0, 0)])
    count = (depth + low[0] + high[0] - window.extent[0]) // steps[0] + 1
    if count < 1:
        fail(ShapeError, f"{op}: a kernel of depth {window.size[0]} exceeds {shape_text(x.shape)}; add padding.")
    images = _depth_as_channels(x, window, count)  # (N·D', C·KD, H, W)
    flat = kernel.reshape((kernel.shape[0], -1, *window.size[1:]))
    if low[1:] != high[1:]:
        images = pad(images, [(0, 0), (0, 0), (low[1], high[1]), (low[2], high[2])])
    around = low[1:] if low[1:] == high[1:] else 0
    out = conv2d(images, flat, None, steps[1:], around, window.dilation[1:], groups)
    out = out.reshape((x.shape[0], count, *out.shape[1:])).permute(0, 2, 1, 3, 4)
    return out if bias is None else out + per_channel(op, bias, out)


def _depth_as_channels(x: Tensor, window: SlidingWindow, count: int) -> Tensor:
    """For each output position along the depth, the images of its window stacked as channels (im2col along depth)."""
    n, channels, _, height, width = x.shape
    size, stride, dilation = window.size[0], window.stride[0], window.dilation[0]
    last = (count - 1) * stride + 1
    taps = [x[:, :, k * dilation : k * dilation + last : stride] for k in range(size)]  # (N, C, D', H, W)
    if size == 1:
        return taps[0].permute(0, 2, 1, 3, 4).reshape((-1, channels, height, width))
    stacked = stack(taps, 2)  # (N, C, KD, D', H, W)
    return stacked.permute(0, 3, 1, 2, 4, 5).reshape((n * count, channels * size, height, width))
