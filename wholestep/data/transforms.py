"""Transforms of the inputs of a batch.  Random ones are keyed by (seed, epoch, row), so that a run can resume."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wholestep.compiler.ir.types import letter_of
from wholestep.data.order import keyed_uniform
from wholestep.errors import OptionError, ShapeError

Array = NDArray[Any]


@dataclass(frozen=True)
class TransformDraw:
    """The random number generator of one transform for one batch."""

    seed: int
    epoch: int
    rows: NDArray[np.int64]
    stream: int  # one per transform, so that two transforms draw different numbers

    def uniform(self, number: int = 0) -> NDArray[np.float64]:
        """One number in [0, 1) per row; `number` numbers the draws of one transform."""
        return keyed_uniform(self.seed, self.epoch, self.rows, self.stream * 1024 + number)

    def normal(self, shape: Sequence[int]) -> NDArray[np.float64]:
        """Standard normal numbers, (rows, *shape)."""
        elements = int(np.prod(shape))
        at = self.rows[:, None].astype(np.uint64) * np.uint64(elements) + np.arange(elements, dtype=np.uint64)
        u, v = (keyed_uniform(self.seed, self.epoch, at, self.stream * 1024 + i) for i in (1, 2))
        numbers = np.sqrt(-2.0 * np.log1p(-u)) * np.cos(2.0 * np.pi * v)
        return numbers.reshape(len(self.rows), *shape)


Transform = Callable[[Array, TransformDraw], Array]


@dataclass(frozen=True)
class Normalize:
    """(x - mean) / std as float32; lists have one value per channel (axis 1).  Example: `Normalize(0.1307, 0.3081)`."""

    mean: float | Sequence[float] = 0.0
    std: float | Sequence[float] = 1.0

    def __post_init__(self) -> None:
        if (np.asarray(self.std) <= 0).any():
            raise OptionError(f"Normalize: std must be above 0; received {self.std}.")

    def __call__(self, x: Array, draw: TransformDraw) -> Array:
        mean, std = (np.asarray(v, np.float32) for v in (self.mean, self.std))
        if mean.ndim or std.ndim:
            mean, std = (np.reshape(v, (-1, *[1] * (x.ndim - 2))) if v.ndim else v for v in (mean, std))
        return (x.astype(np.float32) - mean) / std


@dataclass(frozen=True)
class Scale:
    """x · factor as float32.  Example: `Scale(1 / 255)` brings bytes to 0..1."""

    factor: float

    def __call__(self, x: Array, draw: TransformDraw) -> Array:
        return x.astype(np.float32) * np.float32(self.factor)


@dataclass(frozen=True)
class Flip:
    """Mirrors each example along an axis with probability p.  Example: `Flip()` swaps left and right."""

    p: float = 0.5
    axis: int = -1

    def __post_init__(self) -> None:
        if not 0.0 <= self.p <= 1.0:
            raise OptionError(f"Flip: p must be a probability, between 0 and 1; received {self.p}.")

    def __call__(self, x: Array, draw: TransformDraw) -> Array:
        chosen = draw.uniform() < self.p
        return np.where(chosen.reshape(-1, *[1] * (x.ndim - 1)), np.flip(x, self.axis), x)


@dataclass(frozen=True)
class Crop:
    """Pads height and width with zeros and crops to the old size at a random offset.  Example: `Crop(4)`."""

    padding: int

    def __post_init__(self) -> None:
        if not isinstance(self.padding, int) or self.padding < 1:
            raise OptionError(f"Crop: padding must be an integer of at least 1; received {self.padding!r}.")

    def __call__(self, x: Array, draw: TransformDraw) -> Array:
        if x.ndim < 3:
            raise ShapeError(f"Crop: needs images (rows, ..., height, width); received shape {x.shape}.")
        p, (height, width) = self.padding, x.shape[-2:]
        padded = np.pad(x, [(0, 0)] * (x.ndim - 2) + [(p, p), (p, p)])
        tops, lefts = (np.floor(draw.uniform(i) * (2 * p + 1)).astype(int) for i in (0, 1))
        places = zip(range(len(x)), tops, lefts, strict=True)
        return np.stack([padded[i, ..., t : t + height, s : s + width] for i, t, s in places])


@dataclass(frozen=True)
class Noise:
    """Adds Gaussian noise of standard deviation `std`.  Example: `Noise(0.05)`."""

    std: float

    def __call__(self, x: Array, draw: TransformDraw) -> Array:
        kind = x.dtype if letter_of(x.dtype) == "f" else np.dtype(np.float32)
        return (x + self.std * draw.normal(x.shape[1:])).astype(kind)
