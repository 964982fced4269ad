"""Counting: how often numbers occur, into which interval they fall."""

from __future__ import annotations

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.primitives import floor, minimum, scatter_add
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["bincount", "bucketize", "histc", "searchsorted"]


def bincount(x: Operand, size: int, weights: Operand | None = None) -> Tensor:
    """How often each of 0 ... size - 1 occurs among whole numbers, as int32; or the sum of their weights.

    A number outside counts as the nearest that is inside.  Example: `ws.bincount(labels, 10)`.
    """
    t = as_tensor(x)
    if not t.dtype.is_integer:
        fail(DTypeError, f"bincount counts whole numbers; received {t!r}. Cast them: x.astype('int32').")
    flat = t.reshape((product(t.shape),))
    if weights is None:
        return scatter_add(as_tensor(1).astype("int32").expand(*flat.shape), flat, size)
    return scatter_add(as_tensor(weights).reshape(flat.shape), flat, size)


def histc(x: Operand, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements fall into each of `bins` equal intervals from min to max, in x's dtype; those outside are left
    out.  With min = max, from the smallest to the largest element.

    Example: `ws.histc(x, 4, 0.0, 1.0)`.
    """
    t = as_tensor(x)
    if bins < 1 or max < min:
        fail(OptionError, f"histc: bins is at least 1, max not below min; received {bins}, {min}, {max}.")
    kind = t.dtype
    t = t if kind.is_float else t.astype("float64")
    flat = t.reshape((product(t.shape),))
    if min == max:
        low, high = flat.min(), flat.max()
        same = low == high
        low, high = where(same, low - 1.0, low), where(same, high + 1.0, high)
        place = (flat - low) / (high - low) * float(bins)
        inside = flat == flat
    else:
        place = (flat - float(min)) * (bins / (max - min))
        inside = (flat >= float(min)) & (flat <= float(max))
    index = minimum(floor(where(inside, place, 0.0)).astype("int32"), bins - 1)
    return scatter_add(inside.astype(kind), index, bins)


def searchsorted(edges: Operand, values: Operand, right: bool = False) -> Tensor:
    """The int32 place at which each value would be put into edges in rising order so that they stay so: before equal
    ones, or behind them with `right`.

    Args:
        edges: (n,), or (..., n) with the leading axes of the values.

    Example: `ws.searchsorted([1.0, 2.0, 3.0], [2.5])` is [2].
    """
    e, v = as_tensor(np.asarray(edges) if isinstance(edges, list) else edges), as_tensor(values)
    if e.ndim != 1 and e.shape[:-1] != v.shape[:-1]:
        fail(
            ShapeError,
            f"searchsorted: edges are a vector, or have the leading axes of the values; received {shape_text(e.shape)} "
            f"and {shape_text(v.shape)}.",
        )
    row = e if e.ndim == 1 else e.reshape((*e.shape[:-1], 1, e.shape[-1]))
    each = v.reshape((*v.shape, 1))
    return (row <= each if right else row < each).astype("int32").sum(-1)


def bucketize(x: Operand, edges: Operand, right: bool = False) -> Tensor:
    """In which of the intervals between edges (n,) in rising order each element lies, from 0 to n; an edge itself
    belongs to the interval below it, with `right` to that above.

    Example: `ws.bucketize([0.5, 2.0], [1.0, 2.0])` is [0, 1].
    """
    return searchsorted(edges, x, right)


take_their_words(globals(), __all__)
