"""Convolutions of signals (N, C, L), images (N, C, H, W) and volumes or videos (N, C, D, H, W)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.layers import convolution, transposed_convolution
from wholestep.compiler.frontend.layers.window import SPATIAL, Padding, Sizes, per_axis
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.layers.linear import positive, regularize
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer


class AnyConv(Module):
    """The base class of convolutions: their parameters, the checks of their input, and the computation."""

    weight: Tensor
    bias: Tensor | None
    axes: str  # the spatial axes of its input
    _function: Callable[..., Tensor]

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
        *,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        kind = type(self).__name__
        sizes = per_axis(kind, "kernel", kernel, self.axes.count(",") + 1)
        positive(
            kind, inputs=inputs, outputs=outputs, groups=groups, **{f"kernel[{i}]": k for i, k in enumerate(sizes)}
        )
        if inputs % groups or outputs % groups:
            fail(OptionError, f"{kind}: groups={groups} must divide {inputs} inputs and {outputs} outputs.")
        self.inputs, self.outputs, self.kernel, self.groups = inputs, outputs, sizes, groups
        shape = self._weight_shape()
        bound = 1.0 / math.sqrt(math.prod(shape[1:]))
        start = initializers.uniform(-bound, bound)
        self.weight = weight(shape, start if init is None else init, dtype)
        self.bias = parameter((outputs,), start, dtype) if bias else None
        regularize(self, weight_regularizer, activity_regularizer)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        options = (self.stride, self.padding, self.dilation, self.groups)
        return type(self)._function(x, self.weight, self.bias, *options)

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.outputs, self.inputs // self.groups, *self.kernel)

    def check(self, x: Tensor) -> None:
        if x.ndim != 2 + len(self.kernel) or x.shape[1] != self.inputs:
            fail(
                ShapeError,
                f"{self!r} takes {self.inputs} channels, (N, {self.inputs}, {self.axes}); received "
                f"{shape_text(x.shape)}.{self._hint(x)}",
            )

    def _hint(self, x: Tensor) -> str:
        """A hint for images in another layout, or without a channel axis."""
        axes = len(self.kernel)
        if x.ndim == 1 + axes and self.inputs == 1:
            return " Add the axis of channels: x[:, None]."
        if x.ndim == 2 + axes and x.shape[-1] == self.inputs:
            order = ", ".join(map(str, (0, 1 + axes, *range(1, 1 + axes))))
            return f" The channels seem to come last: x.transpose({order})."
        return ""

    def options(self) -> str:
        kernel = self.kernel[0] if len(set(self.kernel)) == 1 else self.kernel
        defaults = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
        changed = [f", {n}={getattr(self, n)!r}" for n, plain in defaults.items() if getattr(self, n, plain) != plain]
        return f"{self.inputs}, {self.outputs}, {kernel}{''.join(changed)}" + (
            "" if self.bias is not None else ", bias=False"
        )


class Conv1d(AnyConv):
    """A convolution of signals (`ws.conv1d`); takes `Conv2d`'s arguments, one number each.

    Example: `ws.nn.Conv1d(1, 8, 5, padding="same")`.
    """

    axes, _function = SPATIAL[1], staticmethod(convolution.conv1d)


class Conv2d(AnyConv):
    """A convolution of images (`ws.conv2d`); weight (outputs, inputs / groups, KH, KW) and bias uniform in
    ±1/√(inputs / groups · KH · KW) as in PyTorch.

    Args:
        kernel, stride, dilation: a number, or a pair (vertical, horizontal).
        padding: the same, or "same" or "valid".
        groups: output channels of group g see the input channels of group g alone.
        init: the initializer of the weight, unless as above.
        weight_regularizer, activity_regularizer: as for `ws.nn.Linear`.

    Example: `ws.nn.Conv2d(3, 16, 3, padding=1)`.
    """

    axes, _function = SPATIAL[2], staticmethod(convolution.conv2d)


class Conv3d(AnyConv):
    """A convolution of volumes or videos (`ws.conv3d`); takes `Conv2d`'s arguments, one number or three each.

    Example: `ws.nn.Conv3d(3, 16, 3, padding=1)`.
    """

    axes, _function = SPATIAL[3], staticmethod(convolution.conv3d)


# -- transposed --------------------------------------------------------------------------------------------------


class AnyConvTranspose(AnyConv):
    """The base class of transposed convolutions; weight (inputs, outputs / groups, ...) as in PyTorch."""

    function: Callable[..., Tensor]

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
        *,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        options = (stride, padding, dilation, groups, bias, init, dtype)
        super().__init__(
            inputs,
            outputs,
            kernel,
            *options,
            weight_regularizer=weight_regularizer,
            activity_regularizer=activity_regularizer,
        )
        self.output_padding = output_padding

    def _weight_shape(self) -> tuple[int, ...]:
        return (self.inputs, self.outputs // self.groups, *self.kernel)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        options = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return type(self).function(x, self.weight, self.bias, *options)


class ConvTranspose1d(AnyConvTranspose):
    """`ConvTranspose2d` for signals (N, C, L).  Example: `ws.nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1)`."""

    axes, function = SPATIAL[1], staticmethod(transposed_convolution.conv_transpose1d)


class ConvTranspose2d(AnyConvTranspose):
    """A transposed convolution (`ws.conv_transpose2d`), which enlarges images: stride 2 doubles their size.

    Weight (inputs, outputs / groups, KH, KW) and bias start as in PyTorch.

    Args:
        kernel, stride, dilation: a number, or a pair (vertical, horizontal).
        padding: the amount removed from each side; or "same": `stride` rows for every row; or "valid".
        output_padding: rows and columns more, below and on the right; less than the stride or the dilation.
        init: the initializer of the weight; by default PyTorch's.
        weight_regularizer, activity_regularizer: as for `ws.nn.Linear`.

    Example: `ws.nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)`.
    """

    axes, function = SPATIAL[2], staticmethod(transposed_convolution.conv_transpose2d)


class ConvTranspose3d(AnyConvTranspose):
    """`ConvTranspose2d` for volumes (N, C, D, H, W).  Example: `ws.nn.ConvTranspose3d(8, 4, 2, stride=2)`."""

    axes, function = SPATIAL[3], staticmethod(transposed_convolution.conv_transpose3d)


class SeparableConv2d(Module):
    """A depthwise convolution followed by a 1 x 1 convolution that mixes the channels (arXiv:1610.02357).

    Args:
        multiplier: output channels of the depthwise convolution per input channel.
        init: the initializer of both weights; by default the same as of `Conv2d`.

    Example: `ws.nn.SeparableConv2d(32, 64, 3, padding="same")`.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        multiplier: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
        *,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        positive("SeparableConv2d", inputs=inputs, outputs=outputs, multiplier=multiplier)
        regularize(self, weight_regularizer, activity_regularizer)
        inner = inputs * multiplier
        self.depthwise = Conv2d(inputs, inner, kernel, stride, padding, dilation, inputs, False, init, dtype)
        self.pointwise = Conv2d(inner, outputs, 1, bias=bias, init=init, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pointwise(self.depthwise(x))
        return out
