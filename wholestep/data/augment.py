"""Augmentations of images, spectrograms, tokens and rows as tensor expressions, compiled into the training step.

`ws.fit(..., augment=[...])` applies them in order.  Every random number is a function of (seed, epoch, row), see
`steps/augment.py`; each class below is a formula over such numbers.  Host transforms of batches are in `transforms.py`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.frontend.functions.elementwise import clip
from wholestep.compiler.frontend.functions.primitives import arange, cos, exp, floor, gather, matmul, sin, sqrt
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.sequences import flip
from wholestep.compiler.frontend.shape.sort_topk import take_along_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError, UsageError

INPUT = "x"


class Draws(Protocol):
    """Uniform numbers in [0, 1) of the rows of a batch."""

    def uniform(self, number: int, axes: int = 1) -> Tensor: ...

    def each(self, shape: Sequence[int]) -> Tensor: ...


class Augmentation(ABC):
    """The base class: a change of an input, (batch, ...), of the same shape; off in evaluation and prediction."""

    @abstractmethod
    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        """The changed input."""


class Mixing(ABC):
    """The base class of augmentations that mix each row with another one of its batch, and their losses."""

    @abstractmethod
    def mix(self, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        """The mixed input, and the weight (batch,) that each original row has in it."""


@dataclass(frozen=True)
class Augmentations:
    """The augmentations of each input, in order, and the seed of their numbers."""

    chains: Mapping[str, tuple[Augmentation | Mixing, ...]]
    seed: int = 0

    @staticmethod
    def of(augment: Any, seed: int) -> Augmentations:
        """Augmentations as `ws.fit` takes them: one, several, or a dict of these by input."""
        named = augment if isinstance(augment, Mapping) else {INPUT: augment}
        chains = {name: tuple(a) if isinstance(a, Sequence) else (a,) for name, a in named.items()}
        for one in (a for chain in chains.values() for a in chain):
            if not isinstance(one, Augmentation | Mixing):
                raise UsageError(
                    f"augment: expected augmentations such as ws.data.RandomErasing(); received {one!r}. Host "
                    "transforms, such as ws.data.Crop, are an argument of ws.DataLoader: transform=."
                )
        return Augmentations({str(name): chain for name, chain in chains.items()}, seed)


# -- images ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RandomFlip(Augmentation):
    """Mirrors images from left to right with probability p.  Example: `ws.data.RandomFlip()`."""

    p: float = 0.5

    def __post_init__(self) -> None:
        _need_probability(self, "p", self.p)

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        _images(self, x)
        return where(draws.uniform(0, 4) < self.p, flip(x, -1), x)


@dataclass(frozen=True)
class RandomErasing(Augmentation):
    """Fills a random rectangle with a value, with probability p (arXiv:1708.04896).

    Args:
        scale: the least and the largest share of the image that is erased.
        ratio: the least and the largest ratio of its height to its width.

    Example: `ws.data.RandomErasing(p=0.25)`.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float = 0.0

    def __post_init__(self) -> None:
        _need_probability(self, "p", self.p)
        _need_range(self, "scale", self.scale)
        _need_range(self, "ratio", self.ratio)

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        height, width = _images(self, x)
        area = _between(draws.uniform(0), *self.scale) * float(height * width)
        ratio = exp(_between(draws.uniform(1), *map(math.log, self.ratio)))
        tall = clip(floor(sqrt(area * ratio) + 0.5), 1.0, float(height))
        wide = clip(floor(sqrt(area / ratio) + 0.5), 1.0, float(width))
        top = floor(draws.uniform(2) * (height - tall + 1.0))
        left = floor(draws.uniform(3) * (width - wide + 1.0))
        inside = _box(height, width, top, top + tall, left, left + wide)
        return where(inside & (draws.uniform(4, 4) < self.p), self.value, x)


@dataclass(frozen=True)
class Cutout(Augmentation):
    """Fills a square around a random pixel, cut off at the border, with a value (arXiv:1708.04552).

    Example: `ws.data.Cutout(8)`.
    """

    size: int
    value: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.size, int) or self.size < 1:
            raise OptionError(f"Cutout: size must be an integer of at least 1; received {self.size!r}.")

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        height, width = _images(self, x)
        top = floor(draws.uniform(0) * float(height)) - self.size // 2
        left = floor(draws.uniform(1) * float(width)) - self.size // 2
        return where(_box(height, width, top, top + self.size, left, left + self.size), self.value, x)


