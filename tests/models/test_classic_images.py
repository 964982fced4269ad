"""AlexNet and VGG against torch twins written here: torchvision's names and counts, values and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from tests.nn.twins import assert_twins

RNG = np.random.default_rng(0)


class AlexTwin(nn.Module):
    def __init__(self, w: int, hidden: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, w, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(w, 3 * w, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
            nn.Conv2d(3 * w, 6 * w, 3, padding=1), nn.ReLU(), nn.Conv2d(6 * w, 4 * w, 3, padding=1), nn.ReLU(),
            nn.Conv2d(4 * w, 4 * w, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        )  # fmt: skip
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            nn.Dropout(0.0), nn.Linear(4 * w * 36, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, hidden),
            nn.ReLU(), nn.Linear(hidden, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


class VGGTwin(nn.Module):
    def __init__(self, plan: list[int | str], batch_norm: bool, hidden: int) -> None:
        super().__init__()
        layers, inputs = [], 3
        for entry in plan:
            if entry == "M":
                layers += [nn.MaxPool2d(2, 2)]
            else:
                layers += [nn.Conv2d(inputs, entry, 3, padding=1)]
                layers += [nn.BatchNorm2d(entry)] if batch_norm else []
                layers += [nn.ReLU()]
                inputs = entry
        self.features, self.avgpool = nn.Sequential(*layers), nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(inputs * 49, hidden), nn.ReLU(), nn.Dropout(0.0), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Dropout(0.0), nn.Linear(hidden, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.avgpool(self.features(x)).flatten(1))


def test_alexnet_is_torchs() -> None:
    torch.manual_seed(0)
    ours = ws.models.alexnet(classes=5, dropout=0.0, width=4, hidden=8)
    assert_twins(ours, AlexTwin(4, 8), [RNG.normal(size=(2, 3, 63, 70))], "float64", device="reference")


@pytest.mark.parametrize("batch_norm", [False, True])
def test_vgg_is_torchs(batch_norm: bool) -> None:
    torch.manual_seed(0)
    ours = ws.models.vgg11(classes=5, batch_norm=batch_norm, dropout=0.0, width=2, hidden=8)
    plan = [2, "M", 4, "M", 8, 8, "M", 16, 16, "M", 16, 16, "M"]
    assert_twins(ours, VGGTwin(plan, batch_norm, 8), [RNG.normal(size=(2, 3, 32, 37))], "float64", device="reference")


# torchvision's own counts, from its documentation.
PUBLISHED = {
    "alexnet": 61_100_840,
    "vgg11": 132_863_336,
    "vgg13": 133_047_848,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_as_many_as_published(name: str) -> None:
    model = getattr(ws.models, name)()
    assert sum(p.elements for p in model.parameters().values()) == PUBLISHED[name]


def test_vgg_starts_as_torchvisions() -> None:
    numbers = ws.models.vgg11(classes=10, width=32, hidden=64).state_dict()
    assert abs(numbers["features.3.weight"].std() / (2 / (64 * 9)) ** 0.5 - 1) < 0.05
    assert abs(numbers["classifier.0.weight"].std() / 0.01 - 1) < 0.05
    assert all((a == 0).all() for name, a in numbers.items() if name.endswith("bias"))


def test_a_small_vgg_learns_through_fit_with_dropout_in_half_precision() -> None:
    x = RNG.normal(size=(16, 3, 32, 32)).astype(np.float32)
    labels = (x.mean((1, 2, 3)) > 0).astype(np.int32)
    x += labels[:, None, None, None] * 0.5
    history = ws.fit(
        ws.models.vgg11(classes=2, batch_norm=True, dropout=0.1, width=4, hidden=16), (x, labels), loss="cross_entropy",
        epochs=6, batch_size=8, precision="bfloat16", device="reference", optimizer=ws.Adam(lr=3e-3),
    )  # fmt: skip
    assert history["loss"][-1] < 0.8 * history["loss"][0]


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(ws.errors.ShapeError, match=r"alexnet takes images .* at least 63 x 63 pixels; received"):
        ws.models.alexnet(width=2, hidden=4).predict(np.zeros((1, 3, 32, 32), np.float32))
    with pytest.raises(ws.errors.ShapeError, match=r"vgg16 takes images .* at least 32 x 32 pixels"):
        ws.models.vgg16(width=2, hidden=4).predict(np.zeros((1, 3, 28, 28), np.float32))
