"""Type rules of convolution, max pooling, their adjoints, and the fused adjoints of a convolution with a pool."""

from __future__ import annotations

from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.type_rules.require import need, need_float, need_same_dtype
from wholestep.compiler.ir.types import Dim, DType, Extent, Shape, TensorType, Type, int32, shape_text, uint8
from wholestep.errors import DTypeError, OptionError

SMALL_WINDOW = 256  # elements; positions in a window of up to this size fit in a uint8


def index_dtype(window: tuple[int, ...]) -> DType:
    """The dtype that stores a position in a window."""
    return uint8 if window[0] * window[1] <= SMALL_WINDOW else int32


def window_count(size: int, window: int, stride: int, low: int, high: int, dilation: int = 1) -> int:
    """The number of output positions along one dimension."""
    return (size + low + high - dilation * (window - 1) - 1) // stride + 1


def image_dims(t: TensorType, last: bool) -> tuple[Extent, Extent, tuple[Extent, Extent]]:
    """The extents (N, C, (H, W)) of images or of a weight, in either memory layout."""
    n, *rest = t.shape
    channels = rest.pop(-1 if last else 0)
    return n, channels, (rest[0], rest[1])


def image_shape(n: Extent, channels: Extent, size: tuple[Extent, ...], last: bool) -> Shape:
    return (n, *size, channels) if last else (n, channels, *size)


def order_text(last: bool) -> str:
    return "(N, H, W, C)" if last else "(N, C, H, W)"


def _check_images(op: str, what: str, t: TensorType, last: bool) -> tuple[Extent, int, tuple[int, int]]:
    """The extents (N, C, (H, W)) of images, after a check that C, H and W are integers."""
    need_float(op, t)
    need(t.rank == 4, f"{op} needs {what} of shape {order_text(last)}; received {shape_text(t.shape)}.")
    n, channels, (height, width) = image_dims(t, last)
    if not (isinstance(channels, int) and isinstance(height, int) and isinstance(width, int)):
        need(
            False,
            f"{op}: channels, height and width must be integers known at compile time; received "
            f"{shape_text(t.shape)}. Only the batch may be symbolic.",
        )
        raise AssertionError
    return n, channels, (height, width)


def _check_window(op: str, a: Any) -> None:
    for name in ("stride", "dilation", "window"):
        value = getattr(a, name, (1, 1))
        need(min(value) >= 1, f"{op}: the {name} must be at least 1; received {value}.", OptionError)
    need(min(*a.low, *a.high) >= 0, f"{op}: padding must not be negative; received {a.low}, {a.high}.", OptionError)


def _output_size(op: str, a: Any, size: tuple[int, ...], window: tuple[int, ...]) -> tuple[int, int]:
    """The output's (height, width), after a check that both are at least 1."""
    dilation = getattr(a, "dilation", (1, 1))
    counts = [
        window_count(*arguments) for arguments in zip(size, window, a.stride, a.low, a.high, dilation, strict=True)
    ]
    extent = [d * (k - 1) + 1 for d, k in zip(dilation, window, strict=True)]
    need(
        min(counts) >= 1,
        f"{op}: a window of {extent[0]} x {extent[1]} is larger than the image of {size[0]} x {size[1]} with its "
        f"padding {a.low}, {a.high}; use a smaller kernel or more padding.",
    )
    return counts[0], counts[1]


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
    n, channels, size = _check_images("conv2d", "an input", x, a.last)
    out, inner, kernel = _check_images(
        "conv2d", "a weight in the layout of the input, output channels first,", weight, a.last
    )
    need_same_dtype("conv2d", x, weight)
    assert isinstance(out, int), "the number of output channels must be an integer"
    _check_window("conv2d", a)
    _check_channels("conv2d", a.groups, channels, out, inner, weight)
    return TensorType(image_shape(n, out, _output_size("conv2d", a, size, kernel), a.last), x.dtype.accumulate)


def _check_result_gradient(op: str, a: at.ConvGradAttrs, x: TensorType, weight: TensorType, g: TensorType) -> None:
    """Check that `g` has the shape of the convolution's result and the dtype of the other operand of the GEMM."""
    need_same_dtype(op, g, x, weight)
    result = conv2d(a.forward, x, weight)
    assert isinstance(result, TensorType)
    expected = TensorType(result.shape, g.dtype)
    need(expected == g, f"{op}: the gradient of {x} under a weight {weight} is {expected}; received {g}.")


def conv2d_grad_input(a: at.ConvGradAttrs, g: TensorType, weight: TensorType) -> Type:
    n, _, _ = _check_images("conv2d_grad_input", "a gradient", g, a.last)
    _, inner, _ = _check_images("conv2d_grad_input", "a weight", weight, a.last)
    x = TensorType(image_shape(n, inner * a.groups, a.size, a.last), g.dtype)
    _check_result_gradient("conv2d_grad_input", a, x, weight, g)
    return TensorType(x.shape, g.dtype.accumulate)


