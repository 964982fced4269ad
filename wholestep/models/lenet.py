"""LeNet-5: "Gradient-based learning applied to document recognition", LeCun et al. 1998, with ReLU and max pooling."""

from __future__ import annotations

from wholestep.compiler.frontend.functions.primitives import relu
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn import Conv2d, Flatten, Linear, MaxPool2d, Module


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
