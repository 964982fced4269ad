"""Choosing along an axis: elements by their indices, in order of size, the largest few; and random whole numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions import (
    arange,
    concat,
    floor,
    gather,
    iota,
    maximum,
    minimum,
    random_uniform,
    scatter_add,
)
from wholestep.compiler.frontend.scan import scan
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError, UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

__all__ = ["argsort", "random_integers", "sort", "take_along_axis", "topk"]

MANY = 2**31  # elements of a tensor that int32 cannot number
# Axes up to this length are looked through; in longer ones elements are found by their number in the whole tensor: that
# is quicker there, but numbers the rows of a batch, so that it cannot be cut into micro-batches.
SHORT = 512


def take_along_axis(x: Tensor, index: Operand, axis: int = -1) -> Tensor:
    """x at other indices along an axis for each place on the others: y[i, j] = x[i, index[i, j]], as in NumPy; torch
    calls it `gather`.

    Args:
        index: whole numbers of x's number of axes, each of x's size or 1 but for `axis`.  One that does not exist is
            the nearest that does.

    Example: `ws.take_along_axis(scores, labels[:, None], axis=1)`.
    """
    i, at = as_tensor(index), _position("take_along_axis", x, axis)
    if not i.dtype.is_integer:
        fail(DTypeError, f"take_along_axis needs whole numbers; received {i!r}. Cast them: i.astype('int32').")
    fits = i.ndim == x.ndim and all(d == at or a in (1, b) for d, (a, b) in enumerate(zip(i.shape, x.shape)))
    if not fits:
        fail(
            ShapeError,
            f"take_along_axis: an index into {shape_text(x.shape)} along axis {at} has the same number of axes and the "
            f"same sizes or 1 but for that; received {shape_text(i.shape)}. For whole slices: ws.gather(x, i, axis).",
        )
    i = i.expand(*(n if d == at else e for d, (n, e) in enumerate(zip(i.shape, x.shape, strict=True))))
    last = [*(d for d in range(x.ndim) if d != at), at]
    back = [last.index(d) for d in range(x.ndim)]
    return _from_rows(x.permute(last), i.permute(last)).permute(back)


def _from_rows(x: Tensor, index: Tensor) -> Tensor:
    """Along the last axis."""
    size, count = x.shape[-1], product(x.shape)
    if isinstance(size, int) and size <= SHORT:
        inside = minimum(maximum(index.astype("int32"), 0), size - 1)
        return _chosen(x, inside)
    kind = "int64" if isinstance(count, int) and count >= MANY else "int32"
    inside = minimum(maximum(index.astype(kind), 0), as_tensor(size).astype(kind) - 1)
    rows: Extent = product(x.shape[:-1])
    first = (arange(rows, kind) * as_tensor(size).astype(kind)).reshape((*x.shape[:-1], 1))
    return gather(x.reshape((count,)), inside + first)


def _chosen(x: Tensor, index: Tensor) -> Tensor:
    """x at the indices along the last axis, each compared with all that there are: one loop, and one back."""
    size, picked = x.shape[-1], index.shape[-1]
    places = iota((*x.shape[:-1], picked, size), x.ndim)
    here = places == index.reshape((*index.shape, 1))
    return where(here, x.reshape((*x.shape[:-1], 1, size)), as_tensor(0).astype(x.dtype)).sum(-1)


def _position(op: str, x: Tensor, axis: int) -> int:
    if not -x.ndim <= axis < x.ndim:
        fail(ShapeError, f"{op}: axis {axis} does not exist in shape {shape_text(x.shape)}.")
    return axis % x.ndim


# -- x[:, [0, 2]], x[arange, labels] -----------------------------------------------------------------------------


def pick(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """x[key], where integer tensors, arrays or lists stand among the items of the key: one, or two side by side."""
    items = _spread(x, key)
    chosen = [p for p, item in enumerate(items) if isinstance(item, Tensor | np.ndarray | list)]
    if len(chosen) > 2 or chosen[-1] - chosen[0] != len(chosen) - 1:
        fail(
            UsageError,
            f"an index has one integer tensor, array or list, or two side by side; received {len(chosen)}: {key!r}. "
            "Index in several steps: x[i][:, j].",
        )
    indices = [items[p] for p in chosen]
    rest = x[tuple(slice(None) if p in chosen else item for p, item in enumerate(items))]
    axis = sum(1 for item in items[: chosen[0]] if not isinstance(item, int | np.integer))
    if len(indices) == 1:
        return gather(rest, indices[0], axis)
    return _paired(rest, indices[0], indices[1], axis)


def _spread(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """The key with a slice for each axis that `...` stands for."""
    whole = [p for p, item in enumerate(key) if item is Ellipsis]
    if not whole:
        return list(key)
    used = sum(1 for item in key if item is not None and item is not Ellipsis)
    between = [slice(None)] * max(x.ndim - used, 0)
    return [*key[: whole[0]], *between, *key[whole[0] + 1 :]]


def _paired(x: Tensor, first: Any, second: Any, axis: int) -> Tensor:
    """Elements (first[i], second[i]) of two axes that lie side by side."""
    a, b = (as_tensor(np.asarray(i) if isinstance(i, list) else i) for i in (first, second))
    for i in (a, b):
        if not i.dtype.is_integer:
            fail(DTypeError, f"an index holds whole numbers; received {i!r}. Select with ws.where instead of a mask.")
    rows, columns = x.shape[axis], x.shape[axis + 1]
    if axis == 0 and a.node.op == "iota" and a.shape == (rows,) and b.shape == (rows,):  # one of each row
        picked = take_along_axis(x, b.reshape((rows, 1, *[1] * (x.ndim - 2))), 1)
        return picked.reshape((rows, *x.shape[2:]))
    a, b = (_inside(i.astype("int32"), n) for i, n in ((a, rows), (b, columns)))
    together = x.reshape((*x.shape[:axis], rows * columns, *x.shape[axis + 2 :]))
    return gather(together, a * as_tensor(columns).astype("int32") + b, axis)


def _inside(index: Tensor, size: Extent) -> Tensor:
    """Counted from the end where below 0; one that does not exist is the nearest that does."""
    count = as_tensor(size).astype("int32")
    return minimum(maximum(where(index < 0, index + count, index), 0), count - 1)


# -- in order ----------------------------------------------------------------------------------------------------


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The int32 indices that put x in order along an axis, the first of equal ones first; NaN is the largest.

    Each element is compared with each other: n² comparisons without a table of them, and no gradient.

    Example: `ws.argsort(x, descending=True)`.
    """
    at = _position("argsort", x, axis)
    if x.dtype == boolean:
        x = x.astype("int32")
    last = [*(d for d in range(x.ndim) if d != at), at]
    rows = x.permute(last)
    size, count = rows.shape[-1], product(rows.shape)
    a, b = rows.reshape((*rows.shape, 1)), rows.reshape((*rows.shape[:-1], 1, size))
    before = _is_less(a, b) if descending else _is_less(b, a)
    neither = ~(before | (_is_less(b, a) if descending else _is_less(a, b)))
    here, there = iota((size, size), 0), iota((size, size), 1)
    rank = (before | (neither & (there < here))).astype("int32").sum(-1)  # how many come before it
    number = iota(rows.shape, rows.ndim - 1)
    if isinstance(size, int) and size <= SHORT:
        places = iota((*rows.shape, size), rows.ndim - 1)  # at place r stands the one whose rank is r
        order = where(places == rank.reshape(b.shape), number.reshape(b.shape), 0).sum(-1)
    else:
        first = (arange(product(rows.shape[:-1])) * as_tensor(size).astype("int32")).reshape((*rows.shape[:-1], 1))
        order = scatter_add(number.reshape((count,)), (rank + first).reshape((count,)), count).reshape(rows.shape)
    return order.permute([last.index(d) for d in range(x.ndim)])


