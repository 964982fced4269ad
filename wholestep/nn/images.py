"""Convolutions and pooling.  Images are (N, C, H, W), signals (N, C, L)."""

from __future__ import annotations

import math

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend import windows as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.windows import Padding, Pair
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.basic import positive
from wholestep.nn.module import Module
from wholestep.nn.parameter import parameter, weight


class _Conv(Module):
    """What both convolutions share: their parameters and the check of what they are given."""

    weight: Tensor
    bias: Tensor | None
    axes: str  # of what it takes, behind the channels

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: tuple[int, ...],
        groups: int,
        bias: bool,
        init: object,
        dtype: object,
    ) -> None:
        kind = type(self).__name__
        positive(
            kind, inputs=inputs, outputs=outputs, groups=groups, **{f"kernel[{i}]": k for i, k in enumerate(kernel)}
        )
        if inputs % groups or outputs % groups:
            fail(OptionError, f"{kind}: groups={groups} must divide {inputs} inputs and {outputs} outputs.")
        self.inputs, self.outputs, self.kernel, self.groups = inputs, outputs, kernel, groups
        bound = 1.0 / math.sqrt(inputs // groups * math.prod(kernel))
        start = initializers.uniform(-bound, bound)
        self.weight = weight((outputs, inputs // groups, *kernel), start if init is None else init, dtype)
        self.bias = parameter((outputs,), start, dtype) if bias else None

    def check(self, x: Tensor) -> None:
        if x.ndim != 2 + len(self.kernel) or x.shape[1] != self.inputs:
            fail(
                ShapeError,
                f"{self!r} takes {self.inputs} channels, (N, {self.inputs}, {self.axes}); received "
                f"{shape_text(x.shape)}.{self._hint(x)}",
            )

    def _hint(self, x: Tensor) -> str:
        """What images of another library, or without an axis of channels, need."""
        axes = len(self.kernel)
        if x.ndim == 1 + axes and self.inputs == 1:
            return " Add the axis of channels: x[:, None]."
        if x.ndim == 2 + axes and x.shape[-1] == self.inputs:
            order = ", ".join(map(str, (0, 1 + axes, *range(1, 1 + axes))))
            return f" The channels seem to come last: x.transpose({order})."
        return ""

    def options(self) -> str:
        kernel = self.kernel[0] if len(set(self.kernel)) == 1 else self.kernel
        given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
        changed = [f", {n}={getattr(self, n)!r}" for n, plain in given.items() if getattr(self, n) != plain]
        return f"{self.inputs}, {self.outputs}, {kernel}{''.join(changed)}" + (
            "" if self.bias is not None else ", bias=False"
        )


class Conv2d(_Conv):
    """A convolution of images (`ws.conv2d`); weight (outputs, inputs / groups, KH, KW) and bias uniform in
    ±1/√(inputs / groups · KH · KW) as in PyTorch.

    Args:
        kernel, stride, dilation: a number, or a pair (vertical, horizontal).
        padding: the same, or "same" or "valid".
        groups: output channels of group g see the input channels of group g alone.
        init: how the weight starts, where not as above.

    Example: `ws.nn.Conv2d(3, 16, 3, padding=1)`.
    """

    axes = "H, W"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: Pair,
        stride: Pair = 1,
        padding: Padding = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
    ) -> None:
        super().__init__(inputs, outputs, _pair(kernel), groups, bias, init, dtype)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return fn.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """A convolution of signals (`ws.conv1d`); the arguments are those of `Conv2d`, one number each.

    Example: `ws.nn.Conv1d(1, 8, 5, padding="same")`.
    """

    axes = "L"

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        padding: int | str = 0,
        dilation: int = 1,
        groups: int = 1,
        bias: bool = True,
        init: object = None,
        dtype: object = "float32",
    ) -> None:
        super().__init__(inputs, outputs, (kernel,), groups, bias, init, dtype)
        self.stride, self.padding, self.dilation = stride, padding, dilation

    def forward(self, x: Tensor) -> Tensor:
        self.check(x)
        return fn.conv1d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def _pair(kernel: Pair) -> tuple[int, ...]:
    return (kernel, kernel) if isinstance(kernel, int) else tuple(kernel)


class _Pool(Module):
    def __init__(self, window: Pair, stride: Pair | None = None, padding: Pair = 0) -> None:
        self.window, self.stride, self.padding = window, stride, padding

    def options(self) -> str:
        stride = "" if self.stride is None else f", stride={self.stride}"
        return f"{self.window}{stride}" + (f", padding={self.padding}" if self.padding else "")


class MaxPool2d(_Pool):
    """The largest element of each window (`ws.max_pool2d`); windows lie side by side unless a stride is given.

    Example: `ws.nn.MaxPool2d(2)`.
    """

    def forward(self, x: Tensor) -> Tensor:
        return fn.max_pool2d(x, self.window, self.stride, self.padding)


class AvgPool2d(_Pool):
    """The mean of each window, zeros of the padding included (`ws.avg_pool2d`).  Example: `ws.nn.AvgPool2d(2)`."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.avg_pool2d(x, self.window, self.stride, self.padding)


class GlobalAvgPool2d(Module):
    """The mean of each channel, (N, C, H, W) -> (N, C).  Example: `ws.nn.GlobalAvgPool2d()`."""

    def forward(self, x: Tensor) -> Tensor:
        return fn.global_avg_pool2d(x)
