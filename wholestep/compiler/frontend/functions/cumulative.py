"""Product reductions (as a binary tree), and cumulative products, maxima and log-sum-exps (by scan)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import concat, exp, iota, log1p, maximum
from wholestep.compiler.frontend.functions.reductions import normalize_axis
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Axes, Operand, Tensor, as_tensor, where
from wholestep.compiler.ir.types import boolean

__all__ = ["cummax", "cummin", "cumprod", "logcumsumexp", "prod"]


def prod(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product over the axes (all by default); its gradient is exact even if factors are 0.

    An axis of fixed size is reduced as a binary tree; a symbolic one element by element.

    Example: `ws.prod([2.0, 3.0])` is 6.
    """
    t = as_tensor(x)
    t = t.astype("int32") if t.dtype == boolean else t
    axes = t._axes(axis)
    for d in axes:
        t = _product_tree(t, d)
    return t if keepdims else t.reshape(tuple(e for d, e in enumerate(t.shape) if d not in axes))


def _product_tree(x: Tensor, axis: int) -> Tensor:
    """The product along an axis, kept with size 1: multiplies its two halves until one element is left."""
    size = x.shape[axis]
    if not isinstance(size, int):
        return cumprod(x, axis)[(*(slice(None),) * axis, slice(-1, None))]
    before = (slice(None),) * axis
    if size == 0:
        return pad(x, [(0, int(d == axis)) for d in range(x.ndim)], 1.0)
    while size > 1:
        half = size // 2
        products = x[(*before, slice(0, half))] * x[(*before, slice(half, 2 * half))]
        if size % 2:
            rest = x[(*before, slice(2 * half, size))]
            first = products[(*before, slice(0, 1))] * rest
            products = first if half == 1 else concat([first, products[(*before, slice(1, half))]], axis)
        x, size = products, half
    return x


def _scan_axis(op: str, x: Tensor, axis: int, step: Callable[[Any, Any], tuple[Any, Any]], start: Any) -> Any:
    """The outputs of a scan along an axis, with the axis at its original position."""
    at = normalize_axis(op, x, axis)
    order = [at, *(d for d in range(x.ndim) if d != at)]
    back = [order.index(d) for d in range(x.ndim)]
    steps = x.permute(order)
    first = steps[0]
    _, out = scan(step, start(first), (steps, iota((steps.shape[0],), 0)))
    return tuple(t.permute(back) for t in out) if isinstance(out, tuple) else out.permute(back)


def _full_like(like: Tensor, value: float) -> Tensor:
    number = as_tensor(value).astype(like.dtype)
    return number.expand(*like.shape) if like.ndim else number


def cumprod(x: Tensor, axis: int = -1) -> Tensor:
    """y[i] = x[0] · ... · x[i] along an axis, computed sequentially.  Example: `ws.cumprod(x, 1)`."""

    def step(total: Tensor, slices: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        total = total * slices[0]
        return total, total

    out: Tensor = _scan_axis("cumprod", x, axis, step, lambda first: _full_like(first, 1))
    return out


def cummax(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The running maximum along an axis and its int32 index (the last of equal elements), as in torch.

    Example: `best, where_from = ws.cummax(x, 1)`.
    """

    def step(carry: tuple[Tensor, Tensor], slices: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
        best, at = carry
        element, number = slices
        better = (element >= best) | (element != element)
        updated = (where(better, element, best), where(better, number, at))
        return updated, updated

    def start(first: Tensor) -> tuple[Tensor, Tensor]:
        zero = as_tensor(0).astype("int32")
        return first, zero.expand(*first.shape) if first.ndim else zero

    best, at = _scan_axis("cummax", x, axis, step, start)
    return best, at


def cummin(x: Tensor, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The running minimum along an axis and its int32 index (the last of equal elements).

    Example: `worst, where_from = ws.cummin(x, 1)`.
    """
    best, at = cummax(x._mirrored(), axis)
    return best._mirrored(), at


def logcumsumexp(x: Tensor, axis: int = -1) -> Tensor:
    """log(exp x[0] + ... + exp x[i]) along an axis.  Example: `ws.logcumsumexp(log_p, 1)`."""

    def step(total: Tensor, slices: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        element = slices[0]
        larger = maximum(total, element)
        difference = -abs(total - element)
        total = where(larger == -math.inf, larger, larger + log1p(exp(where(larger == -math.inf, 0.0, difference))))
        return total, total

    out: Tensor = _scan_axis("logcumsumexp", x, axis, step, lambda first: _full_like(first, -math.inf))
    return out
