"""Type rules of ops with windows: convolution, max pooling, their adjoints, and adjoints through both at once."""

from __future__ import annotations

from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.require import need, need_float, need_same_dtype
from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType, Type, int32, shape_text, uint8
from wholestep.errors import DTypeError, OptionError

SMALL_WINDOW = 256  # positions in a window up to this size fit in a byte


def index_dtype(window: tuple[int, ...]) -> DType:
    """Of a position in a window."""
    return uint8 if window[0] * window[1] <= SMALL_WINDOW else int32


def window_count(size: int, window: int, stride: int, low: int, high: int, dilation: int = 1) -> int:
    """How many windows fit along one dimension."""
    return (size + low + high - dilation * (window - 1) - 1) // stride + 1


def parts(t: TensorType, last: bool) -> tuple[Extent, Extent, tuple[Extent, Extent]]:
    """Of images (or a weight): their number, channels, and (height, width)."""
    n, *rest = t.shape
    channels = rest.pop(-1 if last else 0)
    return n, channels, (rest[0], rest[1])


def image_shape(n: Extent, channels: Extent, size: tuple[Extent, ...], last: bool) -> Shape:
    return (n, *size, channels) if last else (n, channels, *size)


def order_text(last: bool) -> str:
    return "(N, H, W, C)" if last else "(N, C, H, W)"


def _images(op: str, what: str, t: TensorType, last: bool) -> tuple[Extent, int, tuple[int, int]]:
    """The parts of images whose channels, height and width are numbers."""
    need_float(op, t)
    need(t.rank == 4, f"{op} needs {what} of shape {order_text(last)}; received {shape_text(t.shape)}.")
    n, channels, (height, width) = parts(t, last)
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        need(
            False,
            f"{op}: channels, height and width must be numbers when the program is made; received "
            f"{shape_text(t.shape)}. Only the batch may be a symbol.",
        )
        raise AssertionError
    return n, channels, (height, width)


def _check_numbers(op: str, a: Any) -> None:
    for name in ("stride", "dilation", "window"):
        value = getattr(a, name, (1, 1))
        need(min(value) >= 1, f"{op}: the {name} must be at least 1; received {value}.", OptionError)
    need(min(*a.low, *a.high) >= 0, f"{op}: padding must not be negative; received {a.low}, {a.high}.", OptionError)


def _counts(op: str, a: Any, size: tuple[int, ...], window: tuple[int, ...]) -> tuple[int, int]:
    """(rows, columns) of windows; at least one each."""
    dilation = getattr(a, "dilation", (1, 1))
    found = [window_count(*of) for of in zip(size, window, a.stride, a.low, a.high, dilation, strict=True)]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
    need(
        min(found) >= 1,
        f"{op}: a window of {reach[0]} x {reach[1]} is larger than the image of {size[0]} x {size[1]} with its padding "
        f"{a.low}, {a.high}; use a smaller kernel or more padding.",
    )
    return found[0], found[1]


# -- convolution -------------------------------------------------------------------------------------------------


def _check_channels(op: str, groups: int, channels: int, out: int, inner: int, weight: TensorType) -> None:
    need(groups >= 1, f"{op}: groups must be at least 1; received {groups}.", OptionError)
    need(
        channels % groups == 0 and out % groups == 0,
        f"{op}: groups={groups} must divide the {channels} channels of the input and the {out} of the result.",
    )
    need(
        inner * groups == channels,
        f"{op}: the input has {channels} channels, but the weight {shape_text(weight.shape)} takes {inner * groups}"
        + (f" ({inner} in each of {groups} groups)" if groups > 1 else "")
        + f"; make it {shape_text((out, channels // groups))} + its height and width, or change the input.",
    )


def conv2d(a: at.ConvAttrs, x: TensorType, weight: TensorType) -> Type:
    n, channels, size = _images("conv2d", "an input", x, a.last)
    out, inner, kernel = _images("conv2d", "a weight like an input, outputs first,", weight, a.last)
    need_same_dtype("conv2d", x, weight)
    assert isinstance(out, int), "the number of outputs is a number"
    _check_numbers("conv2d", a)
    _check_channels("conv2d", a.groups, channels, out, inner, weight)
    return TensorType(image_shape(n, out, _counts("conv2d", a, size, kernel), a.last), x.dtype.accumulate)


def _need_result(op: str, a: at.ConvGradAttrs, x: TensorType, weight: TensorType, g: TensorType) -> None:
    """Is `g` the gradient of the convolution's result, in the dtype of the product's other operand?"""
    need_same_dtype(op, g, x, weight)
    result = conv2d(a.forward, x, weight)
    assert isinstance(result, TensorType)
    expected = TensorType(result.shape, g.dtype)
    need(expected == g, f"{op}: the gradient of {x} under a weight {weight} is {expected}; received {g}.")


def conv2d_grad_input(a: at.ConvGradAttrs, g: TensorType, weight: TensorType) -> Type:
    n, _, _ = _images("conv2d_grad_input", "a gradient", g, a.last)
    _, inner, _ = _images("conv2d_grad_input", "a weight", weight, a.last)
    x = TensorType(image_shape(n, inner * a.groups, a.size, a.last), g.dtype)
    _need_result("conv2d_grad_input", a, x, weight, g)
    return TensorType(x.shape, g.dtype.accumulate)


