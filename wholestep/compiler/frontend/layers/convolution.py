"""Convolutions of images and signals, and their adjoints.  Images are (N, C, H, W), weights (O, C / groups, KH, KW)."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.precision import matmul_operand
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError

__all__ = ["conv1d", "conv2d", "conv_transpose1d", "conv_transpose2d"]

Pair = int | Sequence[int]
Padding = int | str | Sequence[int]


def pair(op: str, name: str, value: Pair) -> tuple[int, int]:
    """A number or a pair as (vertical, horizontal)."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(v, int) for v in both):
        fail(
            OptionError,
            f"{op}: {name} must be an integer or a pair (vertical, horizontal) of integers; received {value!r}.",
        )
    return both[0], both[1]


Margins = tuple[tuple[int, int], tuple[int, int]]


def padding_pairs(
    op: str,
    padding: Padding,
    size: Sequence[object],
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> Margins:
    """Padding ((top, left), (bottom, right)).  "same": one output per `stride` pixels; an odd row is added at the
    bottom and an odd column at the right, as in Keras; for stride 1 this equals torch's "same"."""
    if not isinstance(padding, str):
        around = pair(op, "padding", padding)
        return around, around
    if padding == "valid":
        return (0, 0), (0, 0)
    if padding != "same":
        fail(OptionError, f'{op}: padding is a number, a pair, "same" or "valid"; received {padding!r}.')
    total = [_same(op, *arguments) for arguments in zip(size, kernel, stride, dilation, strict=True)]
    return (total[0] // 2, total[1] // 2), (total[0] - total[0] // 2, total[1] - total[1] // 2)


def _same(op: str, size: object, kernel: int, stride: int, dilation: int) -> int:
    """The total padding of one axis for "same"."""
    extent = dilation * (kernel - 1)
    if stride == 1:
        return extent
    if not isinstance(size, int):
        fail(
            ShapeError,
            f'{op}: padding="same" with a stride of {stride} needs an image of fixed size; received {size}.',
        )
    return max((-(-size // stride) - 1) * stride + extent + 1 - size, 0)


def need_axes(op: str, what: str, x: Tensor, text: str) -> None:
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
        bias: (O,); 0 by default.
        stride, dilation: a number, or a pair (vertical, horizontal).
        padding: zeros around the image: a number, a pair, "valid" (none) or "same" (the result is as large as x, or has
            one pixel for each step of the stride).
        groups: output channels of group g depend on the input channels of group g only.

    Example: `ws.conv2d(images, w, b, padding=2)`.
    """
    kernel = as_tensor(weight)
    need_axes("conv2d", "images", x, "(N, C, H, W)")
    need_axes("conv2d", "a weight", kernel, "(O, C / groups, KH, KW)")
    steps, spread = pair("conv2d", "stride", stride), pair("conv2d", "dilation", dilation)
    low, high = padding_pairs("conv2d", padding, x.shape[2:], _kernel_size("conv2d", kernel), steps, spread)
    nodes = promote("conv2d", [x.node, kernel.node])
    attrs = at.ConvAttrs(steps, low, high, spread, groups, False)
    product = Tensor(record("conv2d", [matmul_operand(nodes[0]), nodes[1]], attrs), common_graph(x, kernel))
    out = product.astype(nodes[0].type.dtype)
    return out if bias is None else out + per_channel("conv2d", bias, out)


def per_channel(op: str, bias: Operand, out: Tensor) -> Tensor:
    """A bias over channels, reshaped to broadcast against (N, C, ...)."""
    b = as_tensor(bias)
    if b.shape != (out.shape[1],):
        fail(
            ShapeError,
            f"{op}: a bias needs one value for each of the {out.shape[1]} output channels; received "
            f"{shape_text(b.shape)}.",
        )
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
    """A convolution along one axis: x (N, C, L), weight (O, C / groups, K).  The arguments are those of `conv2d`.

    Example: `ws.conv1d(signal, w, padding="same")`.
    """
    kernel = as_tensor(weight)
    need_axes("conv1d", "signals", x, "(N, C, L)")
    need_axes("conv1d", "a weight", kernel, "(O, C / groups, K)")
    rows = x.reshape((*x.shape[:2], 1, x.shape[2]))
    flat = kernel.reshape((*kernel.shape[:2], 1, kernel.shape[2]))
    around = padding if isinstance(padding, str) else (0, padding)
    out = conv2d(rows, flat, bias, (1, stride), around, (1, dilation), groups)
    return out.reshape((*out.shape[:2], out.shape[3]))


def conv_transpose2d(
    x: Tensor,
    weight: Operand,
    bias: Operand | None = None,
    stride: Pair = 1,
    padding: Padding = 0,
    output_padding: Pair = 0,
    dilation: Pair = 1,
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
    need_axes(op, "images", x, "(N, C, H, W)")
    need_axes(op, "a weight", kernel, "(C, O / groups, KH, KW)")
    if x.shape[1] != kernel.shape[0]:
        fail(
            ShapeError,
            f"{op}: the input has {x.shape[1]} channels, but the weight {shape_text(kernel.shape)} takes "
            f"{kernel.shape[0]}; its first axis is that of the input.",
        )
    steps, spread, more = (
        pair(op, name, value)
        for name, value in (("stride", stride), ("dilation", dilation), ("output_padding", output_padding))
    )
    need_output_padding(op, more, steps, spread)
    window = _kernel_size(op, kernel)
    image_size = [_number(op, x, n) for n in x.shape[2:]]
    low, high = padding_pairs(
        op, padding, [n * s for n, s in zip(image_size, steps, strict=True)], window, steps, spread
    )
    full = [(n - 1) * s + d * (k - 1) + 1 for n, s, d, k in zip(image_size, steps, spread, window, strict=True)]
    size = tuple(f - a - b + m for f, a, b, m in zip(full, low, high, more, strict=True))
    if min(size) < 1:
        fail(OptionError, f"{op}: a padding of {low}, {high} leaves nothing of {full[0]} x {full[1]} pixels; use less.")
    # The op takes an output padding below the stride: what exceeds it undoes the padding, and is zeros after that.
    beyond = [max(m - s + 1, 0) for m, s in zip(more, steps, strict=True)]
    zeros = [max(b - h, 0) for b, h in zip(beyond, high, strict=True)]
    high = (high[0] - beyond[0] + zeros[0], high[1] - beyond[1] + zeros[1])
    size = tuple(n - z for n, z in zip(size, zeros, strict=True))
    nodes = promote(op, [x.node, kernel.node])
    attrs = at.ConvGradAttrs(steps, low, high, spread, groups, False, size)
    made = Tensor(record("conv2d_grad_input", [matmul_operand(nodes[0]), nodes[1]], attrs), common_graph(x, kernel))
    out = made.astype(nodes[0].type.dtype)
    if any(zeros):
        from wholestep.compiler.frontend.shape.padding import pad  # few have a dilation that asks for it

        out = pad(out, [(0, 0), (0, 0), *((0, z) for z in zeros)])
    return out if bias is None else out + per_channel(op, bias, out)


def need_output_padding(op: str, more: Sequence[int], steps: Sequence[int], spread: Sequence[int]) -> None:
    """OptionError unless an output padding is smaller than the stride or the dilation, as in torch."""
    if any(not 0 <= m < max(s, d) for m, s, d in zip(more, steps, spread, strict=True)):
        fail(
            OptionError,
            f"{op}: output_padding is less than the stride {tuple(steps)} or the dilation {tuple(spread)}; received "
            f"{tuple(more)}.",
        )


def _number(op: str, x: Tensor, extent: object) -> int:
    if not isinstance(extent, int):
        fail(ShapeError, f"{op}: height and width must be integers; received {shape_text(x.shape)}.")
    return extent


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
    need_axes("conv_transpose1d", "signals", x, "(N, C, L)")
    need_axes("conv_transpose1d", "a weight", kernel, "(C, O / groups, K)")
    rows = x.reshape((*x.shape[:2], 1, x.shape[2]))
    flat = kernel.reshape((*kernel.shape[:2], 1, kernel.shape[2]))
    around = padding if isinstance(padding, str) else (0, padding)
    out = conv_transpose2d(rows, flat, bias, (1, stride), around, (0, output_padding), (1, dilation), groups)
    return out.reshape((*out.shape[:2], out.shape[3]))
