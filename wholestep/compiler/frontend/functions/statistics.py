"""Reductions composed of sums and maxima: variance, norms, truth values, similarity."""

from __future__ import annotations

import math

from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, ratio, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["all", "any", "argmin", "cosine_similarity", "count_nonzero", "norm", "normalize", "std", "var"]


def var(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> Tensor:
    """Σ (x - mean)² / (n - correction) over the axes, all of them unless given.

    Args:
        correction: 1 for the sample variance, as in torch (`unbiased=True`); 0 for the population variance.

    Example: `ws.var([1.0, 3.0])` is 2.
    """
    t = float_tensor("var", x)
    axes = t._axes(axis)
    count: Extent = product(t.shape[d] for d in axes)
    degrees = count - int(correction)
    if isinstance(degrees, int) and degrees < 1:
        fail(
            ShapeError,
            f"var: {count} values minus a correction of {int(correction)} leave no degrees of freedom over axes {axes} "
            f"of {shape_text(t.shape)}. Write correction=0.",
        )
    centred = t - t.mean(axes, keepdims=True)
    return ratio((centred * centred).sum(axes, keepdims), degrees)


def std(x: Operand, axis: Axes = None, correction: int = 1, keepdims: bool = False) -> Tensor:
    """√var, with the arguments of `ws.var`.  Example: `ws.std([1.0, 3.0], correction=0)` is 1."""
    return var(x, axis, correction, keepdims).sqrt()


def norm(x: Operand, p: float | str = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """(Σ |x|ᵖ)^(1/p) over the axes, all of them unless given; the gradient at 0 is 0.

    Args:
        p: 2 or "fro", 1, 0 (the number of nonzeros), inf and -inf (the largest and the smallest), or any other number.

    Example: `ws.norm([3.0, 4.0])` is 5.
    """
    t = float_tensor("norm", x)
    size = abs(t)
    if p in (2, "fro"):
        return _root((t * t).sum(axis, keepdims))
    if isinstance(p, str):
        fail(OptionError, f"norm: p must be a number or 'fro'; received {p!r}.")
    if p == 1:
        return size.sum(axis, keepdims)
    if p == 0:
        return (t != 0).astype(t.dtype).sum(axis, keepdims)
    if math.isinf(p):
        return size.max(axis, keepdims) if p > 0 else size.min(axis, keepdims)
    powers = where(size == 0, 0.0, where(size == 0, 1.0, size) ** float(p))
    total = powers.sum(axis, keepdims)
    return where(total == 0, 0.0, where(total == 0, 1.0, total) ** (1.0 / p))


def _root(total: Tensor) -> Tensor:
    """The square root of `total`, whose gradient at 0 is 0 instead of infinity."""
    is_zero = total == 0
    return where(is_zero, 0.0, where(is_zero, 1.0, total).sqrt())


def normalize(x: Operand, p: float = 2, axis: Axes = -1, eps: float = 1e-12) -> Tensor:
    """x / max(‖x‖ₚ, eps) along an axis.  Example: `ws.normalize([3.0, 4.0])` is [0.6, 0.8]."""
    t = float_tensor("normalize", x)
    length = norm(t, p, axis, keepdims=True)
    return t / where(length < eps, eps, length)


def cosine_similarity(x: Operand, y: Operand, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """x · y / (‖x‖ ‖y‖) along an axis, each norm at least eps.

    Example: `ws.cosine_similarity([1.0, 0.0], [0.0, 2.0])` is 0.
    """
    a, b = float_tensor("cosine_similarity", x), float_tensor("cosine_similarity", y)
    return (normalize(a, 2, axis, eps) * normalize(b, 2, axis, eps)).sum(axis)


def argmin(x: Operand, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The int32 index of the first smallest element.  Example: `ws.argmin([3.0, 1.0], 0)` is 1."""
    return as_tensor(x)._mirrored().argmax(axis, keepdims)


def any(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Is any element along the axes True, or nonzero?  Example: `ws.any([False, True])` is True."""
    return _truth(x).max(axis, keepdims) > 0


def all(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Is every element along the axes True, or nonzero?  Example: `ws.all([False, True])` is False."""
    return _truth(x).min(axis, keepdims) > 0


def count_nonzero(x: Operand, axis: Axes = None) -> Tensor:
    """The number of nonzero elements along the axes, as int32.  Example: `ws.count_nonzero([3.0, 0.0])` is 1."""
    return _truth(x).sum(axis)


def _truth(x: Operand) -> Tensor:
    t = as_tensor(x)
    return (t if t.dtype == boolean else t != 0).astype("int32")


def float_tensor(op: str, x: Operand) -> Tensor:
    """A tensor of a float dtype; an error for any other."""
    t = as_tensor(x)
    if not t.dtype.is_float:
        fail(DTypeError, f"{op} needs a float tensor; received {t.node.type}. Cast it first: x.astype('float32').")
    return t
