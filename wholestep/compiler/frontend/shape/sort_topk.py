"""Choosing along an axis: elements by their indices, in order of size, the largest few; and random whole numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import (
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
from wholestep.compiler.frontend.shape.index_math import (
    MANY,
    along,
    as_indices,
    flat_index,
    flat_row_index,
    last_and_back,
)
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph

__all__ = ["argsort", "random_integers", "sort", "take_along_axis", "topk"]

# Axes up to this length are looked through; in longer ones elements are found by their number in the whole tensor: that
# is quicker there, but numbers the rows of a batch, so that it cannot be cut into micro-batches.
SHORT = 512
FEW = 64  # as many elements are put in order sooner than looked through several times


def take_along_axis(x: Tensor, index: Operand, axis: int = -1) -> Tensor:
    """x at other indices along an axis for each place on the others: y[i, j] = x[i, index[i, j]], as in NumPy; torch
    calls it `gather`.

    Args:
        index: whole numbers of x's number of axes; on each but `axis` of x's size, of 1, which is repeated, or of
            fewer, which are the first ones of x.  One that does not exist is the nearest that does.

    Example: `ws.take_along_axis(scores, labels[:, None], axis=1)`.
    """
    i, at = as_tensor(index), along("take_along_axis", x, axis)
    if not i.dtype.is_integer:
        fail(DTypeError, f"take_along_axis needs whole numbers; received {i!r}. Cast them: i.astype('int32').")
    fits = i.ndim == x.ndim and all(d == at or _reaches(a, b) for d, (a, b) in enumerate(zip(i.shape, x.shape)))
    if not fits:
        fail(
            ShapeError,
            f"take_along_axis: an index into {shape_text(x.shape)} along axis {at} has as many axes and is nowhere "
            f"longer but there; received {shape_text(i.shape)}. For whole slices: ws.gather(x, i, axis).",
        )
    reach = [e if d == at or n == 1 else n for d, (n, e) in enumerate(zip(i.shape, x.shape, strict=True))]
    x = x[tuple(slice(None) if n == e else slice(0, n) for n, e in zip(reach, x.shape, strict=True))]
    i = i.expand(*(n if d == at else e for d, (n, e) in enumerate(zip(i.shape, x.shape, strict=True))))
    last, back = last_and_back(x.ndim, at)
    return _from_rows(x.permute(last), i.permute(last)).permute(back)


def _reaches(index: Extent, size: Extent) -> bool:
    """1 is repeated; another number is that of the first ones."""
    return index in (1, size) or (isinstance(index, int) and isinstance(size, int) and index < size)


def _from_rows(x: Tensor, index: Tensor) -> Tensor:
    """Along the last axis."""
    size, count = x.shape[-1], product(x.shape)
    kind = "int64" if isinstance(count, int) and count >= MANY else "int32"
    end = size - 1 if isinstance(size, int) else as_tensor(size).astype(kind) - 1
    within = minimum(maximum(index.astype(kind), 0), end)
    if isinstance(size, int) and size <= SHORT:
        return _take_along_last(x, within.astype("int32"))
    return gather(x.reshape((count,)), flat_row_index(within, x))


def _take_along_last(x: Tensor, index: Tensor) -> Tensor:
    """x at the indices along the last axis, each compared with all that there are: one loop, and one back."""
    size, picked = x.shape[-1], index.shape[-1]
    places = iota((*x.shape[:-1], picked, size), x.ndim)
    here = places == index.reshape((*index.shape, 1))
    return where(here, x.reshape((*x.shape[:-1], 1, size)), as_tensor(0).astype(x.dtype)).sum(-1)


# -- x[:, [0, 2]], x[arange, labels] -----------------------------------------------------------------------------


def pick(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    """x[key], where integer tensors, arrays or lists stand among the items of the key; they broadcast with each other.
    What they give stands in their place where they are side by side, and else in front, as in torch."""
    items = _spread(x, key)
    chosen = [p for p, item in enumerate(items) if isinstance(item, Tensor | np.ndarray | list)]
    indices = [items[p] for p in chosen]
    rest = x[tuple(slice(None) if p in chosen else item for p, item in enumerate(items))]
    axes = [sum(1 for item in items[:p] if not isinstance(item, int | np.integer)) for p in chosen]
    if len(indices) == 1:
        return gather(rest, indices[0], axes[0])
    tensors = [_whole_numbers(i) for i in indices]
    if len(indices) == 2 and axes == [0, 1] and tensors[0].node.op == "iota":
        rows = rest.shape[0]
        if tensors[0].shape == (rows,) and tensors[1].shape == (rows,):  # one of each row
            picked = take_along_axis(rest, tensors[1].reshape((rows, 1, *[1] * (rest.ndim - 2))), 1)
            return picked.reshape((rows, *rest.shape[2:]))
    return _together(rest, tensors, axes)


def _whole_numbers(index: Any) -> Tensor:
    i = as_indices(index)
    if not i.dtype.is_integer:
        fail(DTypeError, f"an index holds whole numbers; received {i!r}. Select with ws.where instead of a mask.")
    return i


def _together(x: Tensor, indices: Sequence[Tensor], axes: Sequence[int]) -> Tensor:
    """The elements that one index for each of these axes names: a gather along the axes as one."""
    adjacent = axes[-1] - axes[0] == len(axes) - 1
    others = [d for d in range(x.ndim) if d not in axes]
    front = [d for d in others if d < axes[0]] if adjacent else []
    behind = [d for d in others if d not in front]
    given: list[Tensor | None] = [None] * x.ndim
    for axis, index in zip(axes, indices, strict=True):
        given[axis] = index
    linear = flat_index(x, given)
    order = [*front, *axes, *behind]
    moved = x if order == list(range(x.ndim)) else x.permute(order)
    together = product(x.shape[d] for d in axes)
    flat = moved.reshape((*(x.shape[d] for d in front), together, *(x.shape[d] for d in behind)))
    return gather(flat, linear, len(front))


def _spread(x: Tensor, key: tuple[Any, ...]) -> list[Any]:
    """The key with a slice for each axis that `...` stands for."""
    whole = [p for p, item in enumerate(key) if item is Ellipsis]
    if not whole:
        return list(key)
    used = sum(1 for item in key if item is not None and item is not Ellipsis)
    between = [slice(None)] * max(x.ndim - used, 0)
    return [*key[: whole[0]], *between, *key[whole[0] + 1 :]]


# -- in order ----------------------------------------------------------------------------------------------------


def argsort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """The int32 indices that put x in order along an axis, the first of equal ones first; NaN is the largest.

    Each element is compared with each other: n² comparisons without a table of them, and no gradient.

    Example: `ws.argsort(x, descending=True)`.
    """
    at = along("argsort", x, axis)
    if x.dtype == boolean:
        x = x.astype("int32")
    last, back = last_and_back(x.ndim, at)
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
    return order.permute(back)


def _is_less(a: Tensor, b: Tensor) -> Tensor:
    """a < b, where NaN is larger than anything else."""
    return (a < b) | ((a == a) & (b != b)) if a.dtype.is_float else a < b


def sort(x: Tensor, axis: int = -1, descending: bool = False) -> Tensor:
    """x in order along an axis; its gradient goes back to where each element stood.  See `argsort`.

    Example: `ws.sort(x)[..., -1]` is the largest.
    """
    return take_along_axis(x, argsort(x, axis, descending), axis)


def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The k largest elements along an axis and their int32 indices, the largest first, the first of equal ones first;
    NaN is the largest.

    Of a short axis all are put in order; in a longer one they are found one after another, in k passes over x.

    Args:
        largest: False gives the k smallest, the smallest first.

    Example: `values, indices = ws.topk(scores, 5)`.
    """
    at = along("topk", x, axis)
    size = x.shape[at]
    if not isinstance(k, int) or isinstance(k, bool) or k < 1 or (isinstance(size, int) and k > size):
        fail(OptionError, f"topk: k is a whole number from 1 to {size}, the size of the axis; received {k!r}.")
    if isinstance(size, int) and (size <= FEW or not x.dtype.is_float):
        indices = argsort(x, at, largest)[(*(slice(None),) * at, slice(0, k))]
    else:
        indices = _largest_indices(x if largest else -x, k, at)
    return take_along_axis(x, indices, at), indices


def _largest_indices(x: Tensor, k: int, axis: int) -> Tensor:
    """The indices of the k largest, one after another; what was found is remembered, so that -inf counts as well."""
    places = iota(x.shape, axis)

    def largest(taken: Tensor) -> tuple[Tensor, Tensor]:
        left = where(taken, -math.inf, x)
        best = left.max(axis, keepdims=True)
        found = (~taken & ((left == best) | (left != left))).astype("int32").argmax(axis, keepdims=True)
        return taken | (places == found), found

    taken = x != x
    taken = taken & ~taken  # none
    if k <= 4:  # a loop costs more than it saves
        each = []
        for _ in range(k):
            taken, one = largest(taken)
            each.append(one)
        return each[0] if k == 1 else concat(each, axis)
    _, all_found = scan(lambda carry, _: largest(carry), taken, length=k)  # (k, ..., 1, ...)
    indices: Tensor = all_found.reshape((k, *(e for d, e in enumerate(x.shape) if d != axis)))
    return indices.permute((*range(1, axis + 1), 0, *range(axis + 1, x.ndim)))


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
