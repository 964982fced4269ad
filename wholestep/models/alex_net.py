"""AlexNet: "One weird trick for parallelizing convolutional neural networks", Krizhevsky 2014 (arXiv:1404.5997).

The layers and names are torchvision's.
"""

from __future__ import annotations

from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn import AdaptiveAvgPool2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Module, ReLU, Sequential
from wholestep.nn.layers.linear import positive


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
