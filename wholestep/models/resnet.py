"""ResNets: "Deep residual learning for image recognition", He et al. 2015 (arXiv:1512.03385).

`resnet18`, `resnet34` and `resnet50` are the paper's networks for ImageNet under torchvision's names; `resnet20`,
`resnet32` and `resnet56` are its networks for CIFAR (section 4.2), whose shortcuts have no parameters (option A) unless
`option="B"` selects projections.
Convolutions start as torchvision's: Kaiming-normal by their fan-out.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import relu
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn import BatchNorm2d, Conv2d, GlobalAvgPool2d, Linear, MaxPool2d, Module, Sequential

# (inputs, outputs, stride, dtype) -> the shortcut of a block whose input and output shapes differ
Shortcut = Callable[[int, int, int, object], Module]


def resnet20(classes: int = 10, option: str = "A", dtype: object = "float32") -> CifarResNet:
    """ResNet-20 for images of 32 x 32, 0.27 M parameters.  Example: `ws.models.resnet20()`."""
    return CifarResNet(3, classes, option, dtype)


def resnet32(classes: int = 10, option: str = "A", dtype: object = "float32") -> CifarResNet:
    """ResNet-32 for images of 32 x 32, 0.46 M parameters.  Example: `ws.models.resnet32()`."""
    return CifarResNet(5, classes, option, dtype)


def resnet56(classes: int = 10, option: str = "A", dtype: object = "float32") -> CifarResNet:
    """ResNet-56 for images of 32 x 32, 0.85 M parameters.  Example: `ws.models.resnet56()`."""
    return CifarResNet(9, classes, option, dtype)


def resnet18(classes: int = 1000, dtype: object = "float32", stem: str = "7x7") -> ResNet:
    """ResNet-18 for images of about 224 x 224, 11.7 M parameters; with `stem="3x3"` for images of about 32 x 32.

    Example: `ws.models.resnet18()`.
    """
    return ResNet((2, 2, 2, 2), BasicBlock, classes, dtype, stem)


def resnet34(classes: int = 1000, dtype: object = "float32", stem: str = "7x7") -> ResNet:
    """ResNet-34 for images of about 224 x 224, 21.8 M parameters.  Example: `ws.models.resnet34()`."""
    return ResNet((3, 4, 6, 3), BasicBlock, classes, dtype, stem)


def resnet50(classes: int = 1000, dtype: object = "float32", stem: str = "7x7") -> ResNet:
    """ResNet-50 for images of about 224 x 224, 25.6 M parameters.  Example: `ws.models.resnet50()`.

    As torchvision has it, the convolution of 3 x 3 halves the image, not the one before it.
    """
    return ResNet((3, 4, 6, 3), Bottleneck, classes, dtype, stem)


class CifarResNet(Module):
    """A ResNet of 6n + 2 layers for CIFAR: maps images (batch, 3, H, W) to scores (batch, classes)."""

    def __init__(self, n: int, classes: int, option: str, dtype: object) -> None:
        shortcuts: dict[str, Shortcut] = {"A": PadChannels, "B": projection}
        if option not in shortcuts:
            fail(OptionError, f"the shortcuts of a CIFAR ResNet are option 'A' or 'B'; received {option!r}.")
        shortcut = shortcuts[option]
        self.conv1, self.bn1 = conv3x3(3, 16, 1, dtype), BatchNorm2d(16, dtype=dtype)
        self.layer1 = stage(n, 16, 16, 1, shortcut, dtype)
        self.layer2 = stage(n, 16, 32, 2, shortcut, dtype)
        self.layer3 = stage(n, 32, 64, 2, shortcut, dtype)
        self.pool, self.linear = GlobalAvgPool2d(), Linear(64, classes, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))  # (batch, 16, 32, 32)
        x = self.layer3(self.layer2(self.layer1(x)))  # (batch, 64, 8, 8)
        scores: Tensor = self.linear(self.pool(x))
        return scores


class ResNet(Module):
    """A ResNet for ImageNet: maps images (batch, 3, H, W) to scores (batch, classes).

    The stem of 7 x 7 pixels leaves a sixteenth of the image to the blocks; that of 3 x 3 all of it, for small ones.
    """

    def __init__(
        self, blocks: tuple[int, int, int, int], block: Block, classes: int, dtype: object, stem: str = "7x7"
    ) -> None:
        if stem not in ("7x7", "3x3"):
            fail(OptionError, f"the stem of a ResNet is '7x7', or '3x3' for small images; received {stem!r}.")
        start, last = init.kaiming_normal(mode="fan_out"), 512 * block.expansion
        if stem == "3x3":
            self.conv1 = Conv2d(3, 64, 3, padding=1, bias=False, init=start, dtype=dtype)
        else:
            self.conv1 = Conv2d(3, 64, 7, stride=2, padding=3, bias=False, init=start, dtype=dtype)
        self.bn1, self.maxpool = BatchNorm2d(64, dtype=dtype), None if stem == "3x3" else MaxPool2d(3, 2, padding=1)
        self.layer1 = stage(blocks[0], 64, 64, 1, projection, dtype, block)
        self.layer2 = stage(blocks[1], 64 * block.expansion, 128, 2, projection, dtype, block)
        self.layer3 = stage(blocks[2], 128 * block.expansion, 256, 2, projection, dtype, block)
        self.layer4 = stage(blocks[3], 256 * block.expansion, 512, 2, projection, dtype, block)
        self.avgpool, self.fc = GlobalAvgPool2d(), Linear(last, classes, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.bn1(self.conv1(x)))
        x = x if self.maxpool is None else self.maxpool(x)  # (batch, 64, H / 4, W / 4)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))  # (batch, 512, H / 32, W / 32), or 2048
        scores: Tensor = self.fc(self.avgpool(x))
        return scores


def stage(
    blocks: int, inputs: int, width: int, stride: int, shortcut: Shortcut, dtype: object, block: Block | None = None
) -> Sequential:
    """A stage of blocks with the same width; the first block may halve the image."""
    kind = block or BasicBlock
    first = kind(inputs, width, stride, shortcut, dtype)
    rest = (kind(width * kind.expansion, width, 1, shortcut, dtype) for _ in range(blocks - 1))
    return Sequential(first, *rest)


class BasicBlock(Module):
    """relu(shortcut(x) + norm(conv(relu(norm(conv(x))))))"""

    expansion = 1  # output channels as a multiple of the width

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: Shortcut, dtype: object) -> None:
        self.conv1, self.bn1 = conv3x3(inputs, outputs, stride, dtype), BatchNorm2d(outputs, dtype=dtype)
        self.conv2, self.bn2 = conv3x3(outputs, outputs, 1, dtype), BatchNorm2d(outputs, dtype=dtype)
        same = inputs == outputs and stride == 1
        self.downsample = None if same else shortcut(inputs, outputs, stride, dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(Module):
    """A 1 x 1 convolution to fewer channels, a 3 x 3 convolution, a 1 x 1 convolution back, and the shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, shortcut: Shortcut, dtype: object) -> None:
        outputs = width * self.expansion
        self.conv1, self.bn1 = conv1x1(inputs, width, 1, dtype), BatchNorm2d(width, dtype=dtype)
        self.conv2, self.bn2 = conv3x3(width, width, stride, dtype), BatchNorm2d(width, dtype=dtype)
        self.conv3, self.bn3 = conv1x1(width, outputs, 1, dtype), BatchNorm2d(outputs, dtype=dtype)
        same = inputs == outputs and stride == 1
        self.downsample = None if same else shortcut(inputs, outputs, stride, dtype)

    def forward(self, x: Tensor) -> Tensor:
        h = relu(self.bn2(self.conv2(relu(self.bn1(self.conv1(x))))))
        return relu(self.bn3(self.conv3(h)) + (x if self.downsample is None else self.downsample(x)))