def _is_less(a: Tensor, b: Tensor) -> Tensor:
    """a < b, where NaN is larger than anything else."""
    return (a < b) | ((a == a) & (b != b)) if a.dtype.is_float else a < b


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x in order along an axis; its gradient goes back to where each element stood.  See `argsort`.

    Example: `ws.sort(x)[..., -1]` is the largest.
    """
    return take_along_axis(x, argsort(x, axis, descending), axis)


def topk(x: Tensor, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis and their int32 indices, the largest first, the first of equal ones first.

    Found one after another, in k passes over x.

    Example: `values, indices = ws.topk(scores, 5)`.
    """
    at = _position("topk", x, axis)
    size = x.shape[at]
    if not isinstance(k, int) or isinstance(k, bool) or k < 1 or (isinstance(size, int) and k > size):
        fail(OptionError, f"topk: k is a whole number from 1 to {size}, the size of the axis; received {k!r}.")
    if not x.dtype.is_float:
        fail(DTypeError, f"topk needs floats; received {x!r}. Cast them: x.astype('float32').")
    places = iota(x.shape, at)

    def largest(left: Tensor) -> tuple[Tensor, Tensor]:
        found = left.argmax(at, keepdims=True)
        return where(places == found, -math.inf, left), found

    if k <= 4:  # a loop costs more than it saves
        left, found = x, []
        for _ in range(k):
            left, one = largest(left)
            found.append(one)
        indices = found[0] if k == 1 else concat(found, at)
    else:
        _, found_all = scan(lambda left, _: largest(left), x, length=k)  # (k, ..., 1, ...)
        indices = found_all.reshape((k, *(e for d, e in enumerate(x.shape) if d != at)))
        indices = indices.permute((*range(1, at + 1), 0, *range(at + 1, x.ndim)))
    return take_along_axis(x, indices, at), indices


def random_integers(graph: Graph | Tensor, shape: object, low: int, high: int, dtype: object = "int32") -> Tensor:
    """Whole numbers from low to high - 1, each as likely, new in every step.

    Example: `steps = ws.random_integers(g, ("batch",), 0, 1000)`.
    """
    for name, value in (("low", low), ("high", high)):
        if not isinstance(value, int) or isinstance(value, bool):
            fail(OptionError, f"random_integers: {name} is a whole number; received {value!r}.")
    if not low < high or high - low > 2**24:
        fail(OptionError, f"random_integers: high - low is from 1 to 2**24; received low={low}, high={high}.")
    return (floor(random_uniform(graph, shape, dtype="float64") * float(high - low)) + float(low)).astype(dtype)


take_their_words(globals(), __all__)
