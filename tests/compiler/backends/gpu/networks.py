"""Networks as people bring them, at the sizes of real images, sentences and batches, with few blocks of each kind.

They are planned, never compiled: what matters is which kernels and shapes occur.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import wholestep as ws
from wholestep import nn
from wholestep.compiler.plan.model.kernel import Plan

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Network:
    """A network with its input, trained in bfloat16 with AdamW and the sum of squares of its scores as loss."""

    make: Callable[[], nn.Module]
    shape: Shape  # of one sample
    batch: int = 32
    dtype: str = "float32"  # of the input
    precision: str = "bfloat16"

    def plan(self, target: str) -> Plan:
        g = ws.Graph()
        x = g.input("x", ("batch", *self.shape), self.dtype)
        scores = self.make()(x)
        scores = scores[0] if isinstance(scores, tuple) else scores
        g.set_outputs({"loss": (scores.astype("float32") ** 2).mean()})
        options = ws.CompileOptions(verify=False, egraph=False, cache=False)
        return ws.build_session(
            g,
            optimizer=ws.AdamW(lr=1e-3),
            batch_size=self.batch,
            device=f"null:{target}",
            precision=self.precision,
            options=options,
        ).plan


class Squeeze(nn.Module):
    """Squeeze and excitation: channels are scaled by a function of their means."""

    def __init__(self, channels: int, hidden: int) -> None:
        self.down, self.up = nn.Conv2d(channels, hidden, 1), nn.Conv2d(hidden, channels, 1)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        means = ws.adaptive_avg_pool2d(x, 1)
        return x * ws.sigmoid(self.up(ws.silu(self.down(means))))


class LastNorm(nn.Module):
    """A layer norm over the channels of images, as in ConvNeXt."""

    def __init__(self, channels: int) -> None:
        self.norm = nn.LayerNorm(channels)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Windows(nn.Module):
    """Attention in windows of 7 x 7 pixels, as in Swin."""

    def __init__(self, width: int, heads: int) -> None:
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiHeadAttention(width, heads)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        n, h, w, c = x.shape
        split = x.reshape((n, h // 7, 7, w // 7, 7, c)).permute(0, 1, 3, 2, 4, 5)
        mixed = self.attention(self.norm(split.reshape((-1, 49, c))))
        joined = mixed.reshape((n, h // 7, w // 7, 7, 7, c)).permute(0, 1, 3, 2, 4, 5)
        return x + joined.reshape((n, h, w, c))


class Dense(nn.Module):
    """A block of DenseNet: every layer reads the results of all before it."""

    def __init__(self, channels: int, growth: int, layers: int) -> None:
        self.units = nn.ModuleList([
            nn.Sequential(nn.BatchNorm2d(channels + i * growth), nn.ReLU(),
                          nn.Conv2d(channels + i * growth, growth, 3, padding=1, bias=False))
            for i in range(layers)
        ])  # fmt: skip

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        for unit in self.units:
            x = ws.concat([x, unit(x)], 1)
        return x


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.Hardswish())


def inverted(inputs: int, hidden: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    """An inverted residual block of MobileNetV3 or EfficientNet, without the residual."""
    return nn.Sequential(unit(inputs, hidden, 1), unit(hidden, hidden, kernel, stride, hidden),
                         Squeeze(hidden, hidden // 4), unit(hidden, outputs, 1))  # fmt: skip


def next_block(width: int) -> nn.Module:
    """A block of ConvNeXt."""
    return nn.Residual(nn.Sequential(
        nn.Conv2d(width, width, 7, padding=3, groups=width), LastNorm(width),
        nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1),
    ))  # fmt: skip


def normed(norm: Callable[[], nn.Module], channels: int = 64) -> Callable[[], nn.Module]:
    """Convolutions with a norm between them."""
    return lambda: nn.Sequential(nn.Conv2d(3, channels, 3, padding=1), norm(), nn.SiLU(),
                                 nn.Conv2d(channels, channels, 3, padding=1), norm(), nn.SiLU())  # fmt: skip


def resized(resize: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A convolution before and after a layer that changes the size of images."""
    return lambda: nn.Sequential(unit(3, 64), resize(), unit(64, 64))


