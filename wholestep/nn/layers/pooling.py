"""Pooling layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wholestep.compiler.frontend.layers import adaptive_pooling, pooling
from wholestep.compiler.frontend.layers.segments import POOLS, pool_sequences
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module

Sizes = int | Sequence[int]


class _Pool(Module):
    """The base class of pools: `window`, `stride`, `padding` and `ceil_mode` of the function that it calls."""

    function: Callable[..., Tensor]

    def __init__(
        self, window: Sizes, stride: Sizes | None = None, padding: Sizes | str = 0, ceil_mode: bool = False
    ) -> None:
        self.window, self.stride, self.padding, self.ceil_mode = window, stride, padding, ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, self.window, self.stride, self.padding, self.ceil_mode)

    def options(self) -> str:
        stride = "" if self.stride is None else f", stride={self.stride}"
        around = f", padding={self.padding!r}" if self.padding else ""
        return f"{self.window}{stride}{around}" + (", ceil_mode=True" if self.ceil_mode else "")


class MaxPool1d(_Pool):
    """The largest element of each window of (N, C, L) (`ws.max_pool1d`).  Example: `ws.nn.MaxPool1d(2)`."""

    function = staticmethod(pooling.max_pool1d)


class MaxPool2d(_Pool):
    """The largest element of each window (`ws.max_pool2d`); windows do not overlap unless a stride is given.

    Example: `ws.nn.MaxPool2d(2)`.
    """

    function = staticmethod(pooling.max_pool2d)

    def __init__(
        self,
        window: Sizes,
        stride: Sizes | None = None,
        padding: Sizes | str = 0,
        ceil_mode: bool = False,
        dilation: Sizes = 1,
    ) -> None:
        super().__init__(window, stride, padding, ceil_mode)
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        return pooling.max_pool2d(x, self.window, self.stride, self.padding, self.ceil_mode, self.dilation)


class MaxPool3d(_Pool):
    """The largest element of each window of (N, C, D, H, W) (`ws.max_pool3d`).  Example: `ws.nn.MaxPool3d(2)`."""

    function = staticmethod(pooling.max_pool3d)


class _AvgPool(_Pool):
    def __init__(
        self,
        window: Sizes,
        stride: Sizes | None = None,
        padding: Sizes | str = 0,
        ceil_mode: bool = False,
        count_padding: bool = True,
    ) -> None:
        super().__init__(window, stride, padding, ceil_mode)
        self.count_padding = count_padding

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, self.window, self.stride, self.padding, self.ceil_mode, self.count_padding)


class AvgPool1d(_AvgPool):
    """The mean of each window of (N, C, L) (`ws.avg_pool1d`).  Example: `ws.nn.AvgPool1d(2)`."""

    function = staticmethod(pooling.avg_pool1d)


class AvgPool2d(_AvgPool):
    """The mean of each window (`ws.avg_pool2d`); zeros of the padding count unless `count_padding=False`.

    Example: `ws.nn.AvgPool2d(2)`.
    """

    function = staticmethod(pooling.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of (N, C, D, H, W) (`ws.avg_pool3d`).  Example: `ws.nn.AvgPool3d(2)`."""

    function = staticmethod(pooling.avg_pool3d)


# -- as many windows as are asked for ----------------------------------------------------------------------------


class _AdaptivePool(Module):
    function: Callable[..., Tensor]

    def __init__(self, size: Sizes) -> None:
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x, self.size)

    def options(self) -> str:
        return f"{self.size}"


class AdaptiveAvgPool1d(_AdaptivePool):
    """The means of `size` windows that cover a signal.  Example: `ws.nn.AdaptiveAvgPool1d(4)`."""

    function = staticmethod(adaptive_pooling.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_AdaptivePool):
    """The means of `size` windows that cover an image.  Example: `ws.nn.AdaptiveAvgPool2d((7, 7))`."""

    function = staticmethod(adaptive_pooling.adaptive_avg_pool2d)


class AdaptiveMaxPool1d(_AdaptivePool):
    """The maxima of `size` windows that cover a signal.  Example: `ws.nn.AdaptiveMaxPool1d(4)`."""

    function = staticmethod(adaptive_pooling.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_AdaptivePool):
    """The maxima of `size` windows that cover an image.  Example: `ws.nn.AdaptiveMaxPool2d((7, 7))`."""

    function = staticmethod(adaptive_pooling.adaptive_max_pool2d)


# -- everything --------------------------------------------------------------------------------------------------


class GlobalAvgPool1d(FunctionModule, function=adaptive_pooling.global_avg_pool1d):
    """The mean of each channel, (N, C, L) -> (N, C).  Example: `ws.nn.GlobalAvgPool1d()`."""


class GlobalAvgPool2d(FunctionModule, function=adaptive_pooling.global_avg_pool2d):
    """The mean of each channel, (N, C, H, W) -> (N, C).  Example: `ws.nn.GlobalAvgPool2d()`."""


class GlobalAvgPool3d(FunctionModule, function=adaptive_pooling.global_avg_pool3d):
    """The mean of each channel, (N, C, D, H, W) -> (N, C).  Example: `ws.nn.GlobalAvgPool3d()`."""


class GlobalMaxPool1d(FunctionModule, function=adaptive_pooling.global_max_pool1d):
    """The largest element of each channel, (N, C, L) -> (N, C).  Example: `ws.nn.GlobalMaxPool1d()`."""


class GlobalMaxPool2d(FunctionModule, function=adaptive_pooling.global_max_pool2d):
    """The largest element of each channel, (N, C, H, W) -> (N, C).  Example: `ws.nn.GlobalMaxPool2d()`."""


# -- sequences ---------------------------------------------------------------------------------------------------


class SequencePool(Module):
    """One vector for each sequence: (batch, time, ...) -> (batch, ...), by "mean", "sum", "max", "first" or "last".

    Packed rows, of `ws.data.Ragged`, hold several sequences: (batch, time, ...) -> (batch, sequences, ...), of which an
    empty one gives 0.

    Example: `ws.nn.SequencePool("mean")`.
    """

    def __init__(self, how: str = "mean") -> None:
        if how not in POOLS:
            fail(OptionError, f"SequencePool: how is one of {', '.join(map(repr, POOLS))}; received {how!r}.")
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        return pool_sequences(x, self.how)

    def options(self) -> str:
        return repr(self.how)
