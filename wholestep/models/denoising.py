"""A small diffusion model: "Denoising diffusion probabilistic models", Ho et al. 2020 (arXiv:2006.11239)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import concat, cos, gather, random_normal, silu, sin
from wholestep.compiler.frontend.layers.composites import attention
from wholestep.compiler.frontend.layers.resize import interpolate
from wholestep.compiler.frontend.shape.sort_topk import random_integers
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn import Conv2d, GroupNorm, Linear, Module
from wholestep.nn.layers.linear import positive


def diffusion(
    image: int = 32,
    channels: int = 3,
    width: int = 64,
    levels: Sequence[int] = (1, 2, 2),
    blocks: int = 1,
    heads: int = 1,
    steps: int = 1000,
    dtype: object = "float32",
) -> Diffusion:
    """A diffusion model of square images: a U-Net with self-attention at its lowest level.

    Args:
        image: height and width, which are halved at each level but the last.
        levels: channels of each level, in widths.
        blocks: residual blocks on each level, on the way down and up.
        steps: the number of noise steps.

    Example: `ws.fit(ws.models.diffusion(image=8, channels=1, width=16), images, loss=ws.models.noise_loss)`.
    """
    return Diffusion(DenoisingUNet(channels, width, tuple(levels), blocks, heads, dtype), image, channels, steps)


def noise_loss(errors: Tensor, *_: object) -> Tensor:
    """The mean of the errors that `Diffusion` returns for each image: the loss to train it with."""
    return errors.mean()


class Diffusion(Module):
    """Maps images (batch, channels, image, image) of about -1 to 1 to the error of the predicted noise, (batch,)."""

    def __init__(self, net: DenoisingUNet, image: int, channels: int, steps: int) -> None:
        positive("diffusion", image=image, channels=channels, steps=steps)
        if image % 2 ** (net.depth - 1):
            fail(OptionError, f"diffusion: images of {image} x {image} cannot be halved {net.depth - 1} times.")
        self.net, self.image, self.channels, self.steps = net, image, channels, steps
        self.betas = np.linspace(1e-4, 0.02, steps)
        # cumulative product of 1 - beta: the share of the image that is left after each step
        self.kept = np.cumprod(1.0 - self.betas)

    def forward(self, x: Tensor, times: Tensor | None = None, noise: Tensor | None = None) -> Tensor:
        """The squared error of the predicted noise (algorithm 1); `times` and `noise` are drawn unless given."""
        t = random_integers(x, (x.shape[0],), 0, self.steps) if times is None else times
        e = random_normal(x, x.shape, dtype=x.dtype) if noise is None else noise
        image, rest = (
            gather(as_tensor(share.astype(x.dtype.numpy)), t).reshape((x.shape[0], 1, 1, 1))
            for share in (np.sqrt(self.kept), np.sqrt(1.0 - self.kept))
        )
        off: Tensor = self.net(image * x + rest * e, t) - e
        return (off * off).mean((1, 2, 3))

    def sample(self, count: int, seed: int = 0, device: str = "cpu") -> np.ndarray[Any, Any]:
        """New images, denoised from random noise step by step (algorithm 2).  Example: `model.sample(4)`."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((count, self.channels, self.image, self.image), np.float32)
        for t in reversed(range(self.steps)):
            guess = self.net.predict(x, np.full(count, t, np.int32), device=device)
            mean = (x - self.betas[t] / math.sqrt(1.0 - self.kept[t]) * guess) / math.sqrt(1.0 - self.betas[t])
            noise = rng.standard_normal(x.shape, np.float32) if t else 0.0
            x = (mean + math.sqrt(self.betas[t]) * noise).astype(np.float32)
        return x


