"""What may happen to gradients before the optimizer sees them: plain expressions, for a `@ws.step` too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from wholestep.compiler.frontend.functions import maximum, minimum, where
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError

Limit = float | Tensor


def global_norm(grads: Sequence[Tensor]) -> Tensor:
    """√Σg², over all elements of all gradients.

    Example: `norm = ws.optim.global_norm(ws.gradients(loss, params))`.
    """
    if not grads:
        fail(UsageError, "the norm of no gradients was asked for; give at least one.")
    total = (grads[0] * grads[0]).sum()
    for g in grads[1:]:
        total = total + (g * g).sum().astype(total.dtype)
    return total.sqrt()


def clip_by_global_norm(grads: Sequence[Tensor], max_norm: Limit) -> tuple[list[Tensor], Tensor]:
    """All gradients, shortened together by max_norm/norm where their global norm is larger; the direction is kept.

    Returns the gradients and the norm before clipping.  Where the norm is at most `max_norm`, no bit changes.

    Example: `grads, norm = ws.optim.clip_by_global_norm(grads, 1.0)`.
    """
    norm = global_norm(grads)
    scale = _shortening(norm, max_norm)
    return [g * scale.astype(g.dtype) for g in grads], norm


def clip_by_norm(grads: Sequence[Tensor], max_norm: Limit) -> list[Tensor]:
    """Each gradient shortened to `max_norm` by itself.

    Example: `grads = ws.optim.clip_by_norm(grads, 1.0)`.
    """
    return [g * _shortening(global_norm([g]), max_norm) for g in grads]


def clip_by_value(grads: Sequence[Tensor], limit: Limit) -> list[Tensor]:
    """Each element brought into [-limit, limit].

    Example: `grads = ws.optim.clip_by_value(grads, 0.5)`.
    """
    return [maximum(minimum(g, limit), -limit) for g in grads]


def count_nonfinite(tensors: Sequence[Tensor]) -> Tensor:
    """How many elements are infinite or not a number.

    Example: `bad = ws.optim.count_nonfinite(grads)`.
    """
    total: Tensor | None = None
    for t in tensors:
        # Comparisons that a NaN fails, and nothing that would be stored; squares of finite numbers may overflow.
        largest = float(np.finfo(t.dtype.numpy).max)
        fine = (t <= largest) & (t >= -largest)
        bad = (1.0 - fine.astype(tensors[0].dtype)).sum()
        total = bad if total is None else total + bad
    if total is None:
        fail(UsageError, "count_nonfinite was given no tensors; give at least one.")
    return total


def _shortening(norm: Tensor, max_norm: Limit) -> Tensor:
    return where(norm > max_norm, max_norm / norm, 1.0)
