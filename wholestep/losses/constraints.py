"""Logical constraints as terms of a loss: truth values between 0 and 1, composed by product logic.

For probabilities of independent events, these are the probabilities of their conjunction and disjunction.  A constraint
that a model should satisfy adds -log(truth) to the loss (for dependent events arXiv:1711.11157 has the exact form); its
weight is a runtime scalar if the loss is a dict of parts: `loss_weights={"symmetry": 0.1}`.
"""

from __future__ import annotations

from functools import reduce as fold

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import DTypeError, UsageError
from wholestep.losses.shared import reduce

_LEAST = 1e-30  # the least truth value: the loss of a false statement is 69, not infinite


def soft_not(truth: Tensor) -> Tensor:
    """1 - a.  Example: `ws.losses.constraint_loss(ws.losses.soft_not(ws.sigmoid(logits)))`."""
    return 1.0 - _check("soft_not", truth)


def soft_and(*truths: Tensor) -> Tensor:
    """The product of all truth values.

    Example: `ws.losses.constraint_loss(ws.losses.soft_and(ws.sigmoid(x), ws.sigmoid(logits)))`.
    """
    if not truths:
        fail(UsageError, "soft_and was given no truth values; give at least one.")
    return fold(lambda a, b: a * b, [_check("soft_and", t) for t in truths])


def soft_or(*truths: Tensor) -> Tensor:
    """1 - the product of all 1 - a.

    Example: `ws.losses.constraint_loss(ws.losses.soft_or(ws.sigmoid(x), ws.sigmoid(logits)))`.
    """
    return soft_not(soft_and(*(soft_not(t) for t in truths)))


def soft_implies(a: Tensor, b: Tensor) -> Tensor:
    """1 - a·(1 - b): false only where a is true and b is not.

    Example: `ws.losses.constraint_loss(ws.losses.soft_implies(ws.sigmoid(x), ws.sigmoid(logits)))`.
    """
    return soft_not(soft_and(a, soft_not(b)))


def constraint_loss(truth: Tensor, reduction: str = "mean", *, sample_weight: Tensor | None = None) -> Tensor:
    """-log(truth), averaged over elements: 0 where the constraint holds.

    Example: `ws.losses.constraint_loss(ws.sigmoid(logits))`.
    """
    t = _check("constraint_loss", truth)
    return reduce("constraint_loss", -fn.log(fn.maximum(t, _LEAST)), reduction, sample_weight)


def _check(name: str, truth: Tensor) -> Tensor:
    if not isinstance(truth, Tensor) or not truth.dtype.is_float:
        fail(
            DTypeError, f"{name} takes truth values, floats between 0 and 1 such as ws.sigmoid(x); received {truth!r}."
        )
    return truth
