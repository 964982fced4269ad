"""Losses under PyTorch's names: `ws.nn.CrossEntropyLoss(label_smoothing=0.1)` is a `ws.losses.Loss`.

It is what `loss=` of `ws.fit` takes, and is called like PyTorch's: `criterion(outputs, targets)`.
"""

from __future__ import annotations

from typing import Any

from wholestep.losses.table import Loss

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "HuberLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
]  # fmt: skip


def _loss(kind: str, **options: Any) -> Loss:
    return Loss(kind, **{name: value for name, value in options.items() if value is not None})


def CrossEntropyLoss(
    weight: Any = None, ignore_index: int | None = None, reduction: str = "mean", label_smoothing: float = 0.0
) -> Loss:
    """`ws.losses.cross_entropy` of raw scores; targets are class indices or probabilities.

    Rows to leave out are named: `ignore_index=-100`.  Example: `ws.nn.CrossEntropyLoss(label_smoothing=0.1)`.
    """
    smoothing = label_smoothing or None
    return _loss(
        "cross_entropy", class_weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing
    )


def NLLLoss(weight: Any = None, ignore_index: int | None = None, reduction: str = "mean") -> Loss:
    """`ws.losses.nll_loss`, for models that end in `log_softmax`.  Example: `ws.nn.NLLLoss()`."""
    return _loss("nll", class_weight=weight, ignore_index=ignore_index, reduction=reduction)


def BCEWithLogitsLoss(reduction: str = "mean", pos_weight: Any = None) -> Loss:
    """`ws.losses.binary_cross_entropy`, for raw scores.  Example: `ws.nn.BCEWithLogitsLoss()`."""
    return _loss("binary_cross_entropy", reduction=reduction, pos_weight=pos_weight)


def BCELoss(reduction: str = "mean") -> Loss:
    """`ws.losses.bce_of_probabilities`, for models that end in a sigmoid.  Example: `ws.nn.BCELoss()`."""
    return _loss("bce_of_probabilities", reduction=reduction)


def MSELoss(reduction: str = "mean") -> Loss:
    """`ws.losses.mse`.  Example: `ws.nn.MSELoss()`."""
    return _loss("mse", reduction=reduction)


def L1Loss(reduction: str = "mean") -> Loss:
    """`ws.losses.mae`.  Example: `ws.nn.L1Loss()`."""
    return _loss("mae", reduction=reduction)


def HuberLoss(reduction: str = "mean", delta: float = 1.0) -> Loss:
    """`ws.losses.huber`.  Example: `ws.nn.HuberLoss(delta=2.0)`."""
    return _loss("huber", reduction=reduction, delta=delta)


def SmoothL1Loss(reduction: str = "mean", beta: float = 1.0) -> Loss:
    """`ws.losses.smooth_l1`.  Example: `ws.nn.SmoothL1Loss(beta=0.5)`."""
    return _loss("smooth_l1", reduction=reduction, delta=beta)
