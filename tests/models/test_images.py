"""LeNet-5 and ResNets against torch twins written here: same weights, loss, every gradient, statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from tests.nn.twins import assert_twins
from wholestep.errors import OptionError

RNG = np.random.default_rng(0)
DIGITS, TINY = RNG.normal(size=(5, 1, 28, 28)), RNG.normal(size=(4, 3, 8, 8))


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        out: torch.Tensor = self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))
        return out


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, option: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.more, self.stride = outputs - inputs, stride
        self.downsample = None
        if option == "B" and (stride != 1 or self.more):
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.downsample is not None:
            x = self.downsample(x)
        elif self.more:
            before = self.more // 2
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.more - before))
        return F.relu(x + y)


class CifarTwin(nn.Module):
    def __init__(self, n: int, option: str) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(*(Block(i if not b else o, o, s if not b else 1, option) for b in range(n)))
            for i, o, s in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        out: torch.Tensor = self.linear(x.mean((2, 3)))
        return out


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int, option: str) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class ImageNetTwin(nn.Module):
    def __init__(
        self, kind: Any = Block, counts: tuple[int, ...] = (2, 2, 2, 2), classes: int = 7, small: bool = False
    ) -> None:
        super().__init__()
        each = 4 if kind is Bottleneck else 1
        self.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False) if small else nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1, self.small = nn.BatchNorm2d(64), small
        self.layer1, self.layer2, self.layer3, self.layer4 = (
            nn.Sequential(kind(i, o, s, "B"), *(kind(each * o, o, 1, "B") for _ in range(n - 1)))
            for n, i, o, s in zip(
                counts, (64, 64 * each, 128 * each, 256 * each), (64, 128, 256, 512), (1, 2, 2, 2), strict=True
            )
        )
        self.fc = nn.Linear(512 * each, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = x if self.small else F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: torch.Tensor = self.fc(x.mean((2, 3)))
        return out


def resnet8(option: str) -> ws.nn.Module:
    return ws.models.CifarResNet(1, 10, option, "float32")


def slow(*row: Any, id: str) -> Any:
    return pytest.param(*row, marks=pytest.mark.long, id=id)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("ours", "theirs", "x"),
    [
        pytest.param(ws.models.lenet5, LeNet, DIGITS, id="lenet5"),
        pytest.param(lambda: resnet8("A"), lambda: CifarTwin(1, "A"), TINY, id="resnet8"),
        slow(lambda: resnet8("B"), lambda: CifarTwin(1, "B"), TINY, id="resnet8, option B"),
        slow(ws.models.resnet20, lambda: CifarTwin(3, "A"), RNG.normal(size=(4, 3, 32, 32)), id="resnet20"),
        slow(ws.models.resnet32, lambda: CifarTwin(5, "A"), TINY, id="resnet32"),
        slow(ws.models.resnet56, lambda: CifarTwin(9, "A"), TINY, id="resnet56"),
        slow(lambda: ws.models.resnet18(7), ImageNetTwin, RNG.normal(size=(3, 3, 64, 64)), id="resnet18"),
        slow(
            lambda: ws.models.ResNet((1, 1, 1, 1), ws.models.resnet.Bottleneck, 7, "float32", "3x3"),
            lambda: ImageNetTwin(Bottleneck, (1, 1, 1, 1), small=True),
            TINY,
            id="bottlenecks for small images",
        ),
    ],
)
def test_a_model_equals_its_twin(
    ours: Callable[[], ws.nn.Module], theirs: Callable[[], nn.Module], x: np.ndarray, dtype: str
) -> None:
    torch.manual_seed(0)
    assert_twins(ours(), theirs(), [x], dtype)


@pytest.mark.parametrize(
    ("model", "twin", "millions"),
    [
        (ws.models.resnet20(), CifarTwin(3, "A"), 0.27),
        (ws.models.resnet32(), CifarTwin(5, "A"), 0.46),
        (ws.models.resnet56(option="B"), CifarTwin(9, "B"), 0.86),
        (ws.models.resnet18(7), ImageNetTwin(), 11.18),
        (ws.models.resnet18(7, stem="3x3"), ImageNetTwin(small=True), 11.172),
        (ws.models.resnet34(), ImageNetTwin(Block, (3, 4, 6, 3), 1000), 21.797672),
        (ws.models.resnet50(), ImageNetTwin(Bottleneck, (3, 4, 6, 3), 1000), 25.557032),
    ],
)
def test_names_and_shapes_are_torchs(model: ws.nn.Module, twin: nn.Module, millions: float) -> None:
    ours = {name: p.shape for name, p in model.named_arrays().items()}
    theirs = {name: tuple(t.shape) for name, t in twin.state_dict().items() if "num_batches_tracked" not in name}
    assert ours == theirs
    assert sum(p.elements for p in model.parameters().values()) / 1e6 == pytest.approx(millions, abs=0.006)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.models.lenet5()(np.zeros((2, 1, 32, 32), "f")), r"lenet5 takes images \(batch, 1, 28, 28\)"),
        (lambda: ws.models.resnet20(option="C"), "option 'A' or 'B'; received 'C'"),
        (lambda: ws.models.resnet20()(np.zeros((2, 1, 8, 8), "f")), r"takes 3 channels, \(N, 3, H, W\); received"),
        (
            lambda: ws.nn.Conv2d(1, 2, 5)(np.zeros((2, 1, 4, 4), "f")),
            "a window of 5 x 5 is larger than the image of 4 x 4",
        ),
        (lambda: ws.nn.Conv2d(4, 6, 3, groups=4), "groups=4 must divide 4 inputs and 6 outputs"),
        (lambda: ws.nn.BatchNorm2d(3)(np.zeros((2, 3), "f")), r"3 channels, \(N, 3, H, W\); received \(batch, 3\)"),
        (lambda: ws.nn.BatchNorm1d(3)(np.zeros((2, 4), "f")), r"takes 3 channels, \(N, 3\) or \(N, 3, L\); received"),
        (lambda: ws.nn.Conv1d(2, 3, 3)(np.zeros((2, 2, 4, 4), "f")), r"takes 2 channels, \(N, 2, L\); received"),
        (
            lambda: ws.nn.MultiHeadAttention(12, 4, rotary=True),
            "turn pairs of features, but 12 in 4 heads leaves 3 each",
        ),
        (
            lambda: ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=9, context=4)(np.zeros((1, 5), "i")),
            "5 tokens are more than its context of 4",
        ),
        (lambda: ws.nn.Embedding(3, 2)(np.array([[0, 3]])), "indices from 0 to 2; received 3 at position 0, 1"),
    ],
)
def test_errors_teach(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()


def test_a_stem_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="the stem of a ResNet is '7x7', or '3x3' for small images; received '5x5'"):
        ws.models.resnet18(stem="5x5")
