"""PyTorch's `nn.functional`: its functions with its arguments, for programs that use them.

What means the same in `ws` is that very function: `functional.relu` is `ws.relu`.  Those here take other arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wholestep.compiler.frontend.functions import activations, primitives, statistics
from wholestep.compiler.frontend.functions.activations import (
    celu,
    glu,
    hardshrink,
    hardsigmoid,
    hardtanh,
    logsigmoid,
    prelu,
    relu6,
    selu,
    softmin,
    softshrink,
    softsign,
    tanhshrink,
    threshold,
)  # fmt: skip
from wholestep.compiler.frontend.layers import composites, pooling
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.layers.window import Sizes
from wholestep.compiler.frontend.shape.padding import pad as pad_axes
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.lazy import missing_names
from wholestep.losses import classification, distances, probabilities, regression
from wholestep.nn.module.freezing import BY_ENTRY_POINT, Mode

__all__ = [
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "celu", "cosine_similarity",
    "cross_entropy", "dropout", "embedding", "glu", "hardshrink", "hardsigmoid", "hardtanh", "huber_loss",
    "l1_loss", "layer_norm", "leaky_relu", "linear", "logsigmoid", "margin_ranking_loss", "max_pool2d", "mse_loss",
    "nll_loss",
    "normalize", "pad", "pairwise_distance", "prelu", "relu6", "rms_norm", "scaled_dot_product_attention", "selu",
    "smooth_l1_loss", "softmin", "softplus", "softshrink", "softsign", "tanhshrink", "threshold",
    "triplet_margin_loss",
]  # fmt: skip

Target = Any

# -- layers ----------------------------------------------------------------------------------------------------------


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The linear map x · weightᵀ + bias; the weight is (outputs, inputs)."""
    y = x @ weight.T
    return y if bias is None else y + bias


def embedding(x: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of the weight at the given indices; the row of `padding_idx` gets no gradient."""
    if padding_idx is None:
        return weight[x]
    row = padding_idx % int(weight.shape[0])
    is_token = (x != row).reshape((*x.shape, 1))
    rows = weight[x]
    return where(is_token, rows, primitives.stop_gradient(rows))


def max_pool2d(
    x: Tensor,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`ws.max_pool2d` with PyTorch's order of arguments; `return_indices=True` adds the index of each maximum."""
    if return_indices:
        return pooling.max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode)
    return pooling.max_pool2d(x, kernel_size, stride, padding, ceil_mode, dilation)


def dropout(x: Tensor, p: float | Switchable = 0.5, training: bool | Mode = BY_ENTRY_POINT) -> Tensor:
    """`ws.dropout`: active in training steps, also with `training=self.training`; `training=False` switches it off."""
    return x if training is False else composites.dropout(x, p)


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Operand | None = None,
    bias: Operand | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """`ws.layer_norm` over the last axes, whose sizes are `normalized_shape`."""
    return composites.layer_norm(x, weight, bias, eps=eps, axis=_last("layer_norm", x, normalized_shape))


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Operand | None = None, eps: float | None = None
) -> Tensor:
    """`ws.rms_norm` over the last axes, whose sizes are `normalized_shape`."""
    return composites.rms_norm(x, weight, eps=eps, axis=_last("rms_norm", x, normalized_shape))


def _last(op: str, x: Tensor, shape: Sequence[int]) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if x.shape[x.ndim - len(sizes) :] != sizes:
        fail(ShapeError, f"{op}: the last axes of {shape_text(x.shape)} are not {sizes}.")
    return tuple(range(-len(sizes), 0))


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Operand | None = None,
    bias: Operand | None = None,
    training: bool | Mode = BY_ENTRY_POINT,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`ws.batch_norm`: training steps use the statistics of the batch, all others the running statistics."""
    if training is False and running_mean is not None and running_var is not None:
        affine = (None if p is None else as_tensor(p) for p in (weight, bias))
        return composites.normalize_by(x, running_mean, running_var, eps, *affine)
    return composites.batch_norm(x, weight, bias, running_mean, running_var, momentum=momentum, eps=eps)


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """`ws.pad` with pairs (before, after) from the last axis on, as in PyTorch: (left, right, top, bottom)."""
    if len(pad) % 2 or len(pad) // 2 > x.ndim:
        fail(ShapeError, f"pad: pairs (before, after) for at most {x.ndim} axes; received {tuple(pad)}.")
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    amounts = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    return pad_axes(x, amounts, 0.0 if value is None else value, mode)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Operand | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """`ws.attention`"""
    if dropout_p:
        fail(OptionError, "scaled_dot_product_attention drops no scores; drop the result: ws.dropout(x, p).")
    return composites.attention(query, key, value, causal=is_causal, scale=scale, mask=attn_mask)


def normalize(x: Tensor, p: float = 2.0, axis: int = 1, eps: float = 1e-12) -> Tensor:
    """`ws.normalize` with PyTorch's default axis 1."""
    return statistics.normalize(x, p, axis, eps)


