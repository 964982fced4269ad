"""Losses that are operators."""

from __future__ import annotations

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.onnx.read.table import onnx_op


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
