"""Layers of images, signals and volumes against torch's; a network of them learns, on every device and in half."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from tests.nn.twins import assert_twins
from tests.support.compilers import quick

RNG = np.random.default_rng(0)
SIGNALS, IMAGES, VOLUMES = RNG.normal(size=(2, 3, 9)), RNG.normal(size=(2, 4, 6, 5)), RNG.normal(size=(2, 2, 3, 4, 5))


class TorchSeparable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(4, 8, 3, padding=1, groups=4, bias=False)
        self.pointwise = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pointwise(self.depthwise(x))


def same(name: str, *arguments: object, **options: object) -> tuple[Callable[[], object], Callable[[], object]]:
    """A layer that both packages have under one name and call alike."""
    return lambda: getattr(ws.nn, name)(*arguments, **options), lambda: getattr(nn, name)(*arguments, **options)


LAYERS: dict[str, tuple[tuple[Callable[[], object], Callable[[], object]], np.ndarray]] = {
    "conv transpose 1d": (same("ConvTranspose1d", 3, 4, 3, 2, 1, 1), SIGNALS),
    "conv transpose 2d": (same("ConvTranspose2d", 4, 6, (3, 2), 2, 1, output_padding=1, groups=2), IMAGES),
    "conv transpose 3d": (same("ConvTranspose3d", 2, 3, 2, stride=2, bias=False), VOLUMES),
    "conv3d": (same("Conv3d", 2, 3, 3, padding=1), VOLUMES),
    "separable conv": (
        (lambda: ws.nn.SeparableConv2d(4, 3, 3, padding="same", multiplier=2), TorchSeparable), IMAGES
    ),
    "max pool 1d": (same("MaxPool1d", 3, 2, 1), SIGNALS),
    "max pool 3d": (same("MaxPool3d", 2), VOLUMES),
    "max pool, ceil": (same("MaxPool2d", 2, ceil_mode=True), IMAGES),
    "average pool 1d": (same("AvgPool1d", 2), SIGNALS),
    "average pool 3d": (same("AvgPool3d", 2, 1, 1), VOLUMES),
    "adaptive average pool": (same("AdaptiveAvgPool2d", (4, 2)), IMAGES),
    "adaptive average pool 1d": (same("AdaptiveAvgPool1d", 4), SIGNALS),
    "adaptive max pool": (same("AdaptiveMaxPool2d", 3), IMAGES),
    "adaptive max pool 1d": (same("AdaptiveMaxPool1d", 3), SIGNALS),
    "upsample": ((lambda: ws.nn.Upsample(scale=2), lambda: nn.Upsample(scale_factor=2)), IMAGES),
    "upsample, bilinear": (same("Upsample", (9, 7), mode="bilinear", align_corners=True), IMAGES),
    "pixel shuffle": (same("PixelShuffle", 2), IMAGES),
    "pixel unshuffle": (same("PixelUnshuffle", 1), IMAGES),
    **{f"{kind} 2d": (same(f"{kind}2d", (1, 2, 3, 0)), IMAGES)
       for kind in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")},
    **{f"{kind} 1d": (same(f"{kind}1d", 2), SIGNALS)
       for kind in ("ZeroPad", "ReflectionPad", "ReplicationPad", "CircularPad")},
    "instance norm 1d": (same("InstanceNorm1d", 3), SIGNALS),
    "instance norm 2d": (same("InstanceNorm2d", 4, affine=True), IMAGES),
    "instance norm 3d": (same("InstanceNorm3d", 2), VOLUMES),
    "batch norm 3d": (same("BatchNorm3d", 2), VOLUMES),
}  # fmt: skip


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_equals_torchs(layer: str) -> None:
    torch.manual_seed(0)
    (ours, theirs), x = LAYERS[layer]
    assert_twins(ours(), theirs(), [x], "float64", device="reference")  # type: ignore[arg-type]


def test_global_pools_give_one_number_for_each_channel() -> None:
    for name, x in (("1d", SIGNALS), ("2d", IMAGES)):
        axes = tuple(range(2, x.ndim))
        x = x.astype("float32")
        given = getattr(ws.nn, f"GlobalMaxPool{name}")().predict(x, device="reference")
        np.testing.assert_array_equal(given, x.max(axes))
    np.testing.assert_allclose(
        ws.nn.GlobalAvgPool3d().predict(VOLUMES.astype("float32"), device="reference"), VOLUMES.mean((2, 3, 4)), 1e-5
    )


# -- through fit -------------------------------------------------------------------------------------------------


class UNet(ws.nn.Module):
    """Down by a stride, up by a transposed convolution and by interpolation."""

    def __init__(self) -> None:
        self.margin, self.down = ws.nn.ReflectionPad2d(1), ws.nn.Conv2d(1, 6, 3, stride=2)
        self.norm, self.inner = ws.nn.InstanceNorm2d(6, affine=True), ws.nn.SeparableConv2d(6, 6, 3, padding="same")
        self.up = ws.nn.ConvTranspose2d(6, 2, 4, stride=2, padding=1)
        self.larger = ws.nn.Upsample(scale=2, mode="bilinear")
        self.last = ws.nn.Conv2d(8, 1, 1)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        small = ws.relu(self.norm(self.down(self.margin(x))))
        small = small + self.inner(small)
        return self.last(ws.concat([self.up(small), self.larger(small)], 1))


@pytest.mark.parametrize(
    "where", [{}, {"precision": "bfloat16", "device": "reference"}], ids=["cpu", "reference, in half"]
)
def test_a_network_that_shrinks_and_grows_images_learns(where: dict[str, str]) -> None:
    x = np.random.default_rng(1).normal(size=(24, 1, 8, 8)).astype(np.float32)
    options = {} if "device" in where else {"options": quick()}
    history = ws.fit(
        UNet(), (x, np.tanh(x + np.roll(x, 1, 3))), loss="mse", epochs=3, batch_size=8, optimizer=ws.Adam(lr=2e-2),
        **where, **options,
    )  # fmt: skip
    assert history["loss"][-1] < 0.7 * history["loss"][0]


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: ws.nn.ConvTranspose2d(3, 2, 2, stride=2)(IMAGES),
            r"ConvTranspose2d\(3, 2, 2, stride=2\) takes 3 channels, \(N, 3, H, W\); received \(batch, 4, 6, 5\)",
        ),
        (
            lambda: ws.nn.ConvTranspose2d(4, 2, 2, output_padding=1)(IMAGES),
            "below stride .1, 1. or dilation .1, 1.; received .1",
        ),
        (lambda: ws.nn.ConvTranspose2d(4, 2, 2, padding=9)(IMAGES), "leaves nothing of 7 x 6 pixels; use less"),
        (lambda: ws.nn.Conv3d(4, 2, 3)(IMAGES), r"takes 4 channels, \(N, 4, D, H, W\); received \(batch, 4, 6, 5\)"),
        (lambda: ws.nn.PixelShuffle(3)(IMAGES), "needs a multiple of 9 channels; received .batch, 4, 6, 5."),
        (lambda: ws.nn.Upsample()(IMAGES), "needs either size= or scale="),
        (lambda: ws.nn.Upsample(scale=2, mode="blinear")(IMAGES), "must be one of 'nearest', .* received 'blinear'"),
        (lambda: ws.nn.ReflectionPad2d(6)(IMAGES), "at most 6 - 1 at axis 2 of .batch, 4, 6, 5."),
        (lambda: ws.nn.ReflectionPad2d((1, 2)), "padding must be a number or 4 of them"),
        (lambda: ws.nn.MaxPool2d(2, padding="full")(IMAGES), 'padding must be a number, a pair, "same" or "valid"'),
        (lambda: ws.nn.InstanceNorm2d(3)(IMAGES), r"takes 3 channels, \(N, 3, H, W\); received"),
        (
            lambda: ws.pad(ws.Graph().input("x", (2, 3)), (1, 1)),
            r"one pair \(low, high\) for each of the 2 axes of \(2, 3\), e.g. \[\(0, 0\), \(1, 1\)\]; received",
        ),
    ],
)  # fmt: skip
def test_errors_teach(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()