def conv2d_grad_weight(a: at.ConvGradAttrs, x: TensorType, g: TensorType) -> Type:
    _, channels, _ = _images("conv2d_grad_weight", "an input", x, a.last)
    _, out, _ = _images("conv2d_grad_weight", "a gradient", g, a.last)
    weight = TensorType(image_shape(out, channels // a.groups, a.size, a.last), g.dtype)
    _need_result("conv2d_grad_weight", a, x, weight, g)
    return TensorType(weight.shape, g.dtype.accumulate)


# -- max pooling -------------------------------------------------------------------------------------------------


def max_pool2d(a: at.PoolAttrs, x: TensorType) -> Type:
    n, channels, size = _images("max_pool2d", "an input", x, a.last)
    _check_numbers("max_pool2d", a)
    need(
        all(2 * max(lo, hi) <= k for lo, hi, k in zip(a.low, a.high, a.window, strict=True)),
        f"max_pool2d: padding {a.low}, {a.high} is more than half of the window {a.window}: some windows would see "
        "nothing of the image; use less.",
        OptionError,
    )
    return TensorType(image_shape(n, channels, _counts("max_pool2d", a, size, a.window), a.last), x.dtype)


def max_pool2d_index(a: at.PoolAttrs, x: TensorType) -> Type:
    """The position of the first maximum in each window, row by row."""
    pooled = max_pool2d(a, x)
    assert isinstance(pooled, TensorType)
    return TensorType(pooled.shape, index_dtype(a.window))


def _need_index(op: str, pooled: TensorType, index: TensorType, window: tuple[int, ...]) -> None:
    expected = TensorType(pooled.shape, index_dtype(window))
    need(index == expected, f"{op} needs the positions of the maxima, {expected}; received {index}.", DTypeError)


def max_pool2d_grad(a: at.PoolGradAttrs, g: TensorType, index: TensorType) -> Type:
    n, channels, _ = _images("max_pool2d_grad", "a gradient", g, a.last)
    _need_index("max_pool2d_grad", g, index, a.window)
    x = TensorType(image_shape(n, channels, a.size, a.last), g.dtype)
    pooled = max_pool2d(a.forward, x)
    need(pooled == g, f"max_pool2d_grad: the gradient of {x} is {pooled}; received {g}.")
    return x


def max_pool2d_pick(a: at.PoolAttrs, x: TensorType, index: TensorType) -> Type:
    """What stands at the given position of each window."""
    pooled = max_pool2d(a, x)
    assert isinstance(pooled, TensorType)
    _need_index("max_pool2d_pick", pooled, index, a.window)
    return pooled


# -- both at once ------------------------------------------------------------------------------------------------


def pool_grad_attrs(a: at.PooledConvAttrs) -> at.PoolGradAttrs:
    return at.PoolGradAttrs(a.window, a.window, (0, 0), (0, 0), True, a.middle)


def conv_grad_attrs(a: at.PooledConvAttrs) -> at.ConvGradAttrs:
    return at.ConvGradAttrs((1, 1), a.low, a.high, (1, 1), 1, True, a.size)


def grad_weight_through_pool(a: at.PooledConvAttrs, x: TensorType, g: TensorType, index: TensorType) -> Type:
    """conv2d_grad_weight(x, max_pool2d_grad(g, index)) of each part of the batch; the gradient is their sum."""
    middle = max_pool2d_grad(pool_grad_attrs(a), g, index)
    assert isinstance(middle, TensorType)
    weight = conv2d_grad_weight(conv_grad_attrs(a), x, middle)
    assert isinstance(weight, TensorType)
    need(a.parts >= 1, f"pooled_grad_weight: a batch has at least one part; received {a.parts}.", OptionError)
    return TensorType((a.parts, *weight.shape), weight.dtype)


def grad_input_through_pool(a: at.PooledConvAttrs, g: TensorType, index: TensorType, weight: TensorType) -> Type:
    """conv2d_grad_input(max_pool2d_grad(g, index), weight)."""
    middle = max_pool2d_grad(pool_grad_attrs(a), g, index)
    assert isinstance(middle, TensorType)
    return conv2d_grad_input(conv_grad_attrs(a), middle, weight)


# -- work --------------------------------------------------------------------------------------------------------


def window_products(node_op: str, inputs: tuple[TensorType, ...], result: TensorType, last: bool) -> Extent:
    """Multiply-adds of a convolution or its adjoints, the zeros of the padding included; comparisons of a pool."""
    if node_op.startswith("max_pool2d"):
        return result.elements
    weight, images = {
        "conv2d": (inputs[-1], result),
        "conv2d_grad_input": (inputs[-1], inputs[0]),
        "conv2d_grad_weight": (result, inputs[-1]),
        "pooled_grad_weight": (TensorType(result.shape[1:], result.dtype), inputs[1]),
        "pooled_grad_input": (inputs[-1], inputs[0]),
    }[node_op]
    outputs, _, _ = parts(weight, last)
    assert isinstance(outputs, int), "the number of outputs is a number"
    per_output: Extent = 1
    for extent in weight.shape[1:]:
        per_output = per_output * extent
    return images.elements * per_output
