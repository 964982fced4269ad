"""Losses of a student that imitates a teacher: softened probabilities, and directions of features.

The teacher's tensors are constants: no gradient flows into them.
"""

from __future__ import annotations

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product
from wholestep.errors import ShapeError
from wholestep.losses.classification import kl_div_with_logits_loss
from wholestep.losses.forms import Meaning, takes_as
from wholestep.losses.shared import Number, Target, match_target, on_arrays, option, reduce

_EPS = 1e-12  # added to the squared length: the direction of a zero vector is 0


@on_arrays
def distillation_loss(
    logits: Tensor,
    teacher: Target,
    temperature: Number = 2.0,
    reduction: str = "mean",
    *,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """T²·KL(softmax(teacher / T) ‖ softmax(logits / T)), averaged over rows (arXiv:1503.02531).

    The factor T² keeps the size of the gradients when the temperature changes.

    Args:
        logits: scores of the student (..., classes).
        teacher: scores of the teacher, of the same shape.

    Example: `ws.losses.distillation_loss(logits, logits * 2.0, temperature=4.0)`.
    """
    scores = fn.stop_gradient(match_target("distillation_loss", logits, teacher))
    heat = option(logits, "distillation_loss", "temperature", temperature)
    takes_as(logits, Meaning(each=False, axis=logits.ndim - 1))
    soft = fn.softmax(scores * (1.0 / heat))
    divergence = kl_div_with_logits_loss(logits * (1.0 / heat), soft, reduction, sample_weight=sample_weight)
    return heat * heat * divergence


@on_arrays
def feature_distillation_loss(
    features: Tensor, teacher: Target, reduction: str = "mean", *, sample_weight: Tensor | None = None
) -> Tensor:
    """‖a/‖a‖ - b/‖b‖‖² of the student's and the teacher's features, averaged over rows (arXiv:1612.03928): their
    directions agree, whatever their scales are.

    Args:
        features: (rows, ...); the elements of a row are flattened to one vector.
        teacher: features of the same shape.  For features of another width, give the student a linear layer; to compare
            values instead of directions, use "mse".

    Example: `ws.losses.feature_distillation_loss(x, x * 2.0)`.
    """
    loss = "feature_distillation_loss"
    other = fn.stop_gradient(match_target(loss, features, teacher))
    if features.ndim < 2:
        fail(ShapeError, f"{loss} compares a vector of each row, (rows, features); received {features!r}.")
    gap = _direction(features) - _direction(other)
    return reduce(loss, (gap * gap).sum(-1), reduction, sample_weight)


def _direction(x: Tensor) -> Tensor:
    flat = x.reshape((x.shape[0], product(x.shape[1:])))
    return flat / fn.sqrt((flat * flat).sum(-1, keepdims=True) + _EPS)
