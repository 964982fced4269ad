"""Metrics of restored images: peak signal-to-noise ratio, and structural similarity (Wang et al., 2004)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Shape, product, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.metrics.array_functions import X
from wholestep.metrics.base import Array, States
from wholestep.metrics.means import MSE, Mean, check_numbers, weighted_rows
from wholestep.metrics.reading import ArrayKind, last_axis


def _check_range(kind: str, data_range: object) -> None:
    if isinstance(data_range, bool) or not isinstance(data_range, int | float) or not data_range > 0:
        fail(
            OptionError,
            f"{kind}: data_range is the difference of the largest and the smallest possible pixel, above 0; received "
            f"{data_range!r}.",
        )


@dataclass(eq=False)
class PSNR(MSE):
    """The peak signal-to-noise ratio 10·log₁₀(data_range² / mean squared error) in dB, over all pixels of the epoch.

    `data_range` is the difference of the largest and the smallest possible pixel: 1 or 255.

    Example: `ws.metrics.PSNR(data_range=255)`.
    """

    kind: ClassVar[str] = "psnr"
    higher_is_better: ClassVar[bool | None] = True
    data_range: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self.kind, self.data_range)

    def result(self, states: States) -> float:
        with np.errstate(divide="ignore"):  # the result is infinite if there is no error
            return float(10.0 * np.log10(self.data_range**2 / np.float64(super().result(states))))


@dataclass(eq=False)
class SSIM(Mean):
    """Structural similarity of images (N, H, W) or (N, C, H, W), averaged over windows, channels and images.

    Means, variances and the covariance are those of a Gaussian window (11 pixels wide, σ = 1.5), wholly inside the
    image.  `data_range` is the difference of the largest and the smallest possible pixel: 1 or 255.

    Example: `ws.metrics.SSIM()`.
    """

    kind: ClassVar[str] = "ssim"
    higher_is_better: ClassVar[bool | None] = True
    data_range: float = 1.0
    window: int = field(default=11, kw_only=True)
    sigma: float = field(default=1.5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_range(self.kind, self.data_range)
        if not isinstance(self.window, int) or self.window < 1 or not self.sigma > 0:
            received = f"{self.window!r} and {self.sigma!r}"
            fail(OptionError, f"ssim: window is an integer of at least 1, sigma is above 0; received {received}.")

    def contributions(self, prediction: X, target: X, weight: X | None) -> dict[str, X]:
        shape: Shape = prediction.shape
        check_numbers(self.kind, ArrayKind.of(prediction), ArrayKind.of(target))
        sizes: list[int] = [n for n in shape[-2:] if isinstance(n, int) and n >= self.window]
        if len(shape) not in (3, 4) or len(sizes) != 2:
            fail(
                ShapeError,
                f"ssim compares images (N, H, W) or (N, C, H, W) of at least {self.window} x {self.window} pixels; "
                f"received {shape_text(shape)}. Give a smaller window: ws.metrics.SSIM(window=7).",
            )
        images: Any = (product(shape[:-2]), *sizes)
        a: Any = prediction.astype("float64").reshape(images)
        b: Any = target.astype("float64").reshape(images)
        mean_a, mean_b = self._blur(a), self._blur(b)
        var_a, var_b = self._blur(a * a) - mean_a * mean_a, self._blur(b * b) - mean_b * mean_b
        joint = self._blur(a * b) - mean_a * mean_b
        c1, c2 = (0.01 * self.data_range) ** 2, (0.03 * self.data_range) ** 2
        similar = (2.0 * mean_a * mean_b + c1) * (2.0 * joint + c2)
        similar = similar / ((mean_a * mean_a + mean_b * mean_b + c1) * (var_a + var_b + c2))
        each = similar.mean((1, 2)).reshape((shape[0], *shape[1:-2]))
        return weighted_rows(self.kind, each.mean(1) if each.ndim > 1 else each, weight)

    def _blur(self, images: X) -> Any:
        """Weighted means of all windows (M, W', H'): a product with a band matrix along each axis."""
        rows, columns = int(images.shape[1]), int(images.shape[2])
        return last_axis(images @ self._bands(columns), 1) @ self._bands(rows)

    def _bands(self, size: int) -> Array:
        """(size, windows): column i holds the Gaussian weights of the window that begins at i."""
        offset = np.arange(size)[:, None] - np.arange(size - self.window + 1)[None]
        weights = np.exp(-0.5 * ((offset - (self.window - 1) / 2) / self.sigma) ** 2)
        weights = np.where((offset >= 0) & (offset < self.window), weights, 0.0)
        return np.asarray(weights / weights.sum(0))
