"""ConvNeXt: "A ConvNet for the 2020s", Liu et al. 2022 (arXiv:2201.03545).

The layers, names and initial weights are torchvision's.
"""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn import GELU, Conv2d, DropPath, Flatten, GlobalAvgPool2d, Lambda, LayerNorm, Linear, Module, Sequential
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

SIZES = {  # blocks and channels of each stage, section 3: figure 2 of the paper
    "tiny": ((3, 3, 9, 3), (96, 192, 384, 768), 0.1),
    "small": ((3, 3, 27, 3), (96, 192, 384, 768), 0.4),
    "base": ((3, 3, 27, 3), (128, 256, 512, 1024), 0.5),
    "large": ((3, 3, 27, 3), (192, 384, 768, 1536), 0.5),
}
EPS = 1e-6


def convnext(
    size: str = "tiny",
    classes: int = 1000,
    *,
    blocks: tuple[int, ...] | None = None,
    widths: tuple[int, ...] | None = None,
    drop_path: float | None = None,
    layer_scale: float = 1e-6,
    dtype: object = "float32",
) -> ConvNeXt:
    """A ConvNeXt for images of about 224 x 224; "tiny" has 28.6 M parameters.

    Args:
        size: "tiny", "small", "base" or "large".
        blocks: blocks of each stage, instead of the default of the size.
        widths: channels of each stage, instead of the default of the size.
        drop_path: the probability with which the last block is left out in training; it grows linearly up to it.
        layer_scale: the first factor of the channels of a block (arXiv:2103.17239).

    Example: `ws.models.convnext(classes=10)`.
    """
    if size not in SIZES:
        fail(OptionError, f"convnext: the sizes are {', '.join(SIZES)}; received {size!r}.")
    counts, channels, rate = SIZES[size]
    rate = rate if drop_path is None else drop_path
    return ConvNeXt(blocks or counts, widths or channels, classes, rate, layer_scale, dtype)


class ConvNeXt(Module):
    """Images (batch, 3, H, W) -> scores (batch, classes)."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        classes: int,
        drop_path: float,
        layer_scale: float,
        dtype: object,
    ) -> None:
        positive("convnext", classes=classes)
        if len(blocks) != len(widths):
            fail(
                OptionError, f"convnext: {len(blocks)} numbers of blocks and {len(widths)} widths; give one per stage."
            )
        layers: list[Module] = [Sequential(convolution(3, widths[0], 4, 4, 0, 1, dtype), norm(widths[0], dtype))]
        done, last = 0, max(1, sum(blocks) - 1)
        for stage, (count, width) in enumerate(zip(blocks, widths, strict=True)):
            if stage:
                before = widths[stage - 1]
                layers.append(Sequential(norm(before, dtype), convolution(before, width, 2, 2, 0, 1, dtype)))
            rates = [drop_path * (done + i) / last for i in range(count)]
            layers.append(Sequential(*(Block(width, rate, layer_scale, dtype) for rate in rates)))
            done += count
        self.features, self.avgpool = Sequential(*layers), GlobalAvgPool2d()
        self.classifier = Sequential(
            LayerNorm(widths[-1], eps=EPS, dtype=dtype), Flatten(), linear(widths[-1], classes, dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.avgpool(self.features(x)))
        return scores


class Block(Module):
    """x + drop_path(scale · linear(gelu(linear(norm(depthwise(x)))))), with channels last between the two."""

    def __init__(self, width: int, rate: float, scale: float, dtype: object) -> None:
        self.layer_scale = parameter((width, 1, 1), scale, dtype)
        self.block = Sequential(
            convolution(width, width, 7, 1, 3, width, dtype), Lambda(channels_last),
            LayerNorm(width, eps=EPS, dtype=dtype), linear(width, 4 * width, dtype), GELU(),
            linear(4 * width, width, dtype), Lambda(channels_first),
        )  # fmt: skip
        self.stochastic_depth = DropPath(rate)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.stochastic_depth(self.layer_scale * self.block(x))  # type: ignore[no-any-return]


def channels_last(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, H, W, C)"""
    return x.permute(0, 2, 3, 1)


def channels_first(x: Tensor) -> Tensor:
    """(N, H, W, C) -> (N, C, H, W)"""
    return x.permute(0, 3, 1, 2)


class ChannelNorm(LayerNorm):
    """A layer norm over the channels of images (N, C, H, W)."""

    def forward(self, x: Tensor) -> Tensor:
        return channels_first(super().forward(channels_last(x)))


def norm(width: int, dtype: object) -> ChannelNorm:
    return ChannelNorm(width, eps=EPS, dtype=dtype)


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int, padding: int, groups: int, dtype: object
) -> Conv2d:
    out = Conv2d(
        inputs,
        outputs,
        kernel,
        stride=stride,
        padding=padding,
        groups=groups,
        init=init.trunc_normal(std=0.02),
        dtype=dtype,
    )
    out.bias = parameter((outputs,), 0.0, dtype)
    return out


def linear(inputs: int, outputs: int, dtype: object) -> Linear:
    out = Linear(inputs, outputs, init=init.trunc_normal(std=0.02), dtype=dtype)
    out.bias = parameter((outputs,), 0.0, dtype)
    return out
