"""Histograms: counts of integers and of values per interval, and search in sorted edges."""

from __future__ import annotations

import numpy as np

from wholestep.compiler.frontend.functions.primitives import floor, minimum, scatter_add
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["bincount", "bucketize", "histc", "searchsorted"]


def bincount(x: Operand, size: int, weights: Operand | None = None) -> Tensor:
    """How often each of 0 ... size - 1 occurs in an integer tensor, as int32; or the sum of their weights.

    Values outside are clamped.  Example: `ws.bincount(labels, 10)`.
    """
    t = as_tensor(x)
    if not t.dtype.is_integer:
        fail(DTypeError, f"bincount needs integers; received {t!r}. Cast them: x.astype('int32').")
    flat = t.reshape((product(t.shape),))
    if weights is None:
        return scatter_add(as_tensor(1).astype("int32").expand(*flat.shape), flat, size)
    return scatter_add(as_tensor(weights).reshape(flat.shape), flat, size)


def histc(x: Operand, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """The number of elements in each of `bins` equal intervals from min to max, in x's dtype; elements outside are
    ignored.  With min = max, from the smallest to the largest element.

    Example: `ws.histc(x, 4, 0.0, 1.0)`.
    """
    t = as_tensor(x)
    if bins < 1 or max < min:
        fail(OptionError, f"histc: bins must be at least 1 and max not less than min; received {bins}, {min}, {max}.")
    kind = t.dtype
    t = t if kind.is_float else t.astype("float64")
    flat = t.reshape((product(t.shape),))
    if min == max:
        low, high = flat.min(), flat.max()
        same = low == high
        low, high = where(same, low - 1.0, low), where(same, high + 1.0, high)
        position = (flat - low) / (high - low) * float(bins)
        inside = flat == flat
    else:
        position = (flat - float(min)) * (bins / (max - min))
        inside = (flat >= float(min)) & (flat <= float(max))
    index = minimum(floor(where(inside, position, 0.0)).astype("int32"), bins - 1)
    return scatter_add(inside.astype(kind), index, bins)


def searchsorted(edges: Operand, values: Operand, right: bool = False) -> Tensor:
    """The int32 position at which each value would be inserted into sorted edges: before equal ones, or after them with
    `right`.

    Args:
        edges: (n,), or (..., n) with the leading axes of the values.

    Example: `ws.searchsorted([1.0, 2.0, 3.0], [2.5])` is [2].
    """
    e, v = as_tensor(np.asarray(edges) if isinstance(edges, list) else edges), as_tensor(values)
    if e.ndim != 1 and e.shape[:-1] != v.shape[:-1]:
        fail(
            ShapeError,
            f"searchsorted: edges must be a vector, or have the leading axes of the values; received "
            f"{shape_text(e.shape)} and {shape_text(v.shape)}.",
        )
    row = e if e.ndim == 1 else e.reshape((*e.shape[:-1], 1, e.shape[-1]))
    column = v.reshape((*v.shape, 1))
    return (row <= column if right else row < column).astype("int32").sum(-1)


def bucketize(x: Operand, edges: Operand, right: bool = False) -> Tensor:
    """The interval between sorted edges (n,) that contains each element, from 0 to n; an edge belongs to the interval
    below it, or with `right` to the one above.

    Example: `ws.bucketize([0.5, 2.0], [1.0, 2.0])` is [0, 1].
    """
    return searchsorted(edges, x, right)
