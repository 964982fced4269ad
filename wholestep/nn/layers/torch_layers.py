"""Less common layers, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.functions import statistics
from wholestep.compiler.frontend.functions.einsum import einsum
from wholestep.compiler.frontend.functions.primitives import gather, softmax
from wholestep.compiler.frontend.layers import adaptive_pooling, pooling, resize, unfold
from wholestep.compiler.frontend.layers.window import Sizes
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn import functional as fn
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Parameter, parameter

__all__ = [
    "AdaptiveAvgPool3d", "AdaptiveMaxPool3d", "Bilinear", "ChannelShuffle", "CosineSimilarity", "EmbeddingBag", "Fold",
    "LocalResponseNorm", "MaxUnpool2d", "PairwiseDistance", "ParameterDict", "ParameterList", "Softmax2d", "Unfold",
    "UpsamplingBilinear2d", "UpsamplingNearest2d",
]  # fmt: skip


class ParameterList(Module):
    """Parameters in order: `self.w[0]`, named `w.0`.  Example: `ws.nn.ParameterList([ws.nn.Parameter((3,))])`."""

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.count = 0
        for value in values:
            self.append(value)

    def append(self, value: Any) -> ParameterList:
        """Append an array or a parameter."""
        setattr(self, str(self.count), value if isinstance(value, Parameter) else Parameter(value))
        self.count += 1
        return self

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if not -self.count <= index < self.count:
            raise IndexError(f"this ParameterList has {self.count} parameters; received the index {index}")
        return getattr(self, str(index % self.count))

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self.count))


class ParameterDict(Module):
    """Parameters by name: `self.w["left"]`, named `w.left`.

    Example: `ws.nn.ParameterDict({"left": ws.nn.Parameter((3,))})`.
    """

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.names: tuple[str, ...] = ()
        for name, value in (values or {}).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self, name, value if isinstance(value, Parameter) else Parameter(value))
        self.names = tuple(dict.fromkeys((*self.names, name)))

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(f"{name}: this ParameterDict has {', '.join(self.names) or 'none'}")
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def keys(self) -> tuple[str, ...]:
        """The names."""
        return self.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Names and parameters."""
        return ((name, self[name]) for name in self.names)


class Bilinear(Module):
    """x₁ᵀ · weight · x₂ + bias; the weight is (outputs, inputs, inputs).  Example: `ws.nn.Bilinear(3, 4, 5)`."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, first: int, second: int, outputs: int, bias: bool = True, dtype: object = "float32") -> None:
        positive("Bilinear", first=first, second=second, outputs=outputs)
        bound = first**-0.5
        self.weight = parameter((outputs, first, second), initializers.uniform(-bound, bound), dtype)
        self.bias = parameter((outputs,), initializers.uniform(-bound, bound), dtype) if bias else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out = einsum("...i,oij,...j->...o", x, self.weight, y)
        return out if self.bias is None else out + self.bias


class EmbeddingBag(Module):
    """The mean, the sum or the maximum of the embeddings of tokens (batch, count).

    Bags are equally long: a row of tokens each.  Example: `ws.nn.EmbeddingBag(100, 8, mode="sum")`.
    """

    weight: Tensor

    def __init__(self, entries: int, width: int, mode: str = "mean", dtype: object = "float32") -> None:
        positive("EmbeddingBag", entries=entries, width=width)
        if mode not in ("mean", "sum", "max"):
            fail(OptionError, f"EmbeddingBag: mode is 'mean', 'sum' or 'max'; received {mode!r}.")
        self.mode, self.weight = mode, parameter((entries, width), initializers.normal(), dtype)

    def forward(self, tokens: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        if tokens.ndim != 2:
            fail(ShapeError, f"EmbeddingBag takes tokens of shape (batch, many); received {shape_text(tokens.shape)}.")
        rows = gather(self.weight, tokens)
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape((*tokens.shape, 1))
        return rows.mean(1) if self.mode == "mean" else rows.sum(1) if self.mode == "sum" else rows.max(1)


class CosineSimilarity(Module):
    """x · y / (‖x‖ ‖y‖) along an axis (`ws.cosine_similarity`).  Example: `ws.nn.CosineSimilarity(axis=1)`."""

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        self.axis, self.eps = axis, eps

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return statistics.cosine_similarity(x, y, self.axis, self.eps)


class PairwiseDistance(Module):
    """The distance ‖x - y + eps‖ₚ along the last axis.  Example: `ws.nn.PairwiseDistance()`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.p, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return fn.pairwise_distance(x, y, self.p, self.eps, self.keepdim)


