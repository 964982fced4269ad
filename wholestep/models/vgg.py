"""VGG: "Very deep convolutional networks for large-scale image recognition", Simonyan and Zisserman 2014
(arXiv:1409.1556).

The layers, names and initial weights are torchvision's; the numbers count layers with weights.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.models.alex_net import PooledFeatures
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