def cosine_similarity(x: Tensor, y: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """`ws.cosine_similarity` with PyTorch's default axis 1."""
    return statistics.cosine_similarity(x, y, axis, eps)


def pairwise_distance(x: Tensor, y: Tensor, p: float = 2.0, eps: float = 1e-6, keepdims: bool = False) -> Tensor:
    """The distance ‖x - y + eps‖ₚ along the last axis."""
    return statistics.norm(x - y + eps, p, -1, keepdims)


# -- activations -----------------------------------------------------------------------------------------------------


def leaky_relu(x: Operand, negative_slope: float = 0.01) -> Tensor:
    """Leaky ReLU: x where x > 0, else negative_slope · x."""
    return activations.leaky_relu(x, negative_slope)


def softplus(x: Operand, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """Softplus: log(1 + e^(beta·x)) / beta, and x itself where beta·x is above the threshold."""
    t = as_tensor(x) * beta
    return where(t > threshold, as_tensor(x), activations.softplus(where(t > threshold, 0.0, t)) * (1.0 / beta))


# -- losses ----------------------------------------------------------------------------------------------------------


def cross_entropy(
    x: Tensor,
    target: Target,
    weight: Target | None = None,
    ignore_index: int | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """`ws.losses.cross_entropy`, classes on axis 1 or the last; targets are class indices or probabilities."""
    return classification.cross_entropy(
        x, target, ignore_index, reduction, label_smoothing=label_smoothing, class_weight=weight
    )


def binary_cross_entropy_with_logits(
    x: Tensor, target: Target, weight: Target | None = None, reduction: str = "mean", pos_weight: Target | None = None
) -> Tensor:
    """`ws.losses.binary_cross_entropy`"""
    plain = classification.binary_cross_entropy_with_logits_loss
    if weight is None:
        return plain(x, target, reduction, pos_weight=pos_weight)
    return _reduce(plain(x, target, "none", pos_weight=pos_weight) * weight, reduction)


def nll_loss(
    x: Tensor, target: Target, weight: Target | None = None, ignore_index: int | None = None, reduction: str = "mean"
) -> Tensor:
    """`ws.losses.nll_loss` of log-probabilities."""
    return probabilities.nll_loss(x, target, ignore_index, reduction, class_weight=weight)


def binary_cross_entropy(x: Tensor, target: Target, weight: Target | None = None, reduction: str = "mean") -> Tensor:
    """`ws.losses.bce_of_probabilities_loss` of probabilities; a loss of raw scores is more accurate."""
    if weight is None:
        return probabilities.bce_of_probabilities_loss(x, target, reduction)
    return _reduce(probabilities.bce_of_probabilities_loss(x, target, "none") * weight, reduction)


def _reduce(values: Tensor, reduction: str) -> Tensor:
    return values if reduction == "none" else values.sum() if reduction == "sum" else values.mean()


def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Target, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """`ws.losses.margin_ranking_loss`"""
    return distances.margin_ranking_loss(input1, input2, target, margin, reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: int = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`ws.losses.triplet_margin_loss`"""
    if eps != 1e-6:
        fail(OptionError, f"triplet_margin_loss: eps is 1e-6; received {eps}. Write the distances yourself.")
    return distances.triplet_margin_loss(anchor, positive, negative, margin, p, swap, reduction)


def mse_loss(x: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """`ws.losses.mse`"""
    return regression.mse_loss(x, target, reduction)


def l1_loss(x: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """`ws.losses.mae`"""
    return regression.mae_loss(x, target, reduction)


def huber_loss(x: Tensor, target: Target, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """`ws.losses.huber`"""
    return regression.huber_loss(x, target, delta, reduction)


def smooth_l1_loss(x: Tensor, target: Target, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """`ws.losses.smooth_l1`"""
    return regression.smooth_l1_loss(x, target, beta, reduction)


__getattr__ = missing_names(__name__)  # functions that are the same in `ws`
