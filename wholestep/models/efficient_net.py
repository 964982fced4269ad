"""EfficientNet: "Rethinking model scaling for convolutional neural networks", Tan and Le 2019 (arXiv:1905.11946).

The layers, names and initial weights are torchvision's.
"""

from __future__ import annotations

import math

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.models.mobile_net import round_channels
from wholestep.models.mobile_net_v3 import EPS, InvertedResidual, SqueezeExcite, unit
from wholestep.nn import Dropout, GlobalAvgPool2d, Linear, Module, Sequential, Sigmoid, SiLU
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

STAGES = (  # expansion, kernel, stride, channels, blocks: table 1 of the paper
    (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)  # fmt: skip
SCALES = (  # width, depth, dropout and the epsilon of the norms, of B0 to B7
    (1.0, 1.0, 0.2, 1e-5), (1.0, 1.1, 0.2, 1e-5), (1.1, 1.2, 0.3, 1e-5), (1.2, 1.4, 0.3, 1e-5),
    (1.4, 1.8, 0.4, 1e-5), (1.6, 2.2, 0.4, EPS), (1.8, 2.6, 0.5, EPS), (2.0, 3.1, 0.5, EPS),
)  # fmt: skip


def efficientnet(
    scale: int = 0,
    classes: int = 1000,
    *,
    dropout: float | None = None,
    drop_path: float = 0.2,
    dtype: object = "float32",
) -> EfficientNet:
    """EfficientNet-B0 to B7, for images of 224 x 224 (B0) to 600 x 600; B0 has 5.3 M parameters.

    Args:
        scale: 0 to 7.
        dropout: the rate before the scores, instead of the rate of the scale.
        drop_path: the probability with which the last block is left out in training; it grows linearly up to it.

    Example: `ws.models.efficientnet(0, classes=10)`.
    """
    if scale not in range(len(SCALES)):
        fail(OptionError, f"efficientnet: the scale is 0 to {len(SCALES) - 1}; received {scale!r}.")
    width, depth, rate, eps = SCALES[scale]
    return EfficientNet(width, depth, rate if dropout is None else dropout, eps, classes, drop_path, dtype)


class EfficientNet(Module):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    def __init__(
        self, width: float, depth: float, dropout: float, eps: float, classes: int, drop_path: float, dtype: object
    ) -> None:
        positive("efficientnet", classes=classes)
        counts = [math.ceil(blocks * depth) for *_, blocks in STAGES]
        inputs, done = round_channels(32 * width), 0
        layers: list[Module] = [unit(3, inputs, 3, 2, 1, SiLU(), eps, dtype)]
        for (expansion, kernel, stride, channels, _), count in zip(STAGES, counts, strict=True):
            outputs, blocks = round_channels(channels * width), list[Module]()
            for i in range(count):
                rate = drop_path * done / sum(counts)
                blocks.append(block(inputs, outputs, expansion, kernel, 1 if i else stride, rate, eps, dtype))
                inputs, done = outputs, done + 1
            layers.append(Sequential(*blocks))
        self.features = Sequential(*layers, unit(inputs, 4 * inputs, 1, 1, 1, SiLU(), eps, dtype))
        self.avgpool = GlobalAvgPool2d()
        limit = 1.0 / math.sqrt(classes)
        scores = Linear(4 * inputs, classes, init=init.uniform(-limit, limit), dtype=dtype)
        scores.bias = parameter((classes,), 0.0, dtype)
        self.classifier = Sequential(Dropout(dropout), scores)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.avgpool(self.features(x)))
        return scores


def block(
    inputs: int, outputs: int, expansion: int, kernel: int, stride: int, rate: float, eps: float, dtype: object
) -> InvertedResidual:
    """An inverted residual, squeezed to a quarter of its input channels."""
    inner = round_channels(inputs * expansion)
    parts: list[Module] = [] if inner == inputs else [unit(inputs, inner, 1, 1, 1, SiLU(), eps, dtype)]
    parts.append(unit(inner, inner, kernel, stride, inner, SiLU(), eps, dtype))
    parts.append(SqueezeExcite(inner, max(1, inputs // 4), SiLU(), Sigmoid(), dtype))
    parts.append(unit(inner, outputs, 1, 1, 1, None, eps, dtype))
    return InvertedResidual(parts, stride == 1 and inputs == outputs, rate)
