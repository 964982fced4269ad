"""Norms, dropout, and losses over classes."""

from __future__ import annotations

from collections.abc import Sequence

import wholestep as ws
from wholestep.compiler.frontend.layers.composites import normalize_by
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import record
from wholestep.compiler.ir import attrs as at
from wholestep.errors import ShapeError, UsageError
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.sizes import number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op


@onnx_op("BatchNormalization")
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Tensor, ...]:
    """Batch norm; training updates running statistics that are states, although the file froze them."""
    if mean.node.is_state and var.node.is_state:
        return (ws.batch_norm(x, scale, bias, mean, var, momentum=round(1.0 - momentum, 7), eps=epsilon),)
    if not training_mode:
        return (normalize_by(x, mean, var, epsilon, scale, bias),)
    axes = tuple(d for d in range(x.ndim) if d != 1)
    average = x.mean(axes, True)
    spread = ((x - average) * (x - average)).mean(axes)
    moved = [
        old * momentum + new * (1.0 - momentum) for old, new in ((mean, average.reshape(mean.shape)), (var, spread))
    ]
    return ws.batch_norm(x, scale, bias, eps=epsilon), *moved


@onnx_op("LayerNormalization")
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    node: NodeContext,
) -> tuple[Tensor, ...]:
    axes = tuple(range(axis_of(axis, x.ndim), x.ndim))
    shape = tuple(x.shape[d] for d in axes)
    weight, shift = (None if p is None else p if p.shape == shape else p.expand(*shape) for p in (scale, bias))
    out = ws.layer_norm(x, weight, shift, axes, epsilon)
    if node.outputs == 1:
        return (out,)
    mean = x.mean(axes, True)
    return out, mean, ws.rsqrt(((x - mean) * (x - mean)).mean(axes, True) + epsilon)


@onnx_op("RMSNormalization", "SimplifiedLayerNormalization")
def rms_normalization(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5) -> Tensor:
    axes = tuple(range(axis_of(axis, x.ndim), x.ndim))
    shape = tuple(x.shape[d] for d in axes)
    return ws.rms_norm(x, scale if scale.shape == shape else scale.expand(*shape), axis=axes, eps=epsilon)


@onnx_op("GroupNormalization")
def group_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    num_groups: int,
    epsilon: float = 1e-5,
    node: NodeContext,
) -> Tensor:
    if node.opset < 21:  # before opset 21, scale and bias have one number per group, not per channel
        each = int(x.shape[1]) // num_groups
        scale, bias = (p.reshape((num_groups, 1)).expand(num_groups, each).reshape(x.shape[1]) for p in (scale, bias))
    return ws.group_norm(x, num_groups, scale, bias, epsilon)


@onnx_op("InstanceNormalization")
def instance_normalization(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    return ws.group_norm(x, int(x.shape[1]), scale, bias, epsilon)


@onnx_op("MeanVarianceNormalization")
def mean_variance_normalization(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    over = tuple(axes)
    centred = x - x.mean(over, True)
    return centred / (ws.sqrt((centred * centred).mean(over, True)) + 1e-9)


@onnx_op("LpNormalization")
def lp_normalization(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = ws.norm(x, p, axis=axis_of(axis, x.ndim), keepdims=True)
    return ws.where(size == 0, 0.0, x / ws.where(size == 0, 1.0, size))


@onnx_op("LRN")
def local_response(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    channels, before = int(x.shape[1]), (size - 1) // 2
    if not 1 <= size <= 2 * channels + 1:  # a wider window covers the same channels
        raise ShapeError(f"LRN over {size} of {channels} channels; supported: 1 to {2 * channels + 1}.")
    around = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
    squares = ws.pad(x * x, around)
    total = squares[:, 0:channels]
    for i in range(1, size):
        total = total + squares[:, i : i + channels]
    return x / (bias + total * (alpha / size)) ** beta


@onnx_op("Dropout", static=("ratio", "training"))
def dropout(
    x: Tensor, ratio: Array | None = None, training: Array | None = None, *, node: NodeContext
) -> tuple[Tensor, ...]:
    """Dropout by the mode of the step instead of the file's: active in training, the identity in evaluation."""
    rate = 0.5 if ratio is None or not ratio.size else float(number(ratio))
    if node.outputs > 1:
        if training is not None and number(training) and rate:
            raise UsageError("the mask of a Dropout that trains is drawn anew in every step and cannot be read.")
        return x, x == x if not x.shape else ws.ones(x.shape, dtype="bool")
    if x.graph is None or not x.dtype.is_float or rate == 0:
        return (x,)
    return (_with_key(x, rate, node) if node.ours else ws.dropout(x, rate),)


def _with_key(x: Tensor, rate: float, node: NodeContext) -> Tensor:
    """Dropout in a file that Wholestep exported: its random numbers are keyed by the name of the node."""
    assert x.graph is not None
    scalar = x.graph.scalar(f"{node.name}.rate", rate)
    return Tensor(record("dropout", [x.node, scalar.node], at.DropoutAttrs(node.name)), x.graph)


@onnx_op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return ws.losses.nll_loss(x, labels, ignore_index, reduction, class_weight=weight, axis=1)


@onnx_op("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:
    log_probabilities = ws.log_softmax(x, 1)
    loss = ws.losses.nll_loss(log_probabilities, labels, ignore_index, reduction, class_weight=weight, axis=1)
    return loss, log_probabilities
