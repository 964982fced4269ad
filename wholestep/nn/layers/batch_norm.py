"""Batch normalisation."""

from __future__ import annotations

from wholestep.compiler.frontend.functions.elementwise import rsqrt
from wholestep.compiler.frontend.layers.composites import batch_norm
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.module import TRAINABLE, Module
from wholestep.nn.module.parameter import buffer, parameter


class _BatchNorm(Module):
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    takes: tuple[str, ...]  # the shapes it takes
    # PyTorch counts batches for a mean over all of them; there is none here, but its files have the count.
    unused_names = ("num_batches_tracked",)

    def __init__(
        self,
        channels: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        dtype: object = "float32",
        per_worker: bool = False,
    ) -> None:
        positive(type(self).__name__, channels=channels)
        self.channels, self.eps, self.momentum, self.per_worker = channels, eps, momentum, per_worker
        self.weight = parameter((channels,), 1.0, dtype) if affine else None
        self.bias = parameter((channels,), 0.0, dtype) if affine else None
        self.running_mean = buffer((channels,), 0.0, dtype) if track_running_stats else None
        self.running_var = buffer((channels,), 1.0, dtype) if track_running_stats else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim not in [text.count(",") + 1 for text in self.takes] or x.shape[1] != self.channels:
            shapes = " or ".join(text.replace("C", str(self.channels)) for text in self.takes)
            fail(ShapeError, f"{self!r} takes {self.channels} channels, {shapes}; received {shape_text(x.shape)}.")
        mean, variance = self.running_mean, self.running_var
        if mean is not None and variance is not None and not self.__dict__.get(TRAINABLE, True):
            return self._normalised_by(x, mean, variance)
        return batch_norm(x, self.weight, self.bias, mean, variance, self.momentum, self.eps, self.per_worker)

    def _normalised_by(self, x: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """As in evaluation, in every step: the statistics are read, and do not change."""
        scale = rsqrt(variance + self.eps)
        scale = scale if self.weight is None else scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        each = (self.channels, *(1,) * (x.ndim - 2))
        return x * scale.reshape(*each) + shift.reshape(*each)

    def options(self) -> str:
        return f"{self.channels}, eps={self.eps:g}, momentum={self.momentum:g}"


class BatchNorm1d(_BatchNorm):
    """(x - mean) / √(variance + eps) · weight + bias for each channel of (N, C) or (N, C, L) (arXiv:1502.03167).

    Steps that train use mean and variance of the batch and move running_mean and running_var towards them by
    `momentum`; evaluation and prediction use those.  So they do where weight and bias are frozen by `freeze` or
    `requires_grad`, as in PyTorch.  `layer.trainable = False` uses the running statistics in training too and keeps
    them, as in Keras.  Names and defaults are PyTorch's.

    Of several workers the batch is that of all of them; `per_worker=True` normalises each one's rows by themselves, as
    PyTorch does unless it is told to synchronise: nothing crosses for it, and the result depends on their number.

    Example: `ws.nn.BatchNorm1d(64)`.
    """

    takes = ("(N, C)", "(N, C, L)")


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` for images (N, C, H, W).  Example: `ws.nn.BatchNorm2d(16)`."""

    takes = ("(N, C, H, W)",)


class BatchNorm3d(_BatchNorm):
    """`BatchNorm1d` for volumes (N, C, D, H, W).  Example: `ws.nn.BatchNorm3d(16)`."""

    takes = ("(N, C, D, H, W)",)
