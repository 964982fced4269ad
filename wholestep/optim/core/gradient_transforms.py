"""Transforms of gradients before the optimizer: norms and clipping, as plain expressions, also for a `@ws.step`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any, overload

from wholestep.compiler.frontend.functions.primitives import maximum, minimum, where
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError

Limit = float | Tensor
Gradients = Sequence[Tensor] | Mapping[str, Tensor]


def global_norm(grads: Gradients) -> Tensor:
    """The norm √Σg² over all elements of all gradients: a sequence or a dict of them, as `ws.gradients` returns.

    Example: `norm = ws.optim.global_norm(ws.gradients(loss, params))`.
    """
    first, *rest = _check_gradients(grads)
    total = (first * first).sum()
    for g in rest:
        total = total + (g * g).sum().astype(total.dtype)
    return total.sqrt()


def _check_gradients(grads: Gradients) -> list[Tensor]:
    """Check the gradients; return them in order."""
    items = list(grads.values()) if isinstance(grads, Mapping) else grads
    if not isinstance(items, list | tuple) or not all(isinstance(g, Tensor) for g in items):
        fail(UsageError, f"gradients are a list or a dict of tensors, as ws.gradients gives them; received {grads!r}.")
    if not items:
        fail(UsageError, "there are no gradients to take the norm of; give at least one.")
    return list(items)


def _alike(grads: Gradients, new: Sequence[Tensor]) -> Any:
    """The new gradients in the container type of the old ones: a dict or a list."""
    return dict(zip(grads, new, strict=True)) if isinstance(grads, Mapping) else list(new)


@overload
def clip_by_global_norm(grads: Sequence[Tensor], max_norm: Limit) -> tuple[list[Tensor], Tensor]: ...
@overload
def clip_by_global_norm(grads: Mapping[str, Tensor], max_norm: Limit) -> tuple[dict[str, Tensor], Tensor]: ...
def clip_by_global_norm(grads: Gradients, max_norm: Limit) -> tuple[Any, Tensor]:
    """Scale all gradients by max_norm/norm if their global norm is larger; the direction is kept.

    Returns the gradients, a list or a dict as they came, and the norm before clipping.  Where the norm is at most
    `max_norm`, no bit changes.

    Example: `grads, norm = ws.optim.clip_by_global_norm(grads, 1.0)`.
    """
    norm = global_norm(grads)
    scale = _clip_factor(norm, max_norm)
    return _alike(grads, [g * scale.astype(g.dtype) for g in _check_gradients(grads)]), norm


@overload
def clip_by_norm(grads: Sequence[Tensor], max_norm: Limit) -> list[Tensor]: ...
@overload
def clip_by_norm(grads: Mapping[str, Tensor], max_norm: Limit) -> dict[str, Tensor]: ...
def clip_by_norm(grads: Gradients, max_norm: Limit) -> Any:
    """Scale each gradient to a norm of at most `max_norm`.

    Example: `grads = ws.optim.clip_by_norm(grads, 1.0)`.
    """
    return _alike(grads, [g * _clip_factor(global_norm([g]), max_norm) for g in _check_gradients(grads)])


@overload
def clip_by_value(grads: Sequence[Tensor], limit: Limit) -> list[Tensor]: ...
@overload
def clip_by_value(grads: Mapping[str, Tensor], limit: Limit) -> dict[str, Tensor]: ...
def clip_by_value(grads: Gradients, limit: Limit) -> Any:
    """Clip each element to [-limit, limit].

    Example: `grads = ws.optim.clip_by_value(grads, 0.5)`.
    """
    return _alike(grads, [maximum(minimum(g, limit), -limit) for g in _check_gradients(grads)])


@overload
def clip_adaptively(grads: Sequence[Tensor], params: Any, limit: Limit = 0.01, eps: Limit = 1e-3) -> list[Tensor]: ...
@overload
def clip_adaptively(
    grads: Mapping[str, Tensor], params: Any, limit: Limit = 0.01, eps: Limit = 1e-3
) -> dict[str, Tensor]: ...
def clip_adaptively(grads: Gradients, params: Any, limit: Limit = 0.01, eps: Limit = 1e-3) -> Any:
    """Adaptive gradient clipping (arXiv:2102.06171): each unit's gradient is scaled to a norm of at most limit·max(‖w‖,
    eps).

    A unit is a row of a weight, all that belongs to one index of its first axis, as in the layers of `ws.nn`; a vector
    is one unit.

    Example: `grads = ws.optim.clip_adaptively(grads, params, 0.01)`.
    """
    chosen, slopes = _check_gradients(params), _check_gradients(grads)
    if len(chosen) != len(slopes):
        fail(UsageError, f"clip_adaptively: {len(slopes)} gradients of {len(chosen)} parameters; give one for each.")
    new = []
    for w, g in zip(chosen, slopes, strict=True):
        most = maximum(_unit_norm(w), eps) * limit
        new.append(g * _clip_factor(_unit_norm(g), most).astype(g.dtype))
    return _alike(grads, new)


def project_conflicts(parts: Sequence[Gradients]) -> Any:
    """PCGrad (arXiv:2001.06782): the sum of the gradients of several losses, each without its component against
    another.

    Where the inner product of two parts' gradients, over all parameters, is negative, each is projected onto the plane
    normal to the other.  A part is projected against the others in their order; the paper draws the order at random.

    Args:
        parts: for each loss its gradients, lists or dicts of the same parameters, as `ws.gradients` gives them.

    Example: `grads = ws.optim.project_conflicts([ws.gradients(loss, params) for loss in losses])`.
    """
    tasks = [_check_gradients(part) for part in parts]
    if len({len(task) for task in tasks}) != 1:
        counts = ", ".join(str(len(task)) for task in tasks)
        fail(UsageError, f"project_conflicts: all losses need gradients of the same parameters; received {counts}.")
    squares = [_inner(task, task) for task in tasks]
    total = None
    for i, own in enumerate(tasks):
        grads = own
        for j, other in enumerate(tasks):
            if i != j:
                against = minimum(_inner(grads, other), 0.0) / maximum(squares[j], 1e-30)
                grads = [g - against.astype(g.dtype) * o for g, o in zip(grads, other, strict=True)]
        total = grads if total is None else [a + b for a, b in zip(total, grads, strict=True)]
    assert total is not None, "one of the counts is that of the first task"
    return _alike(parts[0], total)


def _inner(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return sum_in_float64([(x * y).sum() for x, y in zip(a, b, strict=True)])


def _unit_norm(x: Tensor) -> Tensor:
    """The norm √Σx² of each unit, with axes of size 1 kept."""
    axes = tuple(range(1, x.ndim)) if x.ndim > 1 else tuple(range(x.ndim))
    squares = x * x
    return (squares.sum(axes, keepdims=True) if axes else squares).sqrt()


def count_nonfinite(tensors: Sequence[Tensor]) -> Tensor:
    """The number of elements that are infinite or NaN.

    Example: `bad = ws.optim.count_nonfinite(grads)`.
    """
    total: Tensor | None = None
    for t in tensors:
        # NaN fails both comparisons, which fuse into the sum; squares of finite numbers could overflow.
        largest = t.dtype.largest
        fine = (t <= largest) & (t >= -largest)
        bad = (1.0 - fine.astype(tensors[0].dtype)).sum()
        total = bad if total is None else total + bad
    if total is None:
        fail(UsageError, "count_nonfinite was given no tensors; give at least one.")
    return total


def sum_in_float64(terms: Sequence[Tensor]) -> Tensor:
    """The sum in float64, since parameters may have different dtypes."""
    return reduce(add, [t.astype("float64") for t in terms])


def _clip_factor(norm: Tensor, max_norm: Limit) -> Tensor:
    return where(norm > max_norm, max_norm / norm, 1.0)
