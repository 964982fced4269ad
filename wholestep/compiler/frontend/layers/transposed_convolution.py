"""Transposed convolutions: the adjoints of convolutions.  The weight is (C, O / groups, ...), as in torch."""

from __future__ import annotations

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.layers.convolution import conv3d, kernel_size, per_channel
from wholestep.compiler.frontend.layers.window import (
    Padding,
    Sizes,
    SlidingWindow,
    image_as_signal,
    integers,
    margins,
    need_images,
    need_weight,
    per_axis,
    signal_as_image,
    signal_padding,
)
from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def conv_transpose2d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """The adjoint of `conv2d`: each pixel of x adds weight[c], scaled by it, to its window of the result.

    The result has (H - 1)·stride - 2·padding + dilation·(KH - 1) + output_padding + 1 rows.

    Args:
        x: images, (N, C, H, W).
        weight: (C, O / groups, KH, KW), as in torch.
        bias: (O,); 0 by default.
        padding: the crop of the result on each side: a number, a pair, "valid" (nothing) or "same" (the result has
            `stride` rows for every row of x).
        output_padding: rows and columns more, below and on the right; less than the stride or the dilation.

    Example: `ws.conv_transpose2d(images, w, stride=2)` doubles height and width.
    """
    op, kernel = "conv_transpose2d", as_tensor(weight)
    _check_operands(op, x, kernel, 2)
    strides, dilations, more = _steps(op, 2, stride, dilation, output_padding)
    kernel_sizes, image = kernel_size(op, kernel), integers(op, x, x.shape[2:])
    enlarged = [n * s for n, s in zip(image, strides, strict=True)]
    low, high = margins(op, padding, enlarged, kernel_sizes, strides, dilations)
    full = SlidingWindow(kernel_sizes, strides, dilations, low, high).span(image)
    size = tuple(f - a - b + m for f, a, b, m in zip(full, low, high, more, strict=True))
    if min(size) < 1:
        fail(OptionError, f"{op}: a padding of {low}, {high} leaves nothing of {full[0]} x {full[1]} pixels; use less.")
    # The op requires an output padding below the stride: larger ones reduce the padding, then append zeros.
    excess = [max(m - s + 1, 0) for m, s in zip(more, strides, strict=True)]
    zeros = [max(e - h, 0) for e, h in zip(excess, high, strict=True)]
    high = tuple(h - e + z for h, e, z in zip(high, excess, zeros, strict=True))
    size = tuple(n - z for n, z in zip(size, zeros, strict=True))
    nodes = promote(op, [x.node, kernel.node])
    attrs = at.ConvGradAttrs(strides, low, high, dilations, groups, False, size)
    product = Tensor(record("conv2d_grad_input", [matmul_operand(nodes[0]), nodes[1]], attrs), common_graph(x, kernel))
    out = product.astype(nodes[0].type.dtype)
    if any(zeros):
        out = pad(out, [(0, 0), (0, 0), *((0, z) for z in zeros)])
    return out if bias is None else out + per_channel(op, bias, out)


def _check_operands(op: str, x: Tensor, kernel: Tensor, axes: int) -> None:
    need_images(op, x, axes)
    need_weight(op, kernel, axes, "C, O")
    if x.shape[1] != kernel.shape[0]:
        fail(
            ShapeError,
            f"{op}: the input has {x.shape[1]} channels, but the weight {shape_text(kernel.shape)} takes "
            f"{kernel.shape[0]}; its first axis is that of the input.",
        )


def _steps(op: str, axes: int, stride: Sizes, dilation: Sizes, output_padding: Sizes) -> list[tuple[int, ...]]:
    """Stride, dilation and output padding by axis; output padding must be below stride or dilation, as in torch."""
    arguments = (("stride", stride), ("dilation", dilation), ("output_padding", output_padding))
    strides, dilations, more = (per_axis(op, name, value, axes) for name, value in arguments)
    if any(not 0 <= m < max(s, d) for m, s, d in zip(more, strides, dilations, strict=True)):
        fail(
            OptionError,
            f"{op}: output_padding must be below stride {strides} or dilation {dilations}; received {more}.",
        )
    return [strides, dilations, more]


def conv_transpose1d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: int = 1,
    padding: int | str = 0,
    output_padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Tensor:
    """`conv_transpose2d` along one axis: x (N, C, L), weight (C, O / groups, K).

    Example: `ws.conv_transpose1d(signal, w, stride=2)`.
    """
    kernel = as_tensor(weight)
    need_images("conv_transpose1d", x, 1)
    need_weight("conv_transpose1d", kernel, 1, "C, O")
    rows, flat = signal_as_image(x), signal_as_image(kernel)
    options = ((1, stride), signal_padding(padding), (0, output_padding), (1, dilation), groups)
    return image_as_signal(conv_transpose2d(rows, flat, bias, *options))


def conv_transpose3d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """The adjoint of `conv3d`: x (N, C, D, H, W), weight (C, O / groups, KD, KH, KW); see `conv_transpose2d`.

    Example: `ws.conv_transpose3d(volumes, w, stride=2)`.
    """
    op, kernel = "conv_transpose3d", as_tensor(weight)
    _check_operands(op, x, kernel, 3)
    strides, dilations, more = _steps(op, 3, stride, dilation, output_padding)
    around = per_axis(op, "padding", padding, 3)
    window = SlidingWindow(kernel_size(op, kernel), strides, dilations, around, around)
    full = window.span(integers(op, x, x.shape[2:]))
    size = [f - 2 * p + m for f, p, m in zip(full, around, more, strict=True)]
    (outputs,) = integers(op, kernel, kernel.shape[1:2])
    volume = as_tensor(0.0).astype(x.dtype).expand(x.shape[0], outputs * groups, *size)
    convolved = conv3d(volume, kernel, None, strides, around, dilations, groups)
    if any(m >= s for m, s in zip(more, strides, strict=True)):  # the convolution then has more positions than x
        convolved = convolved[:, :, : x.shape[2], : x.shape[3], : x.shape[4]]
    out = gradients((convolved * x).sum(), volume)[0]
    return out if bias is None else out + per_channel(op, bias, out)
