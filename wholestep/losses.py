"""Losses: scalar tensors that end in ratio(numerator, denominator), so that a window of parts equals one batch.

Element-wise losses divide by elements; cross entropy and KL sum over classes (the last axis) and divide by rows.
Every loss takes `reduction="mean"`, `"sum"` or `"none"`.
"""

from __future__ import annotations

from wholestep.compiler.frontend import functions as fn
from wholestep.compiler.frontend.promote import Literal
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, common_graph, ratio
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = [
    "cross_entropy",
    "mse_loss",
    "rmse_loss",
    "mae_loss",
    "huber_loss",
    "smooth_l1_loss",
    "cross_entropy_with_logits_loss",
    "kl_div_with_logits_loss",
    "binary_cross_entropy_with_logits_loss",
]

Target = Tensor | Literal


# -- regression --------------------------------------------------------------------------------------------------


def mse_loss(prediction: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """Mean squared error: Σ (p - t)² / n.

    Example: `ws.losses.mse_loss(x @ w, y)`.
    """
    error = prediction - _target("mse_loss", prediction, target)
    return _reduce(error * error, reduction)


def rmse_loss(prediction: Tensor, target: Target) -> Tensor:
    """Root of the mean squared error; its gradient at zero error is 0.

    Example: `ws.losses.rmse_loss(x @ w, y)`.
    """
    mean = mse_loss(prediction, target)
    wrong = mean > 0.0
    # The inner `where` keeps the root's infinite slope at 0 out of the product that the chain rule forms.
    return fn.where(wrong, fn.where(wrong, mean, 1.0).sqrt(), 0.0)


def mae_loss(prediction: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """Mean absolute error: Σ |p - t| / n; its gradient at zero error is 0.

    Example: `ws.losses.mae_loss(x @ w, y)`.
    """
    return _reduce(fn.abs(prediction - _target("mae_loss", prediction, target)), reduction)


def huber_loss(prediction: Tensor, target: Target, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """0.5·d² where |d| < delta, else delta·(|d| - 0.5·delta), averaged over elements (Huber, 1964).

    Example: `ws.losses.huber_loss(x @ w, y, delta=2.0)`.
    """
    if not delta > 0:
        fail(OptionError, f"huber_loss: delta must be above 0; received {delta}.")
    error = prediction - _target("huber_loss", prediction, target)
    size = fn.abs(error)
    return _reduce(fn.where(size < delta, 0.5 * error * error, delta * (size - 0.5 * delta)), reduction)


def smooth_l1_loss(prediction: Tensor, target: Target, delta: float = 1.0, reduction: str = "mean") -> Tensor:
    """huber_loss / delta: a slope of 1 for large errors.

    Example: `ws.losses.smooth_l1_loss(x @ w, y)`.
    """
    return huber_loss(prediction, target, delta, reduction) * (1.0 / delta)


# -- classification ----------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, target: Target, ignore_index: int | None = None, reduction: str = "mean") -> Tensor:
    """-Σ t·log softmax(logits) over classes (the last axis), averaged over rows.

    Args:
        logits: (..., classes).
        target: class indices of an integer dtype, shape (...), or probabilities of the logits' shape and dtype.
        ignore_index: rows with this index count neither above nor below the line.

    Example: `ws.losses.cross_entropy(logits, labels)`.
    """
    labels = as_tensor(target)
    if not labels.dtype.is_integer:
        if ignore_index is not None:
            fail(OptionError, "cross_entropy: ignore_index needs class indices; the target holds probabilities.")
        probabilities = _target("cross_entropy", logits, target)
        return _reduce(-(probabilities * fn.log_softmax(logits)).sum(-1), reduction)
    if labels.shape == logits.shape and logits.ndim > 0:
        fail(
            DTypeError,
            f"cross_entropy: a target of shape {shape_text(labels.shape)}, that of the logits, holds probabilities and "
            f"needs dtype {logits.dtype}; received {labels.dtype}. Cast it, target.astype('{logits.dtype}'), or pass "
            "class indices: target.argmax(-1).",
        )
    if ignore_index is None:
        return _reduce(_row_losses(logits, labels), reduction)
    return _ignoring(logits, labels, ignore_index, reduction)


def _row_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return Tensor(record("cross_entropy", [logits.node, labels.node]), common_graph(logits, labels))


def _ignoring(logits: Tensor, labels: Tensor, ignore_index: int, reduction: str) -> Tensor:
    counted = labels != ignore_index
    rows = fn.where(counted, _row_losses(logits, fn.where(counted, labels, 0)), 0.0)
    if reduction != "mean":
        return _reduce(rows, reduction)
    return ratio(rows.sum(), counted.astype(logits.dtype).sum())


def cross_entropy_with_logits_loss(logits: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """`cross_entropy` under its longer name.

    Example: `ws.losses.cross_entropy_with_logits_loss(logits, probabilities)`.
    """
    return cross_entropy(logits, target, reduction=reduction)


def kl_div_with_logits_loss(logits: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """Σ t·(log t - log softmax(logits)) over classes, averaged over rows; a target of 0 contributes 0.

    Example: `ws.losses.kl_div_with_logits_loss(logits, probabilities)`.
    """
    t = _target("kl_div_with_logits_loss", logits, target)
    log_t = fn.log(fn.where(t > 0.0, t, 1.0))
    return _reduce((t * (log_t - fn.log_softmax(logits))).sum(-1), reduction)


def binary_cross_entropy_with_logits_loss(logits: Tensor, target: Target, reduction: str = "mean") -> Tensor:
    """max(x, 0) - x·t + log1p(exp(-|x|)), averaged over elements; it never overflows.

    Example: `ws.losses.binary_cross_entropy_with_logits_loss(logits, targets)`.
    """
    t = _target("binary_cross_entropy_with_logits_loss", logits, target)
    size = fn.abs(logits)
    # max(x, 0) as (x + |x|)/2, which is exact and has the slope 1/2 at 0, so that the sum has sigmoid(0) - t there.
    return _reduce(0.5 * (logits + size) - logits * t + fn.log1p(fn.exp(-size)), reduction)


# -- shared ------------------------------------------------------------------------------------------------------


def _target(loss: str, prediction: Tensor, target: Target) -> Tensor:
    """The target as a tensor of the prediction's shape; a single number stands for all elements."""
    if isinstance(target, int | float):
        return as_tensor(target)
    t = as_tensor(target)
    if t.shape != prediction.shape:
        fail(
            ShapeError,
            f"{loss}: prediction and target must have one shape; received {shape_text(prediction.shape)} and "
            f"{shape_text(t.shape)}. Broadcasting here would average over pairs; reshape one: y.reshape(-1, 1).",
        )
    return t


def _reduce(values: Tensor, reduction: str) -> Tensor:
    if reduction not in ("mean", "sum", "none"):
        fail(OptionError, f"reduction is 'mean', 'sum' or 'none'; received {reduction!r}.")
    if reduction == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()
