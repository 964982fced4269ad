"""DenseNet: "Densely connected convolutional networks", Huang et al. 2016 (arXiv:1608.06993).

The layers, names and initial weights are torchvision's.
"""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import concat, relu
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn import AvgPool2d, BatchNorm2d, Conv2d, GlobalAvgPool2d, Linear, MaxPool2d, Module
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

SIZES = {  # growth, layers of each block, channels of the stem: table 1 of the paper
    121: (32, (6, 12, 24, 16), 64),
    161: (48, (6, 12, 36, 24), 96),
    169: (32, (6, 12, 32, 32), 64),
    201: (32, (6, 12, 48, 32), 64),
}


def densenet(
    size: int = 121,
    classes: int = 1000,
    *,
    growth: int | None = None,
    blocks: tuple[int, ...] | None = None,
    first: int | None = None,
    dtype: object = "float32",
) -> DenseNet:
    """A DenseNet for images of about 224 x 224; 121 layers have 8.0 M parameters.

    Args:
        size: 121, 161, 169 or 201 layers.
        growth: channels that each layer adds, instead of the default of the size.
        blocks: layers of each block, instead of the default of the size.
        first: channels before the first block, instead of the default of the size.

    Example: `ws.models.densenet(classes=10)`.
    """
    if size not in SIZES:
        fail(OptionError, f"densenet: the sizes are {', '.join(map(str, SIZES))}; received {size!r}.")
    grow, layers, stem = SIZES[size]
    return DenseNet(growth or grow, blocks or layers, first or stem, classes, dtype)


class DenseNet(Module):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    def __init__(self, growth: int, blocks: tuple[int, ...], first: int, classes: int, dtype: object) -> None:
        positive("densenet", growth=growth, first=first, classes=classes)
        self.features = Features(growth, blocks, first, dtype)
        self.pool, self.classifier = GlobalAvgPool2d(), Linear(self.features.channels, classes, dtype=dtype)
        self.classifier.bias = parameter((classes,), 0.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.pool(relu(self.features(x))))
        return scores


class Features(Module):
    """The stem, dense blocks, and transitions between them that halve the channels and the image."""

    def __init__(self, growth: int, blocks: tuple[int, ...], first: int, dtype: object) -> None:
        self.conv0, self.norm0 = convolution(3, first, 7, 2, 3, dtype), BatchNorm2d(first, dtype=dtype)
        self.pool0 = MaxPool2d(3, 2, padding=1)
        self.stages, channels = list[str](), first
        for number, layers in enumerate(blocks, 1):
            setattr(self, f"denseblock{number}", DenseBlock(layers, channels, growth, dtype))
            channels += layers * growth
            self.stages.append(f"denseblock{number}")
            if number < len(blocks):
                setattr(self, f"transition{number}", Transition(channels, channels // 2, dtype))
                channels //= 2
                self.stages.append(f"transition{number}")
        self.norm5, self.channels = BatchNorm2d(channels, dtype=dtype), channels

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool0(relu(self.norm0(self.conv0(x))))
        for name in self.stages:
            x = getattr(self, name)(x)
        out: Tensor = self.norm5(x)
        return out


class DenseBlock(Module):
    """Layers, each of which reads the outputs of all layers before it."""

    def __init__(self, layers: int, channels: int, growth: int, dtype: object) -> None:
        self.layers = layers
        for number in range(layers):
            setattr(self, f"denselayer{number + 1}", DenseLayer(channels + number * growth, growth, dtype))

    def forward(self, x: Tensor) -> Tensor:
        outputs = [x]
        for number in range(self.layers):
            outputs.append(getattr(self, f"denselayer{number + 1}")(concat(outputs, 1)))
        return concat(outputs, 1)


class DenseLayer(Module):
    """conv3x3(relu(norm(conv1x1(relu(norm(x)))))), with a bottleneck of four times the growth."""

    def __init__(self, channels: int, growth: int, dtype: object) -> None:
        self.norm1, self.conv1 = BatchNorm2d(channels, dtype=dtype), convolution(channels, 4 * growth, 1, 1, 0, dtype)
        self.norm2, self.conv2 = BatchNorm2d(4 * growth, dtype=dtype), convolution(4 * growth, growth, 3, 1, 1, dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv2(relu(self.norm2(self.conv1(relu(self.norm1(x))))))
        return out


class Transition(Module):
    """pool(conv1x1(relu(norm(x))))"""

    def __init__(self, channels: int, outputs: int, dtype: object) -> None:
        self.norm, self.conv = BatchNorm2d(channels, dtype=dtype), convolution(channels, outputs, 1, 1, 0, dtype)
        self.pool = AvgPool2d(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.pool(self.conv(relu(self.norm(x))))
        return out


def convolution(inputs: int, outputs: int, kernel: int, stride: int, padding: int, dtype: object) -> Conv2d:
    start = init.kaiming_normal()
    return Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False, init=start, dtype=dtype)