class Softmax2d(Module):
    """Softmax over the channels of (N, C, H, W).  Example: `ws.nn.Softmax2d()`."""

    def forward(self, x: Tensor) -> Tensor:
        return softmax(x, -3)


class ChannelShuffle(Module):
    """Interleaves the channels of several groups (arXiv:1707.01083).  Example: `ws.nn.ChannelShuffle(2)`."""

    def __init__(self, groups: int) -> None:
        positive("ChannelShuffle", groups=groups)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        if not isinstance(channels, int) or channels % self.groups:
            fail(ShapeError, f"{self!r} needs a multiple of {self.groups} channels; received {shape_text(x.shape)}.")
        apart = x.reshape((x.shape[0], self.groups, channels // self.groups, *x.shape[2:]))
        return apart.transpose(1, 2).reshape(x.shape)

    def options(self) -> str:
        return f"{self.groups}"


class LocalResponseNorm(FunctionModule, function=pooling.local_response_norm):
    """x divided by a power of the mean square of neighbouring channels (`ws.local_response_norm`).

    Example: `ws.nn.LocalResponseNorm(5)`.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        positive("LocalResponseNorm", size=size)
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k


class AdaptiveAvgPool3d(FunctionModule, function=adaptive_pooling.adaptive_avg_pool3d):
    """The means of `size` windows that cover a volume.  Example: `ws.nn.AdaptiveAvgPool3d((1, 4, 4))`."""

    def __init__(self, size: Any) -> None:
        self.size = size


class AdaptiveMaxPool3d(FunctionModule, function=adaptive_pooling.adaptive_max_pool3d):
    """The maxima of `size` windows that cover a volume.  Example: `ws.nn.AdaptiveMaxPool3d(2)`."""

    def __init__(self, size: Any) -> None:
        self.size = size


class MaxUnpool2d(Module):
    """The inverse of a max pool: puts the maxima back at their positions, zeros elsewhere (`ws.max_unpool2d`).

    Example: `ws.nn.MaxUnpool2d(2)(values, places)`.
    """

    def __init__(self, window: Sizes, stride: Sizes | None = None, padding: Sizes = 0) -> None:
        pairs = [(v, v) if isinstance(v, int) else tuple(v) for v in (window, stride or window, padding)]
        self.window, self.stride, self.padding = pairs

    def forward(self, x: Tensor, indices: Tensor, size: Sizes | None = None) -> Tensor:
        if size is None:
            how = zip(x.shape[2:], self.window, self.stride, self.padding, strict=True)
            size = [(int(n) - 1) * s - 2 * p + k for n, k, s, p in how]
        elif not isinstance(size, int):
            size = list(size)[-2:]
        return pooling.max_unpool2d(x, indices, size)


class Unfold(FunctionModule, function=unfold.unfold):
    """Extracts windows of images as columns (`ws.unfold`).  Example: `ws.nn.Unfold(3, padding=1)`."""

    def __init__(self, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        self.kernel, self.dilation, self.padding, self.stride = kernel, dilation, padding, stride


class Fold(FunctionModule, function=unfold.fold):
    """Adds up columns of windows to images (`ws.fold`).  Example: `ws.nn.Fold((8, 8), 2, stride=2)`."""

    def __init__(self, size: Sizes, kernel: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1) -> None:
        self.size, self.kernel, self.dilation, self.padding, self.stride = size, kernel, dilation, padding, stride


class UpsamplingNearest2d(Module):
    """Resizes images by repeating pixels.  Example: `ws.nn.UpsamplingNearest2d(scale=2)`."""

    def __init__(self, size: Any = None, scale: Any = None) -> None:
        self.size, self.scale = size, scale

    def forward(self, x: Tensor) -> Tensor:
        return resize.interpolate(x, self.size, self.scale, "nearest")


class UpsamplingBilinear2d(UpsamplingNearest2d):
    """Resizes images bilinearly with aligned corners.  Example: `ws.nn.UpsamplingBilinear2d(scale=2)`."""

    def forward(self, x: Tensor) -> Tensor:
        return resize.interpolate(x, self.size, self.scale, "bilinear", align_corners=True)