def classifier(body: Callable[[], nn.Module], channels: int, classes: int = 10) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(body(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def embedded(rows: int, width: int = 256) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Embedding(rows, width), nn.LayerNorm(width), nn.Linear(width, width))


def volume() -> nn.Module:
    return nn.Sequential(nn.Conv3d(4, 32, 3, padding=1), nn.BatchNorm3d(32), nn.ReLU(), nn.MaxPool3d(2),
                         nn.Conv3d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU())  # fmt: skip


def signal() -> nn.Module:
    return nn.Sequential(nn.Conv1d(8, 64, 7, padding=3), nn.BatchNorm1d(64), nn.ReLU(), nn.MaxPool1d(4),
                         nn.Conv1d(64, 128, 5, padding=2), nn.BatchNorm1d(128), nn.ReLU(),
                         nn.AdaptiveAvgPool1d(1))  # fmt: skip


NETWORKS: dict[str, Network] = {
    "batch norm": Network(normed(lambda: nn.BatchNorm2d(64)), (3, 112, 112)),
    "batch norm of 144 channels": Network(normed(lambda: nn.BatchNorm2d(144), 144), (3, 56, 56)),
    "batch norm in float32": Network(normed(lambda: nn.BatchNorm2d(64)), (3, 56, 56), precision="tf32"),
    "group norm": Network(normed(lambda: nn.GroupNorm(8, 64)), (3, 64, 64)),
    "group norm of few images": Network(normed(lambda: nn.GroupNorm(32, 320), 320), (3, 64, 64), 2),
    "instance norm": Network(normed(lambda: nn.InstanceNorm2d(64, affine=True)), (3, 128, 128), 8),
    "layer norm of channels": Network(normed(lambda: LastNorm(96), 96), (3, 56, 56)),
    "segmentation head": Network(lambda: nn.Sequential(unit(3, 64), nn.Conv2d(64, 21, 1)), (3, 256, 256), 8),
    "two classes of pixels": Network(lambda: nn.Sequential(unit(3, 64), nn.Conv2d(64, 2, 1)), (3, 256, 256), 16),
    "nearest upsampling": Network(resized(lambda: nn.Upsample(scale=2)), (3, 64, 64)),
    "bilinear upsampling": Network(resized(lambda: nn.UpsamplingBilinear2d(scale_factor=2)), (3, 64, 64)),
    "transposed convolution": Network(resized(lambda: nn.ConvTranspose2d(64, 64, 2, 2)), (3, 64, 64)),
    "adaptive pool": Network(resized(lambda: nn.AdaptiveAvgPool2d(7)), (3, 60, 60)),
    "max pool": Network(resized(lambda: nn.MaxPool2d(3, 2, 1)), (3, 112, 112)),
    "average pool": Network(resized(lambda: nn.AvgPool2d(2)), (3, 112, 112)),
    "pixel shuffle": Network(resized(lambda: nn.Sequential(unit(64, 256), nn.PixelShuffle(2))), (3, 48, 48)),
    "squeeze and excitation": Network(
        classifier(lambda: nn.Sequential(unit(3, 64), Squeeze(64, 16), unit(64, 64), Squeeze(64, 16)), 64),
        (3, 112, 112),
    ),
    "MobileNet-like": Network(
        classifier(lambda: nn.Sequential(unit(3, 16, 3, 2), inverted(16, 64, 24, 3, 2), inverted(24, 72, 40, 5, 2),
                                         inverted(40, 240, 40, 5, 1)), 40), (3, 224, 224), 64),
    "EfficientNet-like": Network(
        classifier(lambda: nn.Sequential(unit(3, 32, 3, 2), inverted(32, 96, 24, 3, 2), inverted(24, 144, 40, 5, 2),
                                         inverted(40, 240, 80, 3, 2)), 80), (3, 224, 224)),
    "ConvNeXt-like": Network(
        classifier(lambda: nn.Sequential(nn.Conv2d(3, 96, 4, 4), LastNorm(96), next_block(96),
                                         nn.Conv2d(96, 192, 2, 2), next_block(192)), 192), (3, 224, 224)),
    "ResNeXt-like": Network(
        classifier(lambda: nn.Sequential(unit(3, 64, 7, 4), unit(64, 128, 1), unit(128, 128, 3, 1, 32),
                                         unit(128, 256, 1), nn.MaxPool2d(2)), 256), (3, 224, 224)),
    "DenseNet-like": Network(
        classifier(lambda: nn.Sequential(unit(3, 64, 7, 4), Dense(64, 32, 12), unit(448, 96, 1)), 96), (3, 224, 224)),
    "ResNet-50": Network(lambda: ws.models.resnet50(), (3, 224, 224), 64),
    "VGG-11": Network(lambda: ws.models.vgg11(), (3, 224, 224)),
    "MobileNetV2": Network(lambda: ws.models.mobilenet_v2(), (3, 224, 224), 64),
    "U-Net": Network(lambda: ws.models.unet(3, 2), (3, 256, 256), 8),
    "ViT-like": Network(lambda: ws.models.vit(image=224, patch=16, width=768, layers=2, heads=12), (3, 224, 224)),
    "Swin-like": Network(lambda: nn.Sequential(Windows(96, 3), Windows(96, 3)), (56, 56, 96)),
    "BERT-like": Network(
        lambda: ws.models.bert(layers=2, width=768, heads=12, vocabulary=30522), (128,), 32, "int32"),
    "GPT-2-like": Network(
        lambda: ws.models.gpt2(layers=2, width=768, heads=12, vocabulary=50257, context=512), (512,), 8, "int32"),
    "Llama-like": Network(
        lambda: ws.models.llama(layers=2, width=768, heads=12, kv_heads=4, vocabulary=32000), (512,), 8, "int32"),
    "LSTM": Network(lambda: ws.models.lstm_lm(10_000, width=512, layers=1), (64,), 64, "int32"),
    "GRU": Network(lambda: nn.GRU(64, 256), (48, 64), 256, precision="float32"),
    "1-d convolutions": Network(signal, (8, 4096), 64),
    "3-d convolutions": Network(volume, (4, 16, 64, 64), 8),
    "2 embeddings": Network(embedded(2), (128,), 64, "int32"),
    "1,000 embeddings": Network(embedded(1000), (128,), 64, "int32"),
    "50,000 embeddings": Network(embedded(50_000), (128,), 64, "int32"),
}  # fmt: skip
