"""Matrix products and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import wholestep as ws
from wholestep.compiler.frontend.layers.convolution import per_channel
from wholestep.compiler.frontend.layers.window import SlidingWindow, same_padding
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.errors import ShapeError
from wholestep.interop.onnx.ops.shapes import cut
from wholestep.interop.onnx.read.sizes import need_room
from wholestep.interop.onnx.read.table import onnx_op

Ints = Sequence[int]

# Functions by the number of spatial axes; 1-d functions take integers, the others sequences.
_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: ws.conv1d, 2: ws.conv2d, 3: ws.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: ws.conv_transpose1d, 2: ws.conv_transpose2d, 3: ws.conv_transpose3d,
}  # fmt: skip


@onnx_op("MatMul")
def matmul(a: Tensor, b: Tensor) -> Tensor:
    return product_of(a, b)


def product_of(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_float:
        return ws.matmul(a, b)
    return ws.round(ws.matmul(a.astype("float64"), b.astype("float64"))).astype(a.dtype)


@onnx_op("Gemm")
def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    out = product_of(a.T if transA else a, b.T if transB else b)
    out = out if alpha == 1 else out * alpha
    return out if c is None else out + (c if beta == 1 else c * beta)


@onnx_op("Einsum")
def einsum(*operands: Tensor, equation: str) -> Tensor:
    return ws.einsum(equation.replace(" ", ""), *operands)


def window_of(
    x: Tensor, size: Ints, strides: Ints | None, dilations: Ints | None, pads: Ints | None, auto_pad: str
) -> SlidingWindow:
    """The window for ONNX's attributes; `auto_pad` derives the padding from the size of x."""
    n = len(size)
    stride, dilation = tuple(strides or [1] * n), tuple(dilations or [1] * n)
    low, high = split_pads(pads, n)
    if auto_pad.startswith("SAME"):
        totals = [same_padding("auto_pad", *axis) for axis in zip(spatial(x), size, stride, dilation, strict=True)]
        low, high = _halves(totals, auto_pad)
    elif auto_pad == "VALID":
        low, high = split_pads(None, n)
    need_room(size)
    need_room([e + max(a, 0) + max(b, 0) for e, a, b in zip(x.shape[2:], low, high)])
    return SlidingWindow(tuple(size), stride, dilation, low, high)


