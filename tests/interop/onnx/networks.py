"""Small networks of every kind, for what is exported and comes back."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep import nn


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        self.down = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.SiLU(), nn.GroupNorm(2, 4))
        self.up = nn.Sequential(nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1))

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return ws.sigmoid(self.up(self.down(x)))


class Gated(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(4, 3), nn.Linear(5, 3)

    def forward(self, left: ws.Tensor, right: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        y = self.a(left) * ws.tanh(self.b(right))
        return y, y.sum(1)


class Odds(nn.Module):
    """What has no operator of its own in ONNX, and sizes that are computed."""

    def __init__(self) -> None:
        self.norm, self.scale = nn.RMSNorm(6), nn.Parameter((6,), init=0.5)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        batch, width = x.shape
        y = ws.log1p(ws.expm1(ws.abs(self.norm(x)))) + ws.log2(ws.exp2(x)) + ws.mod(x, 0.7)
        y = ws.where(ws.iota((batch, width), 1) < 3, y, self.scale.expand(batch, width)) + ws.logsumexp(x, 1)[:, None]
        y = y + ws.losses.binary_cross_entropy_with_logits_loss(x, ws.sigmoid(y), reduction="none")
        both = ws.concat([y, ws.pad(y, [(0, 0), (1, 1)])[:, ::2]], 1)  # (batch, 10)
        wide = both.reshape(batch, 2, 5).transpose(0, 1).reshape(2 * batch, 5)
        sums = ws.scatter_add(wide.T, ws.constant(np.array([0, 2, 2, 1, 0])), 3)  # (3, 2 · batch)
        picked = sums.T.reshape(2, batch, 3).sum(0) / ws.size(batch).astype("float32")
        return picked.max(1) + x.argmax(1).astype("float32")


def small_networks() -> dict[str, tuple[nn.Module, tuple[np.ndarray, ...]]]:
    """Name -> a network and what it is called on."""
    draw = np.random.default_rng(0)

    def floats(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype(np.float32)

    def tokens(*shape: int) -> np.ndarray:
        return draw.integers(0, 11, shape).astype(np.int64)

    convolutions = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4, momentum=0.2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)),
    )
    return {
        "mlp": (nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, 3)), (floats(3, 6),)),
        "lenet": (ws.models.lenet5(), (floats(2, 1, 28, 28),)),
        "resnet": (ws.models.CifarResNet(1, 5, "A", "float32"), (floats(2, 3, 8, 8),)),
        "gpt": (ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=11, context=6), (tokens(2, 5),)),
        "lstm": (nn.LSTM(4, 3, num_layers=2, batch_first=True), (floats(2, 5, 4),)),
        "gru": (nn.GRU(4, 3, bidirectional=True, batch_first=True), (floats(2, 5, 4),)),
        "vgg": (convolutions, (floats(2, 3, 8, 8),)),
        "autoencoder": (Autoencoder(), (floats(2, 3, 8, 8),)),
        "attention": (nn.TransformerBlock(8, 2, 16), (floats(2, 5, 8),)),
        "gated": (Gated(), (floats(2, 4), floats(2, 5))),
        "odds": (Odds(), (floats(3, 6),)),
    }


def flat(value: Any) -> list[np.ndarray]:
    """The arrays of tuples and dicts, in order."""
    if isinstance(value, dict):
        value = tuple(value.values())
    return [a for v in value for a in flat(v)] if isinstance(value, tuple | list) else [value]
