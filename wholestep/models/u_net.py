"""U-Net: "Convolutional networks for biomedical image segmentation", Ronneberger et al. 2015 (arXiv:1505.04597).

As it is used today: convolutions keep the size and are followed by norms.
"""

from __future__ import annotations

from itertools import pairwise

from wholestep.compiler.frontend.functions.primitives import concat
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn import BatchNorm2d, Conv2d, ConvTranspose2d, MaxPool2d, Module, ReLU, Sequential
from wholestep.nn.layers.linear import positive


def unet(inputs: int = 3, outputs: int = 2, width: int = 64, depth: int = 4, dtype: object = "float32") -> UNet:
    """A U-Net whose output has the size of the image: a score for each pixel and class.

    Args:
        width: channels of the first level; each one below has twice as many.
        depth: the number of times that the image is halved.

    Example: `ws.models.unet(inputs=1, outputs=2, width=16, depth=3)`.
    """
    return UNet(inputs, outputs, width, depth, dtype)


class UNet(Module):
    """Images (batch, inputs, H, W) -> scores (batch, outputs, H, W)."""

    def __init__(self, inputs: int, outputs: int, width: int, depth: int, dtype: object) -> None:
        positive("unet", inputs=inputs, outputs=outputs, width=width, depth=depth)
        levels = [width * 2**i for i in range(depth + 1)]
        self.first = double(inputs, width, dtype)
        self.down = [double(a, b, dtype) for a, b in pairwise(levels)]
        self.pool = MaxPool2d(2)
        self.up = [ConvTranspose2d(2 * n, n, 2, stride=2, dtype=dtype) for n in reversed(levels[:-1])]
        self.join = [double(2 * n, n, dtype) for n in reversed(levels[:-1])]
        self.last = Conv2d(width, outputs, 1, dtype=dtype)
        self.depth = depth

    def forward(self, x: Tensor) -> Tensor:
        if any(isinstance(n, int) and n % 2**self.depth for n in x.shape[2:]):
            fail(
                ShapeError,
                f"unet halves images {self.depth} times: height and width are multiples of {2**self.depth}; received "
                f"{shape_text(x.shape)}.",
            )
        seen = [self.first(x)]
        for level in self.down:
            seen.append(level(self.pool(seen[-1])))
        x = seen.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(concat([seen.pop(), up(x)], 1))
        scores: Tensor = self.last(x)
        return scores


def double(inputs: int, outputs: int, dtype: object) -> Sequential:
    """Two times a convolution, a norm and ReLU."""
    return Sequential(
        Conv2d(inputs, outputs, 3, padding=1, bias=False, dtype=dtype), BatchNorm2d(outputs, dtype=dtype), ReLU(),
        Conv2d(outputs, outputs, 3, padding=1, bias=False, dtype=dtype), BatchNorm2d(outputs, dtype=dtype), ReLU(),
    )  # fmt: skip
