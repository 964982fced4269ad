"""LeNet-5, AlexNet and VGG: convolutional networks in which each layer reads only the layer before it.

- LeNet-5: "Gradient-based learning applied to document recognition", LeCun et al. 1998, with ReLU and max pooling.
- AlexNet: "One weird trick for parallelizing convolutional neural networks", Krizhevsky 2014 (arXiv:1404.5997).
- VGG: "Very deep convolutional networks for large-scale image recognition", Simonyan and Zisserman 2014
  (arXiv:1409.1556); the numbers count layers with weights.

Layers, names and initial weights of AlexNet and VGG are torchvision's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import relu
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn import (
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    ReLU,
    Sequential,
)
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter


def lenet5(classes: int = 10, channels: int = 1, dtype: object = "float32") -> LeNet5:
    """LeNet-5 for images of 28 x 28.  Example: `ws.models.lenet5()`."""
    return LeNet5(classes, channels, dtype)


class LeNet5(Module):
    """Maps images (batch, channels, 28, 28) to scores (batch, classes)."""

    def __init__(self, classes: int = 10, channels: int = 1, dtype: object = "float32") -> None:
        self.channels = channels
        self.conv1 = Conv2d(channels, 6, 5, padding=2, dtype=dtype)
        self.conv2 = Conv2d(6, 16, 5, dtype=dtype)
        self.pool, self.flatten = MaxPool2d(2), Flatten()
        self.fc1 = Linear(400, 120, dtype=dtype)
        self.fc2 = Linear(120, 84, dtype=dtype)
        self.fc3 = Linear(84, classes, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != (self.channels, 28, 28):
            fail(ShapeError, f"lenet5 takes images (batch, {self.channels}, 28, 28); received {shape_text(x.shape)}.")
        x = self.pool(relu(self.conv1(x)))  # (batch, 6, 14, 14)
        x = self.pool(relu(self.conv2(x)))  # (batch, 16, 5, 5)
        x = relu(self.fc1(self.flatten(x)))
        scores: Tensor = self.fc3(relu(self.fc2(x)))
        return scores


def alexnet(
    classes: int = 1000,
    dropout: float | Switchable = 0.5,
    width: int = 64,
    hidden: int = 4096,
    dtype: object = "float32",
) -> AlexNet:
    """AlexNet for images of about 224 x 224, 61 M parameters.

    Args:
        width: channels of the first convolution; the others grow with it.
        hidden: features between the last layers.

    Example: `ws.models.alexnet(classes=10)`.
    """
    return AlexNet(classes, dropout, width, hidden, dtype)


class PooledFeatures(Module):
    """Convolutions, a pool to a fixed number of pixels, then linear layers: what AlexNet and VGG share."""

    name: str
    smallest: int  # smallest image side that leaves one pixel after the convolutions and pools
    features: Sequential
    avgpool: AdaptiveAvgPool2d
    flatten: Flatten
    classifier: Sequential

    def forward(self, x: Tensor) -> Tensor:
        least = self.smallest
        if x.ndim != 4 or x.shape[1] != 3 or any(isinstance(e, int) and e < least for e in x.shape[2:]):
            fail(
                ShapeError,
                f"{self.name} takes images (batch, 3, H, W) of at least {least} x {least} pixels; received "
                f"{shape_text(x.shape)}.",
            )
        scores: Tensor = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return scores


class AlexNet(PooledFeatures):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    name, smallest = "alexnet", 63

    def __init__(
        self, classes: int, dropout: float | Switchable, width: int, hidden: int, dtype: object = "float32"
    ) -> None:
        positive("alexnet", classes=classes, width=width, hidden=hidden)
        a, b, c, d = width, 3 * width, 6 * width, 4 * width
        self.features = Sequential(
            Conv2d(3, a, 11, stride=4, padding=2, dtype=dtype), ReLU(), MaxPool2d(3, 2),
            Conv2d(a, b, 5, padding=2, dtype=dtype), ReLU(), MaxPool2d(3, 2),
            Conv2d(b, c, 3, padding=1, dtype=dtype), ReLU(),
            Conv2d(c, d, 3, padding=1, dtype=dtype), ReLU(),
            Conv2d(d, d, 3, padding=1, dtype=dtype), ReLU(), MaxPool2d(3, 2),
        )  # fmt: skip
        self.avgpool, self.flatten = AdaptiveAvgPool2d(6), Flatten()
        self.classifier = Sequential(
            Dropout(dropout), Linear(d * 36, hidden, dtype=dtype), ReLU(),
            Dropout(dropout), Linear(hidden, hidden, dtype=dtype), ReLU(),
            Linear(hidden, classes, dtype=dtype),
        )  # fmt: skip


STAGES = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}  # convolutions of each
GROWTH = (1, 2, 4, 8, 8)  # channels of each stage, as multiples of the width


def vgg11(
    classes: int = 1000,
    batch_norm: bool = False,
    dropout: float | Switchable = 0.5,
    width: int = 64,
    hidden: int = 4096,
    dtype: object = "float32",
) -> VGG:
    """VGG-11 for images of about 224 x 224, 133 M parameters.

    Args:
        batch_norm: after every convolution.
        width: channels of the first convolution; the others grow with it.
        hidden: features between the last layers.

    Example: `ws.models.vgg11(classes=10, batch_norm=True)`.
    """
    return VGG(11, classes, batch_norm, dropout, width, hidden, dtype)


def _of_layers(layers: int, millions: int) -> Callable[..., VGG]:
    """A function like `vgg11` for another number of layers."""

    @wraps(vgg11)
    def network(*args: Any, **named: Any) -> VGG:
        bound = signature(vgg11).bind(*args, **named)
        bound.apply_defaults()
        return VGG(layers, **bound.arguments)

    network.__name__ = network.__qualname__ = f"vgg{layers}"
    text = f"VGG-{layers}, {millions} M parameters; the arguments are those of `vgg11`."
    network.__doc__ = f"{text}  Example: `ws.models.vgg{layers}()`."
    return network


vgg13, vgg16, vgg19 = _of_layers(13, 133), _of_layers(16, 138), _of_layers(19, 144)


class VGG(PooledFeatures):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    smallest = 32  # the smallest image side: five pools halve it

    def __init__(
        self,
        layers: int,
        classes: int,
        batch_norm: bool,
        dropout: float | Switchable,
        width: int,
        hidden: int,
        dtype: object,
    ) -> None:
        positive(f"vgg{layers}", classes=classes, width=width, hidden=hidden)
        self.name, parts, channels = f"vgg{layers}", list[Module](), 3
        for count, growth in zip(STAGES[layers], GROWTH, strict=True):
            for _ in range(count):
                parts += [conv3x3(channels, growth * width, dtype)]
                parts += [BatchNorm2d(growth * width, dtype=dtype)] if batch_norm else []
                parts += [ReLU()]
                channels = growth * width
            parts += [MaxPool2d(2)]
        self.features = Sequential(*parts)
        self.avgpool, self.flatten = AdaptiveAvgPool2d(7), Flatten()
        self.classifier = Sequential(
            linear(channels * 49, hidden, dtype), ReLU(), Dropout(dropout),
            linear(hidden, hidden, dtype), ReLU(), Dropout(dropout),
            linear(hidden, classes, dtype),
        )  # fmt: skip


def conv3x3(inputs: int, outputs: int, dtype: object) -> Conv2d:
    """A convolution that keeps the image size, with Kaiming-normal weights (fan-out) and zero biases."""
    layer = Conv2d(inputs, outputs, 3, padding=1, init=init.kaiming_normal(mode="fan_out"), dtype=dtype)
    layer.bias = parameter((outputs,), 0.0, dtype)
    return layer


def linear(inputs: int, outputs: int, dtype: object) -> Linear:
    """A linear layer with normal weights of std 0.01 and zero biases."""
    layer = Linear(inputs, outputs, dtype=dtype, init=init.normal(std=0.01))
    layer.bias = parameter((outputs,), 0.0, dtype)
    return layer
