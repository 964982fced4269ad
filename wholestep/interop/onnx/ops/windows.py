"""Products and convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import wholestep as ws
from wholestep.compiler.frontend.layers.convolution import per_channel
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.frontend.type_promotion import promote
from wholestep.compiler.ir import attrs as at
from wholestep.errors import ShapeError
from wholestep.interop.onnx.ops.shapes import cut
from wholestep.interop.onnx.read.sizes import need_room
from wholestep.interop.onnx.read.table import onnx_op

Ints = Sequence[int]


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


@dataclass(frozen=True)
class WindowSpec:
    """Of a convolution or a pool along its axes."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


def window_of(
    x: Tensor, size: Ints, strides: Ints | None, dilations: Ints | None, pads: Ints | None, auto_pad: str
) -> WindowSpec:
    """A window by ONNX's attributes; `auto_pad` says its margins from the size of x."""
    n = len(size)
    stride, spread = tuple(strides or [1] * n), tuple(dilations or [1] * n)
    around = list(pads or [0] * 2 * n)
    if auto_pad.startswith("SAME"):
        totals = [_same(*of) for of in zip(spatial(x), size, stride, spread, strict=True)]
        around = _halves(totals, auto_pad)
    elif auto_pad == "VALID":
        around = [0] * 2 * n
    need_room(size)
    need_room([e + max(low, 0) + max(high, 0) for e, low, high in zip(x.shape[2:], around[:n], around[n:])])
    return WindowSpec(tuple(size), stride, spread, tuple(around[:n]), tuple(around[n:]))


def _same(size: int, window: int, stride: int, dilation: int) -> int:
    return max((-(-size // stride) - 1) * stride + dilation * (window - 1) + 1 - size, 0)


def _halves(totals: Ints, auto_pad: str) -> list[int]:
    """Margins before and behind each axis; of an odd one the larger half is behind with SAME_UPPER, else before."""
    small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
    return [*small, *large] if auto_pad == "SAME_UPPER" else [*large, *small]


def spatial(x: Tensor) -> list[int]:
    """The sizes behind batch and channels, which are numbers."""
    for n in x.shape[2:]:
        if not isinstance(n, int):
            raise ShapeError(f"the sizes of images must be numbers; received {x.shape}. Give the dimension a number.")
    return [int(n) for n in x.shape[2:]]


def pad_spatial(x: Tensor, low: Ints, high: Ints, value: float = 0.0) -> Tensor:
    """x with margins around the axes behind the channels; negative ones are cut off."""
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
    if len(size) == 2:
        return with_bias(_conv2d(x, weight, w, group), bias)
    if w.low != w.high:
        x, w = (
            pad_spatial(x, w.low, w.high),
            WindowSpec(w.size, w.stride, w.dilation, (0,) * len(size), (0,) * len(size)),
        )
    if len(size) == 1:
        return ws.conv1d(x, weight, bias, w.stride[0], w.low[0], w.dilation[0], group)
    if len(size) == 3:
        return ws.conv3d(x, weight, bias, w.stride, w.low, w.dilation, group)
    raise ShapeError(f"Conv of {len(size)} axes; 1 to 3 are known.")


def _conv2d(x: Tensor, weight: Tensor, w: WindowSpec, groups: int) -> Tensor:
    if min((*w.low, *w.high)) < 0:
        x, w = pad_spatial(x, w.low, w.high), WindowSpec(w.size, w.stride, w.dilation, (0, 0), (0, 0))
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
    size, given = [int(k) for k in weight.shape[2:]], spatial(x)
    n = len(size)
    stride, spread = tuple(strides or [1] * n), tuple(dilations or [1] * n)
    more, around = list(output_padding or [0] * n), list(pads or [0] * 2 * n)
    full = [(g - 1) * s + d * (k - 1) + 1 for g, s, d, k in zip(given, stride, spread, size, strict=True)]
    wanted = [g * s for g, s in zip(given, stride)] if auto_pad.startswith("SAME") else None
    wanted = list(output_shape)[-n:] if output_shape is not None else wanted
    if wanted is not None:
        totals = [f + m - o for f, m, o in zip(full, more, wanted)]
        more = [m + max(-t, 0) for m, t in zip(more, totals)]
        around = _halves([max(t, 0) for t in totals], auto_pad)
    low, high = around[:n], around[n:]
    if n == 2 and min(around) >= 0 and all(m < s for m, s in zip(more, stride)):
        sizes = tuple(f - a - b + m for f, a, b, m in zip(full, low, high, more))
        attrs = at.ConvGradAttrs(stride, tuple(low), tuple(high), spread, group, False, sizes)
        nodes = promote("conv_transpose2d", [x.node, weight.node])
        made = Tensor(record("conv2d_grad_input", nodes, attrs), common_graph(x, weight))
        return with_bias(made, bias)
    whole = _whole_transposed(x, weight, stride, spread, group)
    cropped = pad_spatial(whole, [-a for a in low], [m - b for m, b in zip(more, high)])
    return with_bias(cropped, bias)


def _whole_transposed(x: Tensor, weight: Tensor, stride: Ints, spread: Ints, group: int) -> Tensor:
    if x.ndim == 3:
        return ws.conv_transpose1d(x, weight, None, stride[0], 0, 0, spread[0], group)
    if x.ndim == 4:
        return ws.conv_transpose2d(x, weight, None, stride, 0, 0, spread, group)
    if x.ndim == 5:
        return ws.conv_transpose3d(x, weight, None, stride, 0, 0, spread, group)
    raise ShapeError(f"ConvTranspose of {x.ndim - 2} axes; 1 to 3 are known.")


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
    whole = ws.concat([before, x], 2)
    out = ws.conv1d(whole, weight, bias, groups=channels)
    last = cut(whole, 2, int(whole.shape[2]) - (kernel - 1), int(whole.shape[2]))
    return (ws.silu(out) if activation in ("silu", "swish") else out), last
