"""MobileNetV2: "Inverted residuals and linear bottlenecks", Sandler et al. 2018 (arXiv:1801.04381).

The layers, names and initial weights are torchvision's.
"""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn import BatchNorm2d, Conv2d, Dropout, GlobalAvgPool2d, Linear, Module, ReLU6, Sequential
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

STAGES = (  # expansion, channels, blocks, stride of the first block: table 2 of the paper
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
FIRST, LAST = 32, 1280  # channels before the first and after the last stage


def mobilenet_v2(
    classes: int = 1000, width: float = 1.0, dropout: float | Switchable = 0.2, dtype: object = "float32"
) -> MobileNetV2:
    """MobileNetV2 for images of about 224 x 224, 3.5 M parameters.

    Args:
        width: factor of the channels in the paper's first table.

    Example: `ws.models.mobilenet_v2(classes=10, width=0.5)`.
    """
    return MobileNetV2(classes, width, dropout, dtype)


class MobileNetV2(Module):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    def __init__(self, classes: int, width: float, dropout: float | Switchable, dtype: object) -> None:
        positive("mobilenet_v2", classes=classes)
        inputs, last = round_channels(FIRST * width), round_channels(LAST * max(1.0, width))
        layers: list[Module] = [unit(3, inputs, 3, 2, 1, dtype)]
        for expansion, channels, blocks, stride in STAGES:
            outputs = round_channels(channels * width)
            for i in range(blocks):
                layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expansion, dtype))
                inputs = outputs
        self.features = Sequential(*layers, unit(inputs, last, 1, 1, 1, dtype))
        self.pool = GlobalAvgPool2d()
        scores = Linear(last, classes, init=init.normal(std=0.01), dtype=dtype)
        scores.bias = parameter((classes,), 0.0, dtype)
        self.classifier = Sequential(Dropout(dropout), scores)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.pool(self.features(x)))
        return scores


class InvertedResidual(Module):
    """An inverted residual: a 1 x 1 expansion, a depthwise convolution, a linear 1 x 1 projection (section 3.3)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, dtype: object) -> None:
        inner = inputs * expansion
        wide = [] if expansion == 1 else [unit(inputs, inner, 1, 1, 1, dtype)]
        narrow = convolution(inner, outputs, 1, 1, 1, dtype)
        self.conv = Sequential(
            *wide, unit(inner, inner, 3, stride, inner, dtype), narrow, BatchNorm2d(outputs, dtype=dtype)
        )
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(x)
        return x + y if self.adds else y


def unit(inputs: int, outputs: int, kernel: int, stride: int, groups: int, dtype: object) -> Sequential:
    """A convolution followed by a norm and ReLU6."""
    return Sequential(
        convolution(inputs, outputs, kernel, stride, groups, dtype), BatchNorm2d(outputs, dtype=dtype), ReLU6()
    )


def convolution(inputs: int, outputs: int, kernel: int, stride: int, groups: int, dtype: object) -> Conv2d:
    start = init.kaiming_normal(mode="fan_out")
    return Conv2d(
        inputs, outputs, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=False, init=start, dtype=dtype
    )


def round_channels(channels: float, to: int = 8) -> int:
    """Round to the nearest multiple of 8 that is at least nine tenths of the number."""
    near = max(to, int(channels + to / 2) // to * to)
    return near + to if near < 0.9 * channels else near