def split_pads(pads: Ints | None, axes: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split ONNX's padding list into the amounts before and after each axis; zeros if it is missing."""
    around = list(pads or [0] * 2 * axes)
    return tuple(around[:axes]), tuple(around[axes:])


def _halves(totals: Ints, auto_pad: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Divide the total padding of each axis; an odd element goes after with SAME_UPPER, else before."""
    small, large = tuple(t // 2 for t in totals), tuple(t - t // 2 for t in totals)
    return (small, large) if auto_pad == "SAME_UPPER" else (large, small)


def spatial(x: Tensor) -> list[int]:
    """The spatial sizes of x, which must be integers."""
    for n in x.shape[2:]:
        if not isinstance(n, int):
            raise ShapeError(f"the sizes of images must be numbers; received {x.shape}. Give the dimension a number.")
    return [int(n) for n in x.shape[2:]]


def pad_spatial(x: Tensor, low: Ints, high: Ints, value: float = 0.0) -> Tensor:
    """x padded along the spatial axes; negative padding crops."""
    for d, (a, b) in enumerate(zip(low, high), start=2):
        if min(a, b) < 0:
            n = x.shape[d]
            x = cut(x, d, max(0, -a), n - max(0, -b))
    pairs = [(0, 0), (0, 0), *((max(a, 0), max(b, 0)) for a, b in zip(low, high))]
    return ws.pad(x, pairs, value) if any(map(any, pairs)) else x


@onnx_op("Conv")
def conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    size = [int(k) for k in weight.shape[2:]]
    w = window_of(x, size, strides, dilations, pads, auto_pad)
    if len(size) not in _CONVOLUTIONS:
        raise ShapeError(f"Conv of {len(size)} axes; supported: 1 to 3.")
    if len(size) == 2:
        return with_bias(_conv2d(x, weight, w, group), bias)
    if w.low != w.high:
        x, w = pad_spatial(x, w.low, w.high), _without_padding(w)
    around = (w.stride, w.low, w.dilation)
    return _CONVOLUTIONS[len(size)](x, weight, bias, *(a[0] if len(size) == 1 else a for a in around), group)


def _without_padding(w: SlidingWindow) -> SlidingWindow:
    zeros = (0,) * len(w.size)
    return SlidingWindow(w.size, w.stride, w.dilation, zeros, zeros)


def _conv2d(x: Tensor, weight: Tensor, w: SlidingWindow, groups: int) -> Tensor:
    if min((*w.low, *w.high)) < 0:
        x, w = pad_spatial(x, w.low, w.high), _without_padding(w)
    if w.low == w.high:
        return ws.conv2d(x, weight, None, w.stride, w.low, w.dilation, groups)
    nodes = promote("conv2d", [x.node, weight.node])
    attrs = at.ConvAttrs(w.stride, w.low, w.high, w.dilation, groups, False)
    return Tensor(record("conv2d", nodes, attrs), common_graph(x, weight))


def with_bias(out: Tensor, bias: Tensor | None) -> Tensor:
    return out if bias is None else out + per_channel("Conv", bias, out)


@onnx_op("ConvTranspose")
def conv_transpose(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    size, image = tuple(int(k) for k in weight.shape[2:]), spatial(x)
    n = len(size)
    if n not in _TRANSPOSED:
        raise ShapeError(f"ConvTranspose of {n} axes; supported: 1 to 3.")
    stride, dilation, more = tuple(strides or [1] * n), tuple(dilations or [1] * n), list(output_padding or [0] * n)
    low, high = split_pads(pads, n)
    full = SlidingWindow(size, stride, dilation, low, high).span(image)
    out_size = [e * s for e, s in zip(image, stride)] if auto_pad.startswith("SAME") else None
    out_size = list(output_shape)[-n:] if output_shape is not None else out_size
    if out_size is not None:
        totals = [f + m - o for f, m, o in zip(full, more, out_size)]
        more = [m + max(-t, 0) for m, t in zip(more, totals)]
        low, high = _halves([max(t, 0) for t in totals], auto_pad)
    if n == 2 and min((*low, *high)) >= 0 and all(m < s for m, s in zip(more, stride)):
        sizes = tuple(f - a - b + m for f, a, b, m in zip(full, low, high, more))
        attrs = at.ConvGradAttrs(stride, low, high, dilation, group, False, sizes)
        nodes = promote("conv_transpose2d", [x.node, weight.node])
        image_gradient = Tensor(record("conv2d_grad_input", nodes, attrs), common_graph(x, weight))
        return with_bias(image_gradient, bias)
    steps, spread = (stride[0], dilation[0]) if n == 1 else (stride, dilation)
    uncropped = _TRANSPOSED[n](x, weight, None, steps, 0, 0, spread, group)
    cropped = pad_spatial(uncropped, [-a for a in low], [m - b for m, b in zip(more, high)])
    return with_bias(cropped, bias)


@onnx_op("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    state: Tensor | None = None,
    *,
    activation: str = "none",
    ndim: int = 1,
) -> tuple[Tensor, Tensor]:
    channels, kernel = int(x.shape[1]), int(weight.shape[2])
    before = ws.zeros((x.shape[0], channels, kernel - 1), dtype=x.dtype) if state is None else state
    signal = ws.concat([before, x], 2)
    out = ws.conv1d(signal, weight, bias, groups=channels)
    last = cut(signal, 2, int(signal.shape[2]) - (kernel - 1), int(signal.shape[2]))
    return (ws.silu(out) if activation in ("silu", "swish") else out), last