class DenoisingUNet(Module):
    """Maps images and times (batch,) to the noise in the images."""

    def __init__(
        self, channels: int, width: int, levels: tuple[int, ...], blocks: int, heads: int, dtype: object
    ) -> None:
        positive("diffusion", channels=channels, width=width, blocks=blocks, heads=heads)
        widths, inner = [width * n for n in levels], 4 * width
        self.width, self.depth, self.blocks = width, len(levels), blocks
        self.time1, self.time2 = Linear(width, inner, dtype=dtype), Linear(inner, inner, dtype=dtype)
        self.first = Conv2d(channels, width, 3, padding=1, dtype=dtype)
        self.down, self.halve, seen, now = [], [], [width], width
        for level, n in enumerate(widths):
            for _ in range(blocks):
                self.down.append(ResidualBlock(now, n, inner, dtype))
                now = n
                seen.append(now)
            if level < len(widths) - 1:
                self.halve.append(Conv2d(now, now, 3, stride=2, padding=1, dtype=dtype))
                seen.append(now)
        self.middle1, self.middle2 = (ResidualBlock(now, now, inner, dtype) for _ in range(2))
        self.attention = ImageAttention(now, heads, dtype)
        self.up, self.double = [], []
        for level, n in reversed(list(enumerate(widths))):
            for _ in range(blocks + 1):
                self.up.append(ResidualBlock(now + seen.pop(), n, inner, dtype))
                now = n
            if level:
                self.double.append(Conv2d(now, now, 3, padding=1, dtype=dtype))
        self.norm, self.last = norm(now, dtype), Conv2d(now, channels, 3, padding=1, dtype=dtype)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        t = self.time2(silu(self.time1(frequencies(times, self.width, x))))
        x = self.first(x)
        seen, down = [x], iter(self.down)
        for level in range(self.depth):
            for _ in range(self.blocks):
                x = next(down)(x, t)
                seen.append(x)
            if level < self.depth - 1:
                x = self.halve[level](x)
                seen.append(x)
        x = self.middle2(self.attention(self.middle1(x, t)), t)
        up = iter(self.up)
        for level in range(self.depth):
            for _ in range(self.blocks + 1):
                x = next(up)(concat([x, seen.pop()], 1), t)
            if level < self.depth - 1:
                x = self.double[level](interpolate(x, scale=2))
        out: Tensor = self.last(silu(self.norm(x)))
        return out


class ResidualBlock(Module):
    """shortcut(x) + conv(silu(norm(conv(silu(norm(x))) + time)))"""

    def __init__(self, inputs: int, outputs: int, time: int, dtype: object) -> None:
        self.norm1, self.norm2 = norm(inputs, dtype), norm(outputs, dtype)
        self.conv1 = Conv2d(inputs, outputs, 3, padding=1, dtype=dtype)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1, dtype=dtype)
        self.time = Linear(time, outputs, dtype=dtype)
        self.shortcut = None if inputs == outputs else Conv2d(inputs, outputs, 1, dtype=dtype)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        shift = self.time(silu(t))
        y = self.conv1(silu(self.norm1(x))) + shift.reshape((*shift.shape, 1, 1))
        y = self.conv2(silu(self.norm2(y)))
        return y + (x if self.shortcut is None else self.shortcut(x))  # type: ignore[no-any-return]


class ImageAttention(Module):
    """Self-attention over all pixels of an image."""

    def __init__(self, channels: int, heads: int, dtype: object) -> None:
        if channels % heads:
            fail(OptionError, f"diffusion: {channels} channels do not divide into {heads} heads.")
        self.heads = heads
        self.norm = norm(channels, dtype)
        self.qkv, self.out = Conv2d(channels, 3 * channels, 1, dtype=dtype), Conv2d(channels, channels, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        each = int(channels) // self.heads
        apart = self.qkv(self.norm(x)).reshape(batch, 3, self.heads, each, height * width)
        q, k, v = (apart[:, i].transpose(2, 3) for i in range(3))  # (batch, heads, pixels, head width)
        mixed = attention(q, k, v).transpose(2, 3).reshape(x.shape)
        return x + self.out(mixed)  # type: ignore[no-any-return]


def norm(channels: int, dtype: object) -> GroupNorm:
    return GroupNorm(math.gcd(channels, 8), channels, dtype=dtype)


def frequencies(times: Tensor, width: int, x: Tensor) -> Tensor:
    """The sinusoidal embedding of times (arXiv:1706.03762), (batch, width)."""
    falling = np.exp(-math.log(10000.0) * np.arange(width // 2) / (width // 2)).astype(x.dtype.numpy)
    angles = times.astype(x.dtype).reshape((times.shape[0], 1)) * as_tensor(falling)
    return concat([sin(angles), cos(angles)], 1)
