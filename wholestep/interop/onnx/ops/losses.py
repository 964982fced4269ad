"""Losses that are operators."""

from __future__ import annotations

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.onnx.read.table import onnx_op


def _negative_log_likelihood(
    log_probabilities: Tensor, labels: Tensor, weight: Tensor | None, ignore: int | None, reduction: str
) -> Tensor:
    x = log_probabilities
    labels = labels.astype("int64")
    counted = None if ignore is None else labels != ignore
    safe = labels if counted is None else ws.where(counted, labels, 0)
    here = safe.reshape((labels.shape[0], 1, *labels.shape[1:])) == ws.iota(x.shape, 1, "int64")
    each = -ws.where(here, x, 0.0).sum(1)
    share = ws.ones(labels.shape, dtype=x.dtype) if weight is None else ws.gather(weight, safe)
    share = share if counted is None else ws.where(counted, share, 0.0)
    lost = each * share
    if reduction == "none":
        return lost
    return lost.sum() if reduction == "sum" else ws.ratio(lost.sum(), share.sum())


@onnx_op("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    x: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    return _negative_log_likelihood(x, labels, weight, ignore_index, reduction)


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
    return _negative_log_likelihood(log_probabilities, labels, weight, ignore_index, reduction), log_probabilities