@dataclass(frozen=True)
class RandomAffine(Augmentation):
    """Rotates, scales, shears and moves images, by random amounts around their centre; outside is 0.

    Args:
        degrees: rotations are from -degrees to degrees.
        translate: shares of height and width by which images move at most, in each direction.
        scale: the least and the largest factor.
        shear: horizontal shears are from -shear to shear, in degrees.
        mode: "nearest" pixels, as torchvision's default, or "bilinear" interpolation, which takes four of them.

    Example: `ws.data.RandomAffine(degrees=15, translate=0.1)`.
    """

    degrees: float = 0.0
    translate: float = 0.0
    scale: tuple[float, float] = (1.0, 1.0)
    shear: float = 0.0
    mode: str = "nearest"

    def __post_init__(self) -> None:
        _need_range(self, "scale", self.scale)
        for name in ("degrees", "translate", "shear"):
            _need_size(self, name, getattr(self, name))
        if self.mode not in ("bilinear", "nearest"):
            raise OptionError(f"RandomAffine: mode is 'bilinear' or 'nearest'; received {self.mode!r}.")

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        height, width = _images(self, x)
        angle = _between(draws.uniform(0, 2), -self.degrees, self.degrees) * (math.pi / 180.0)
        shear = _between(draws.uniform(1, 2), -self.shear, self.shear) * (math.pi / 180.0)
        factor = 1.0 / _between(draws.uniform(2, 2), *self.scale)
        dx, dy = (_between(draws.uniform(n, 2), -self.translate, self.translate) for n in (3, 4))
        slope = sin(shear) / cos(shear)
        c, s = cos(angle) * factor, sin(angle) * factor
        # the inverse of shear · scale · rotation brings a pixel of the result, relative to the centre, to the image
        rows, columns = (grid.reshape(1, -1).astype(np.float32) for grid in np.mgrid[:height, :width])
        across = as_tensor(columns - (width - 1) / 2) - dx * float(width)
        down = as_tensor(rows - (height - 1) / 2) - dy * float(height)
        at_column = c * across + (s - c * slope) * down + (width - 1) / 2
        at_row = (c + s * slope) * down - s * across + (height - 1) / 2
        return _sample(x, at_row, at_column, self.mode)


