"""Normalization layers: batch, layer, RMS, group and instance norms."""

from __future__ import annotations

from wholestep.compiler.frontend.layers.composites import batch_norm, group_norm, layer_norm, normalize_by, rms_norm
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.module import TRAINABLE, Module
from wholestep.nn.module.parameter import buffer, parameter


class _BatchNorm(Module):
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    takes: tuple[str, ...]  # the input shapes that the layer accepts
    # PyTorch counts batches in order to average over all of them; this layer does not, but PyTorch's files contain the
    # count.
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
            return normalize_by(x, mean, variance, self.eps, self.weight, self.bias)  # neither is updated: it is frozen
        return batch_norm(x, self.weight, self.bias, mean, variance, self.momentum, self.eps, self.per_worker)

    def options(self) -> str:
        return f"{self.channels}, eps={self.eps:g}, momentum={self.momentum:g}"


class BatchNorm1d(_BatchNorm):
    """(x - mean) / √(variance + eps) · weight + bias for each channel of (N, C) or (N, C, L) (arXiv:1502.03167).

    Steps that train use mean and variance of the batch and move running_mean and running_var towards them by
    `momentum`; evaluation and prediction use those.  So they do where weight and bias are frozen by `freeze` or
    `requires_grad`, as in PyTorch.  `layer.trainable = False` uses the running statistics in training too and keeps
    them, as in Keras.  Names and defaults are PyTorch's.

    With several workers the statistics are those of the whole batch; `per_worker=True` normalises the rows of each
    by themselves, as PyTorch does without SyncBatchNorm: no communication, and the result depends on their number.

    Example: `ws.nn.BatchNorm1d(64)`.
    """

    takes = ("(N, C)", "(N, C, L)")


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` for images (N, C, H, W).  Example: `ws.nn.BatchNorm2d(16)`."""

    takes = ("(N, C, H, W)",)


class BatchNorm3d(_BatchNorm):
    """`BatchNorm1d` for volumes (N, C, D, H, W).  Example: `ws.nn.BatchNorm3d(16)`."""

    takes = ("(N, C, D, H, W)",)


class LayerNorm(Module):
    """(x - mean) / √(variance + eps) · weight + bias over the last axis or axes (arXiv:1607.06450).

    Example: `ws.nn.LayerNorm(768)`.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, shape: int | tuple[int, ...], eps: float = 1e-5, bias: bool = True, dtype: object = "float32"
    ) -> None:
        self.shape, self.eps = (shape,) if isinstance(shape, int) else tuple(shape), eps
        positive("LayerNorm", **{f"shape[{i}]": e for i, e in enumerate(self.shape)})
        self.weight = parameter(self.shape, 1.0, dtype)
        self.bias = parameter(self.shape, 0.0, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x, self.weight, self.bias, eps=self.eps, axis=tuple(range(-len(self.shape), 0)))

    def options(self) -> str:
        return f"{self.shape[0] if len(self.shape) == 1 else self.shape}, eps={self.eps:g}"


class RMSNorm(Module):
    """x / √(mean of x² + eps) · weight over the last axis (arXiv:1910.07467).

    eps is the smallest step above 1 of the dtype unless given, as in PyTorch.  Example: `ws.nn.RMSNorm(768)`.
    """

    weight: Tensor

    def __init__(self, width: int, eps: float | None = None, dtype: object = "float32") -> None:
        positive("RMSNorm", width=width)
        self.width, self.eps = width, eps
        self.weight = parameter((width,), 1.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps)

    def options(self) -> str:
        return f"{self.width}" + ("" if self.eps is None else f", eps={self.eps:g}")


class GroupNorm(Module):
    """Layer norm over each group of channels (axis 1) (arXiv:1803.08494).  Example: `ws.nn.GroupNorm(8, 64)`."""

    weight: Tensor
    bias: Tensor

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, dtype: object = "float32") -> None:
        positive("GroupNorm", groups=groups, channels=channels)
        if channels % groups:
            fail(OptionError, f"GroupNorm: {channels} channels do not divide into {groups} groups.")
        self.groups, self.channels, self.eps = groups, channels, eps
        self.weight, self.bias = parameter((channels,), 1.0, dtype), parameter((channels,), 0.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)

    def options(self) -> str:
        return f"{self.groups}, {self.channels}, eps={self.eps:g}"


class _InstanceNorm(Module):
    """The base class of instance norms: `group_norm` with as many groups as channels."""

    takes: str
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, channels: int, eps: float = 1e-5, affine: bool = False, dtype: object = "float32") -> None:
        positive(type(self).__name__, channels=channels)
        self.channels, self.eps = channels, eps
        self.weight = parameter((channels,), 1.0, dtype) if affine else None
        self.bias = parameter((channels,), 0.0, dtype) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != self.takes.count(",") + 1 or x.shape[1] != self.channels:
            takes = self.takes.replace("C", str(self.channels))
            fail(ShapeError, f"{self!r} takes {self.channels} channels, {takes}; received {shape_text(x.shape)}.")
        return group_norm(x, self.channels, self.weight, self.bias, eps=self.eps)

    def options(self) -> str:
        return f"{self.channels}, eps={self.eps:g}" + ("" if self.weight is None else ", affine=True")


class InstanceNorm1d(_InstanceNorm):
    """(x - mean) / √(variance + eps) of each channel of each signal (N, C, L) (arXiv:1607.08022).

    Example: `ws.nn.InstanceNorm1d(16, affine=True)`.
    """

    takes = "(N, C, L)"


class InstanceNorm2d(_InstanceNorm):
    """`InstanceNorm1d` for images (N, C, H, W).  Example: `ws.nn.InstanceNorm2d(16)`."""

    takes = "(N, C, H, W)"


class InstanceNorm3d(_InstanceNorm):
    """`InstanceNorm1d` for volumes (N, C, D, H, W).  Example: `ws.nn.InstanceNorm3d(16)`."""

    takes = "(N, C, D, H, W)"