def conv2d_grad_weight(a: at.ConvGradAttrs, x: TensorType, g: TensorType) -> Type:
    _, channels, _ = _check_images("conv2d_grad_weight", "an input", x, a.last)
    _, out, _ = _check_images("conv2d_grad_weight", "a gradient", g, a.last)
    weight = TensorType(image_shape(out, channels // a.groups, a.size, a.last), g.dtype)
    _check_result_gradient("conv2d_grad_weight", a, x, weight, g)
    return TensorType(weight.shape, g.dtype.accumulate)


# -- max pooling -------------------------------------------------------------------------------------------------


def max_pool2d(a: at.PoolAttrs, x: TensorType) -> Type:
    n, channels, size = _check_images("max_pool2d", "an input", x, a.last)
    _check_window("max_pool2d", a)
    need(
        all(2 * max(lo, hi) <= k for lo, hi, k in zip(a.low, a.high, a.window, strict=True)),
        f"max_pool2d: padding {a.low}, {a.high} is more than half of the window {a.window}: some windows would "
        "contain only padding; use less.",
        OptionError,
    )
    return TensorType(image_shape(n, channels, _output_size("max_pool2d", a, size, a.window), a.last), x.dtype)


def max_pool2d_index(a: at.PoolAttrs, x: TensorType) -> Type:
    """The position of the first maximum in each window, row by row."""
    pooled = max_pool2d(a, x)
    assert isinstance(pooled, TensorType)
    return TensorType(pooled.shape, index_dtype(a.window))


def _need_index(op: str, pooled: TensorType, index: TensorType, window: tuple[int, ...]) -> None:
    expected = TensorType(pooled.shape, index_dtype(window))
    need(index == expected, f"{op} needs the positions of the maxima as {expected}; received {index}.", DTypeError)


def max_pool2d_grad(a: at.PoolGradAttrs, g: TensorType, index: TensorType) -> Type:
    n, channels, _ = _check_images("max_pool2d_grad", "a gradient", g, a.last)
    _need_index("max_pool2d_grad", g, index, a.window)
    x = TensorType(image_shape(n, channels, a.size, a.last), g.dtype)
    pooled = max_pool2d(a.forward, x)
    need(pooled == g, f"max_pool2d_grad: the gradient of {x} is {pooled}; received {g}.")
    return x


def max_pool2d_pick(a: at.PoolAttrs, x: TensorType, index: TensorType) -> Type:
    """The element at the given position of each window."""
    pooled = max_pool2d(a, x)
    assert isinstance(pooled, TensorType)
    _need_index("max_pool2d_pick", pooled, index, a.window)
    return pooled


# -- convolution and pool fused ----------------------------------------------------------------------------------


def pool_grad_attrs(a: at.PooledConvAttrs) -> at.PoolGradAttrs:
    return at.PoolGradAttrs(a.window, a.window, (0, 0), (0, 0), True, a.middle)


def conv_grad_attrs(a: at.PooledConvAttrs) -> at.ConvGradAttrs:
    return at.ConvGradAttrs((1, 1), a.low, a.high, (1, 1), 1, True, a.size)


def grad_weight_through_pool(a: at.PooledConvAttrs, x: TensorType, g: TensorType, index: TensorType) -> Type:
    """conv2d_grad_weight(x, max_pool2d_grad(g, index)) for each slice of the batch; the gradient is their sum."""
    middle = max_pool2d_grad(pool_grad_attrs(a), g, index)
    assert isinstance(middle, TensorType)
    weight = conv2d_grad_weight(conv_grad_attrs(a), x, middle)
    assert isinstance(weight, TensorType)
    enough = a.parts == x.shape[0] if isinstance(a.parts, Dim) else a.parts >= 1
    need(enough, f"pooled_grad_weight: the batch needs at least one slice; received {a.parts}.", OptionError)
    return TensorType((a.parts, *weight.shape), weight.dtype)


def grad_input_through_pool(a: at.PooledConvAttrs, g: TensorType, index: TensorType, weight: TensorType) -> Type:
    """conv2d_grad_input(max_pool2d_grad(g, index), weight)."""
    middle = max_pool2d_grad(pool_grad_attrs(a), g, index)
    assert isinstance(middle, TensorType)
    return conv2d_grad_input(conv_grad_attrs(a), middle, weight)


# -- operation counts --------------------------------------------------------------------------------------------


def multiply_adds(node_op: str, inputs: tuple[TensorType, ...], result: TensorType, last: bool) -> Extent:
    """Multiply-adds of a convolution or its adjoints, the padding's zeros included; comparisons of a pool."""
    if node_op.startswith("max_pool2d"):
        return result.elements
    weight, images = {
        "conv2d": (inputs[-1], result),
        "conv2d_grad_input": (inputs[-1], inputs[0]),
        "conv2d_grad_weight": (result, inputs[-1]),
        "pooled_grad_weight": (TensorType(result.shape[1:], result.dtype), inputs[1]),
        "pooled_grad_input": (inputs[-1], inputs[0]),
    }[node_op]
    outputs, _, _ = image_dims(weight, last)
    assert isinstance(outputs, int), "the number of output channels must be an integer"
    per_output: Extent = 1
    for extent in weight.shape[1:]:
        per_output = per_output * extent
    return images.elements * per_output
