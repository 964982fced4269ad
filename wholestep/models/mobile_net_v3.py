"""MobileNetV3: "Searching for MobileNetV3", Howard et al. 2019 (arXiv:1905.02244).

The layers, names and initial weights are torchvision's.
"""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.models.mobile_net import convolution, round_channels
from wholestep.nn import (
    BatchNorm2d,
    Conv2d,
    Dropout,
    DropPath,
    GlobalAvgPool2d,
    Hardsigmoid,
    Hardswish,
    Linear,
    Module,
    ReLU,
    Sequential,
)
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

Row = tuple[int, int, int, bool, bool, int]  # kernel, expanded channels, channels, squeeze?, hard swish?, stride
SMALL: tuple[Row, ...] = (  # table 2 of the paper
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)  # fmt: skip
LARGE: tuple[Row, ...] = (  # table 1
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip
TABLES = {"small": (SMALL, 1024), "large": (LARGE, 1280)}  # size -> rows, and the channels before the scores
EPS = 1e-3


def mobilenet_v3(
    size: str = "large", classes: int = 1000, *, width: float = 1.0, dropout: float = 0.2, dtype: object = "float32"
) -> MobileNetV3:
    """MobileNetV3 for images of about 224 x 224; "large" has 5.5 M parameters, "small" 2.5 M.

    Args:
        size: "small" or "large".
        width: factor of the channels.

    Example: `ws.models.mobilenet_v3("small", classes=10)`.
    """
    if size not in TABLES:
        fail(OptionError, f"mobilenet_v3: the sizes are 'small' and 'large'; received {size!r}.")
    return MobileNetV3(*TABLES[size], classes, width, dropout, dtype)


class MobileNetV3(Module):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    def __init__(
        self, rows: tuple[Row, ...], last: int, classes: int, width: float, dropout: float, dtype: object
    ) -> None:
        positive("mobilenet_v3", classes=classes)
        inputs = round_channels(16 * width)
        layers: list[Module] = [unit(3, inputs, 3, 2, 1, Hardswish(), EPS, dtype)]
        for kernel, expanded, channels, squeeze, hard, stride in rows:
            inner, outputs = round_channels(expanded * width), round_channels(channels * width)
            kind = Hardswish if hard else ReLU
            parts: list[Module] = [] if inner == inputs else [unit(inputs, inner, 1, 1, 1, kind(), EPS, dtype)]
            parts.append(unit(inner, inner, kernel, stride, inner, kind(), EPS, dtype))
            if squeeze:
                parts.append(SqueezeExcite(inner, round_channels(inner // 4), ReLU(), Hardsigmoid(), dtype))
            parts.append(unit(inner, outputs, 1, 1, 1, None, EPS, dtype))
            layers.append(InvertedResidual(parts, stride == 1 and inputs == outputs, 0.0))
            inputs = outputs
        wide = round_channels(last * width)
        self.features = Sequential(*layers, unit(inputs, 6 * inputs, 1, 1, 1, Hardswish(), EPS, dtype))
        self.avgpool = GlobalAvgPool2d()
        self.classifier = Sequential(
            linear(6 * inputs, wide, dtype), Hardswish(), Dropout(dropout), linear(wide, classes, dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.avgpool(self.features(x)))
        return scores


class InvertedResidual(Module):
    """An expansion, a depthwise convolution, squeeze-and-excitation, a linear projection, and the shortcut."""

    def __init__(self, parts: list[Module], adds: bool, drop_path: float) -> None:
        self.block, self.adds = Sequential(*parts), adds
        self.stochastic_depth = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return x + self.stochastic_depth(y) if self.adds else y


class SqueezeExcite(Module):
    """Scales each channel by a function of the means of all channels (arXiv:1709.01507)."""

    def __init__(self, channels: int, squeezed: int, activation: Module, scale: Module, dtype: object) -> None:
        self.fc1, self.fc2 = pointwise(channels, squeezed, dtype), pointwise(squeezed, channels, dtype)
        self.activation, self.scale_activation = activation, scale

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3), keepdims=True)
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(means))))  # type: ignore[no-any-return]


def unit(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    groups: int,
    activation: Module | None,
    eps: float,
    dtype: object,
) -> Sequential:
    """A convolution, a norm and an activation."""
    norm = BatchNorm2d(outputs, eps=eps, momentum=0.01 if eps == EPS else 0.1, dtype=dtype)
    parts = [convolution(inputs, outputs, kernel, stride, groups, dtype), norm]
    return Sequential(*parts, *([] if activation is None else [activation]))


def pointwise(inputs: int, outputs: int, dtype: object) -> Conv2d:
    out = Conv2d(inputs, outputs, 1, init=init.kaiming_normal(mode="fan_out"), dtype=dtype)
    out.bias = parameter((outputs,), 0.0, dtype)
    return out


def linear(inputs: int, outputs: int, dtype: object) -> Linear:
    out = Linear(inputs, outputs, init=init.normal(std=0.01), dtype=dtype)
    out.bias = parameter((outputs,), 0.0, dtype)
    return out
