"""Networks of torch, trained by `ws.fit` beside torch itself; what they predict, save, load and give back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from tests.compilers import quick


class Residual(nn.Module):
    """Convolutions, batch norm, a depthwise one, a skip, pools."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False), nn.BatchNorm2d(4), nn.ReLU6())
        self.head = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(self.stem(x), 2)
        return self.head(F.adaptive_avg_pool2d(x + self.deep(x), 1).flatten(1))


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, joined."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, 2, 1)
        self.up, self.norm, self.out = nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x: Any) -> Any:
        a = F.silu(self.down(x))
        b = self.up(F.gelu(self.middle(a)))
        c = F.interpolate(F.avg_pool2d(a, 2), scale_factor=2, mode="bilinear")
        return self.out(self.norm(torch.cat([a + c, b], 1))).mean((2, 3))


class Language(nn.Module):
    """Tokens, positions, causal attention, tied weights, padding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Embedding(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.tokens.weight
        self.unused = nn.Linear(3, 3)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6) < 0, persistent=False)

    def forward(self, tokens: Any) -> Any:
        h = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.out(self.body(h, mask=self.mask, is_causal=True))[:, -1]


class Pair(nn.Module):
    """Encoder and decoder, by two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.out = nn.Linear(8, 3)

    def forward(self, source: Any, target: Any) -> Any:
        return self.out(self.inner(target, source).mean(1))


class Recurrent(nn.Module):
    """Two layers in both directions, and a third kind behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
        self.then, self.last = nn.GRU(8, 5, batch_first=True), nn.RNN(5, 3, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.last(self.then(self.first(x)[0])[0])[1][0]


class Teacher(nn.Module):
    """What is detached, what is under no_grad, a weight norm, a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
        self.teacher, self.frozen = nn.Linear(4, 3), nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        y = self.student(x)
        with torch.no_grad():
            wanted = self.teacher(x)
        if self.training:
            self.seen.mul_(0.9).add_(0.1 * y.detach().mean(0))
        return y * self.frozen - 0.1 * wanted + self.seen * y.detach()


def _images() -> Any:
    return np.random.default_rng(0).normal(size=(12, 1, 8, 8)).astype(np.float32)


def _rows(*shape: int) -> Any:
    return np.random.default_rng(1).normal(size=(12, *shape)).astype(np.float32)


NETWORKS: dict[str, tuple[type[nn.Module], Any]] = {
    "residual": (Residual, _images),
    "u-net": (UNet, _images),
    "language": (Language, lambda: np.random.default_rng(2).integers(0, 11, (12, 6))),
    "pair": (Pair, lambda: {"source": _rows(4, 8), "target": _rows(3, 8)}),
    "recurrent": (Recurrent, lambda: _rows(5, 3)),
    "teacher": (Teacher, lambda: _rows(4)),
}


def _as_torch(data: Any) -> tuple[Any, ...]:
    return tuple(map(torch.from_numpy, data.values())) if isinstance(data, dict) else (torch.from_numpy(data),)


def _trained_by_torch(module: nn.Module, data: Any, labels: Any, epochs: int) -> list[float]:
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], 0.01, weight_decay=0.1)
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(*_as_torch(data)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_as_in_torch(name: str) -> None:
    kind, data = NETWORKS[name][0], NETWORKS[name][1]()
    torch.manual_seed(0)
    module = kind().double()
    data = {k: v.astype(np.float64) for k, v in data.items()} if isinstance(data, dict) else data
    data = data.astype(np.float64) if not isinstance(data, dict) and data.dtype == np.float32 else data
    labels = np.arange(12) % 3
    example = {k: v[:1] for k, v in data.items()} if isinstance(data, dict) else data[:1]
    net = ws.from_torch(module, example)
    before = net.state_dict()
    assert before.keys() == module.state_dict().keys()
    for key, value in module.state_dict().items():
        np.testing.assert_array_equal(before[key], value.numpy())

    history = ws.fit(
        net, (data, labels), loss="cross_entropy", optimizer=ws.AdamW(lr=0.01, weight_decay=0.1, decay_on=("*",)),
        epochs=4, batch_size=12, shuffle=False, progress=False, options=quick(),
    )  # fmt: skip
    theirs = _trained_by_torch(module, data, labels, 4)

    np.testing.assert_allclose(history["loss"], theirs, rtol=1e-9)
    for key, value in module.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[key], value.numpy(), 1e-8, 1e-9, err_msg=key)
    module.eval()
    with torch.no_grad():
        wanted = module(*_as_torch({k: v[:5] for k, v in data.items()} if isinstance(data, dict) else data[:5])).numpy()
    given = net.predict(**{k: v[:5] for k, v in data.items()}) if isinstance(data, dict) else net.predict(data[:5])
    np.testing.assert_allclose(given, wanted, 1e-8, 1e-9)
