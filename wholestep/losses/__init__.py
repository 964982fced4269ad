"""Losses: scalar tensors that end in ratio(numerator, denominator), so that a window of parts equals one batch.

Element-wise losses divide by elements; cross entropy and KL sum over classes (the last axis) and divide by rows.
Losses take raw scores where they can and `reduction="mean"`, `"sum"` or `"none"`; `sample_weight` says how much each
row counts.  Numbers such as `delta` or `label_smoothing` are runtime scalars: changing one never recompiles.  Dice and
InfoNCE see a batch as a whole and cannot be cut into parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.lazy import postponed

if TYPE_CHECKING:
    from wholestep.losses.arrays import value_and_grad
    from wholestep.losses.classification import (
        binary_cross_entropy_with_logits_loss,
        cross_entropy,
        cross_entropy_with_logits_loss,
        focal_loss,
        hinge_loss,
        kl_div_with_logits_loss,
    )
    from wholestep.losses.regression import (
        gaussian_nll_loss,
        huber_loss,
        log_cosh_loss,
        mae_loss,
        mse_loss,
        poisson_nll_loss,
        quantile_loss,
        rmse_loss,
        smooth_l1_loss,
    )
    from wholestep.losses.similarity import cosine_embedding_loss, dice_loss, info_nce_loss
    from wholestep.losses.table import LOSSES, Loss, get

    mse, rmse, mae, l1, huber, smooth_l1 = mse_loss, rmse_loss, mae_loss, mae_loss, huber_loss, smooth_l1_loss
    log_cosh, quantile, poisson_nll, gaussian_nll = log_cosh_loss, quantile_loss, poisson_nll_loss, gaussian_nll_loss
    kl_div, focal, hinge = kl_div_with_logits_loss, focal_loss, hinge_loss
    bce = binary_cross_entropy = binary_cross_entropy_with_logits_loss
    cosine_embedding, dice, info_nce = cosine_embedding_loss, dice_loss, info_nce_loss

_HOMES = {
    "arrays": ["value_and_grad"],
    "classification": [
        "binary_cross_entropy_with_logits_loss",
        "cross_entropy",
        "cross_entropy_with_logits_loss",
        "focal_loss",
        "hinge_loss",
        "kl_div_with_logits_loss",
    ],
    "regression": [
        "gaussian_nll_loss",
        "huber_loss",
        "log_cosh_loss",
        "mae_loss",
        "mse_loss",
        "poisson_nll_loss",
        "quantile_loss",
        "rmse_loss",
        "smooth_l1_loss",
    ],
    "similarity": ["cosine_embedding_loss", "dice_loss", "info_nce_loss"],
    "table": ["LOSSES", "Loss", "get"],
}
_ALIASES = {
    **{name: f"{name}_loss" for name in ("mse", "rmse", "mae", "huber", "smooth_l1", "log_cosh", "quantile", "hinge")},
    **{
        name: f"{name}_loss"
        for name in ("poisson_nll", "gaussian_nll", "focal", "cosine_embedding", "dice", "info_nce")
    },
    "l1": "mae_loss",
    "kl_div": "kl_div_with_logits_loss",
    "bce": "binary_cross_entropy_with_logits_loss",
    "binary_cross_entropy": "binary_cross_entropy_with_logits_loss",
}
if not TYPE_CHECKING:  # a checker sees the imports above
    __getattr__ = postponed(__name__, _HOMES, _ALIASES)

# fmt: off
__all__ = [
    # numbers
    "mse_loss", "rmse_loss", "mae_loss", "huber_loss", "smooth_l1_loss", "log_cosh_loss", "quantile_loss",
    "poisson_nll_loss", "gaussian_nll_loss",
    # classes
    "cross_entropy", "cross_entropy_with_logits_loss", "kl_div_with_logits_loss",
    "binary_cross_entropy_with_logits_loss", "focal_loss", "hinge_loss",
    # vectors and regions
    "cosine_embedding_loss", "dice_loss", "info_nce_loss",
    # short names
    "mse", "rmse", "mae", "l1", "huber", "smooth_l1", "log_cosh", "quantile", "poisson_nll", "gaussian_nll", "kl_div",
    "bce", "binary_cross_entropy", "focal", "hinge", "cosine_embedding", "dice", "info_nce",
    # by name, and on arrays
    "LOSSES", "Loss", "get", "value_and_grad",
]