Block = type[BasicBlock] | type[Bottleneck]


def conv3x3(inputs: int, outputs: int, stride: int, dtype: object) -> Conv2d:
    """A 3 x 3 convolution that keeps or halves the image size; it has no bias, since a norm follows."""
    start = init.kaiming_normal(mode="fan_out")
    return Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False, init=start, dtype=dtype)


def projection(inputs: int, outputs: int, stride: int, dtype: object) -> Module:
    """The shortcut of option B: a 1 x 1 convolution and a norm."""
    return Sequential(conv1x1(inputs, outputs, stride, dtype), BatchNorm2d(outputs, dtype=dtype))


def conv1x1(inputs: int, outputs: int, stride: int, dtype: object) -> Conv2d:
    """A 1 x 1 convolution."""
    start = init.kaiming_normal(mode="fan_out")
    return Conv2d(inputs, outputs, 1, stride=stride, bias=False, init=start, dtype=dtype)


class PadChannels(Module):
    """The shortcut of option A: every second pixel, padded with channels of zeros on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int, dtype: object) -> None:
        self.missing, self.stride = outputs - inputs, stride

    def forward(self, x: Tensor) -> Tensor:
        before = self.missing // 2
        around = [(0, 0), (before, self.missing - before), (0, 0), (0, 0)]
        return pad(x[:, :, :: self.stride, :: self.stride], around)