def _sample(x: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """Images at fractional positions (batch, height · width) in pixels, 0 outside.

    The image gets a frame of zeros to which positions outside are clamped, so that no tap is compared with its size.
    """
    height, width = (int(e) for e in x.shape[2:])
    framed = pad(x, [(0, 0), (0, 0), (1, 2), (1, 2)])
    flat = framed.reshape((*x.shape[:2], (height + 3) * (width + 3)))
    if mode == "nearest":
        rows, columns = rows + 0.5, columns + 0.5
    v, u = clip(rows + 1.0, 0.0, height + 1.0), clip(columns + 1.0, 0.0, width + 1.0)
    top, left = floor(v), floor(u)
    first = (top * (width + 3.0) + left).astype("int32").reshape((-1, 1, height * width))

    def tap(offset: int) -> Tensor:
        return take_along_axis(flat, first + offset, 2)

    if mode == "nearest":
        return tap(0).reshape(x.shape)
    down, right = ((p - q).reshape((-1, 1, height * width)).astype(x.dtype) for p, q in ((v, top), (u, left)))
    upper = tap(0) + (tap(1) - tap(0)) * right
    lower = tap(width + 3) + (tap(width + 4) - tap(width + 3)) * right
    return (upper + (lower - upper) * down).reshape(x.shape)


@dataclass(frozen=True)
class ColorJitter(Augmentation):
    """Changes brightness, contrast, saturation and hue of images (N, C, H, W) by random factors, in this order.

    Values are not clipped, so that normalized images may be given.  Saturation and hue need three channels.

    Args:
        brightness, contrast, saturation: factors are from 1 - amount to 1 + amount.
        hue: rotations of the chroma plane (YIQ) are from -hue to hue, in turns: at most 0.5.

    Example: `ws.data.ColorJitter(0.2, 0.2, 0.2)`.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation", "hue"):
            _need_size(self, name, getattr(self, name))

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        _images(self, x)
        if (self.saturation or self.hue) and x.shape[1] != 3:
            fail(ShapeError, f"ColorJitter: saturation and hue need (N, 3, H, W); received {shape_text(x.shape)}.")
        if self.brightness:
            x = x * self._factor(draws, 0, self.brightness, x)
        if self.contrast:
            grey = _luma(x).mean((2, 3), keepdims=True)
            x = grey + (x - grey) * self._factor(draws, 1, self.contrast, x)
        if self.saturation:
            grey = _luma(x)
            x = grey + (x - grey) * self._factor(draws, 2, self.saturation, x)
        return self._turn_hue(x, draws) if self.hue else x

    def _factor(self, draws: Draws, number: int, amount: float, x: Tensor) -> Tensor:
        return _between(draws.uniform(number, 4), 1.0 - amount, 1.0 + amount).astype(x.dtype)

    def _turn_hue(self, x: Tensor, draws: Draws) -> Tensor:
        """The chroma (I, Q) of every pixel, rotated: one 3 x 3 matrix for each image."""
        angle = _between(draws.uniform(3), -self.hue, self.hue) * (2.0 * math.pi)
        c, s = (f(angle).astype(x.dtype).reshape((-1, 1, 1)) for f in (cos, sin))
        back = np.linalg.inv(YIQ)
        still, along, across = (back @ part @ YIQ for part in _ROTATION)
        matrix = (
            as_tensor(still.astype(x.dtype.numpy)) + c * along.astype(x.dtype.numpy) + s * across.astype(x.dtype.numpy)
        )
        return matmul(matrix, x.reshape((x.shape[0], 3, -1))).reshape(x.shape)


LUMA = (0.299, 0.587, 0.114)
YIQ = np.array([LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312)])
# A rotation of (I, Q) is the first matrix plus the second times its cosine plus the third times its sine.
_ROTATION = (
    np.diag([1.0, 0.0, 0.0]),
    np.diag([0.0, 1.0, 1.0]),
    np.array([[0.0, 0.0, 0.0], [0.0, 0.0, -1.0], [0.0, 1.0, 0.0]]),
)


def _luma(x: Tensor) -> Tensor:
    """The luma (N, 1, H, W) of images with three channels; for others the mean of their channels."""
    if x.shape[1] != 3:
        return x.mean(1, keepdims=True)
    weights = np.array(LUMA, x.dtype.numpy).reshape(1, 3, 1, 1)
    return (x * weights).sum(1, keepdims=True)


# -- spectrograms and tokens -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpecAugment(Augmentation):
    """Sets random bands of frequencies and of time steps of spectrograms (..., frequencies, time) to 0
    (arXiv:1904.08779).

    Args:
        frequencies, steps: the largest width of a band.
        bands: bands along each axis.

    Example: `ws.data.SpecAugment(frequencies=8, steps=20, bands=2)`.
    """

    frequencies: int = 0
    steps: int = 0
    bands: int = 1

    def __post_init__(self) -> None:
        for name in ("frequencies", "steps", "bands"):
            _need_size(self, name, getattr(self, name))

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        for first, axis, widest in ((0, x.ndim - 2, self.frequencies), (16, x.ndim - 1, self.steps)):
            length = x.shape[axis]
            if x.ndim < 3 or not isinstance(length, int) or widest > length:
                fail(ShapeError, f"SpecAugment({self.frequencies}, {self.steps}): received {shape_text(x.shape)}.")
            at = arange(length).astype("float32").reshape(tuple(length if a == axis else 1 for a in range(x.ndim)))
            for band in range(self.bands if widest else 0):
                width = floor(draws.uniform(first + 2 * band, x.ndim) * (widest + 1.0))
                start = floor(draws.uniform(first + 2 * band + 1, x.ndim) * (length - width + 1.0))
                x = where((at >= start) & (at < start + width), 0.0, x)
        return x


@dataclass(frozen=True)
class MaskTokens(Augmentation):
    """Replaces each token, with probability `rate`, by another: a mask, or the token of unknown words.

    Example: `ws.data.MaskTokens(0.1, token=0)`.
    """

    rate: float
    token: int = 0

    def __post_init__(self) -> None:
        _need_probability(self, "rate", self.rate)

    def apply(self, x: Tensor, draws: Draws) -> Tensor:
        sizes = tuple(e for e in x.shape[1:] if isinstance(e, int))
        if x.dtype.is_float or len(sizes) != x.ndim - 1 or not sizes:
            fail(ShapeError, f"MaskTokens takes integer tokens (batch, time); received {x!r}.")
        return where(draws.each(sizes) < self.rate, as_tensor(self.token).astype(x.dtype), x)


# -- pairs of rows -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MixUp(Mixing):
    """Mixes each row with another row of its batch: λ·x + (1 - λ)·x', λ from Beta(alpha, alpha) (arXiv:1710.09412).

    The loss is mixed with the same λ: λ·loss(y) + (1 - λ)·loss(y').  The partner is the row at the mirrored place of
    the batch.  Metrics of training steps count the own target.

    Example: `ws.data.MixUp(0.2)`.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _need_positive(self, "alpha", self.alpha)

    def mix(self, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        if not x.dtype.is_float:
            fail(ShapeError, f"MixUp mixes numbers, floats; received {x!r}.")
        share = beta_quantile(draws.uniform(0), self.alpha)
        own = share.astype(x.dtype).reshape((-1, *(1,) * (x.ndim - 1)))
        return own * x + (1.0 - own) * flip(x, 0), share


@dataclass(frozen=True)
class CutMix(Mixing):
    """Puts a rectangle of another image of the batch into each image (arXiv:1905.04899); its area is a share 1 - λ of
    the image, λ from Beta(alpha, alpha), and what the border cuts off is counted.

    The losses of both labels are weighted by the area, as in `MixUp`.

    Example: `ws.data.CutMix()`.
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _need_positive(self, "alpha", self.alpha)

    def mix(self, x: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
        height, width = _images(self, x)
        side = sqrt(1.0 - beta_quantile(draws.uniform(0), self.alpha))
        edges = []
        for number, size in ((1, height), (2, width)):
            middle, half = floor(draws.uniform(number) * float(size)), floor(side * float(size)) * 0.5
            edges += [clip(floor(middle - half), 0.0, float(size)), clip(floor(middle + half), 0.0, float(size))]
        top, bottom, left, right = edges
        inside = _box(height, width, top, bottom, left, right)
        share = 1.0 - (bottom - top) * (right - left) * (1.0 / (height * width))
        return where(inside, flip(x, 0), x), share


POINTS = 2048


def beta_quantile(u: Tensor, alpha: float) -> Tensor:
    """The quantile u of Beta(alpha, alpha), from a table with linear interpolation."""
    if alpha == 1.0:
        return u
    table = as_tensor(beta_table(alpha).astype(np.float32))
    position = u * float(POINTS)
    first = clip(floor(position), 0.0, float(POINTS - 1))
    at = first.astype("int32")
    low, high = gather(table, at), gather(table, at + 1)
    return low + (high - low) * (position - first)


def beta_table(alpha: float) -> np.ndarray[Any, Any]:
    """The quantiles 0, 1/POINTS, ..., 1 of Beta(alpha, alpha), by integration of its density.

    The integration variable is t = xᵃ/2 up to x = 1/2, in which the density has no pole at 0; the upper half is the
    mirror image of the lower one.
    """
    t = np.linspace(0.0, 0.5**alpha, 64 * POINTS + 1)
    x = t ** (1.0 / alpha)
    density = (1.0 - x) ** (alpha - 1.0)  # x^(a-1) dx is dt / a
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * 0.5)])
    half = np.interp(np.linspace(0.0, 1.0, POINTS // 2 + 1), below / below[-1], x)
    return np.concatenate([half, 1.0 - half[-2::-1]])


# -- helpers -----------------------------------------------------------------------------------------------------


def _images(augmentation: Augmentation | Mixing, x: Tensor) -> tuple[int, int]:
    """Height and width of images (N, C, H, W)."""
    sizes = x.shape[2:]
    if x.ndim != 4 or not all(isinstance(e, int) for e in sizes) or not x.dtype.is_float:
        kind = type(augmentation).__name__
        fail(ShapeError, f"{kind} takes images of floats, (N, C, H, W); received {x!r}.")
    return int(sizes[0]), int(sizes[1])


def _box(height: int, width: int, top: Tensor, bottom: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """(batch, 1, height, width): is the pixel in the rectangle?"""
    y, x = arange(height).astype("float32").reshape((1, 1, height, 1)), arange(width).astype("float32")
    top, bottom, left, right = (edge.reshape((-1, 1, 1, 1)) for edge in (top, bottom, left, right))
    return (y >= top) & (y < bottom) & (x >= left) & (x < right)


def _between(u: Tensor, low: float, high: float) -> Tensor:
    return u * (high - low) + low


def _need_probability(owner: object, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value <= 1.0:
        raise OptionError(f"{type(owner).__name__}: {name} must be a probability from 0 to 1; received {value!r}.")


def _need_positive(owner: object, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0.0:
        raise OptionError(f"{type(owner).__name__}: {name} must be above 0; received {value!r}.")


def _need_size(owner: object, name: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.0 <= value < math.inf:
        raise OptionError(f"{type(owner).__name__}: {name} must be a number of at least 0; received {value!r}.")


def _need_range(owner: object, name: str, value: Any) -> None:
    valid = isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, int | float) for v in value)
    if not valid or not 0.0 < value[0] <= value[1]:
        kind = type(owner).__name__
        raise OptionError(f"{kind}: {name} must be a pair of positive numbers, least first; received {value!r}.")
