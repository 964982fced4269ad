"""Tensors with other elements at some places, which indices or masks name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.functions.cumulative import prod
from wholestep.compiler.frontend.functions.primitives import concat, gather, iota, maximum, minimum, scatter_add
from wholestep.compiler.frontend.shape.index_math import (
    along,
    as_indices,
    flat_index,
    flat_row_index,
    inside,
    last_and_back,
)
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.shape.sequences import cumsum
from wholestep.compiler.frontend.shape.sort_topk import SHORT, take_along_axis
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import DType, Extent, boolean, product, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = [
    "index_add", "index_copy", "index_fill", "index_put", "masked_scatter", "put_along_axis", "scatter_slice",
]  # fmt: skip

REDUCTIONS = ("replace", "sum", "prod", "mean", "max", "min")


def put_along_axis(
    x: Tensor,
    index: Operand,
    values: Operand,
    axis: int = -1,
    reduce: str = "replace",
    include_self: bool = True,
) -> Tensor:
    """x with values at other indices along an axis for each place on the others: y[i, index[i, j]] = values[i, j], as
    in NumPy; torch calls it `scatter` and `scatter_reduce`.

    Each index is compared with each place: as many comparisons as the two sizes multiplied, without a table of them.

    Args:
        index: whole numbers of x's number of axes; where it is shorter than x on another axis, the rest of x stays as
            it is.  Negative ones count from the end; one that does not exist is the nearest that does.
        values: a number, or at least as large as the index on every axis.
        reduce: "replace" (of several for one place, the last), "sum", "prod", "mean", "max" or "min".
        include_self: of all but "replace": whether x itself counts; where nothing is put, x stays.

    Example: `ws.put_along_axis(x, best, 1.0, axis=1)`.
    """
    op, i = "put_along_axis", as_tensor(index)
    at = along(op, x, axis)
    if reduce not in REDUCTIONS:
        fail(OptionError, f"{op}: reduce is one of {', '.join(REDUCTIONS)}; received {reduce!r}.")
    _need_integers(op, i)
    region = _region(op, x, i, at)
    v = _values_of(op, values, i, x.dtype)
    part = x[tuple(slice(0, n) if n != e else slice(None) for n, e in zip(region, x.shape, strict=True))]
    last, back = last_and_back(x.ndim, at)
    made = _put(part.permute(last), inside(i, x.shape[at]).permute(last), v.permute(last), reduce, include_self)
    made = made.permute(back)
    if region == x.shape:
        return made
    amounts = [(0, e - n if isinstance(e, int) and isinstance(n, int) else 0) for e, n in zip(x.shape, region)]
    known = [(e, n) for e, n in zip(x.shape, region, strict=True)]
    shape = [e if n != e else 1 for e, n in known]
    mask = np.zeros(shape, bool)
    mask[tuple(slice(0, n) if n != e else slice(None) for e, n in known)] = True
    return where(mask, pad(made, amounts), x)


def _region(op: str, x: Tensor, index: Tensor, axis: int) -> tuple[Extent, ...]:
    """The part of x that an index reaches."""
    fits = index.ndim == x.ndim and all(
        d == axis or n == e or (isinstance(n, int) and isinstance(e, int) and n <= e)
        for d, (n, e) in enumerate(zip(index.shape, x.shape, strict=True))
    )
    if not fits:
        fail(
            ShapeError,
            f"{op}: an index into {shape_text(x.shape)} along axis {axis} has as many axes and is nowhere longer but "
            f"there; received {shape_text(index.shape)}. For whole slices: ws.index_copy, ws.index_add.",
        )
    return tuple(e if d == axis else n for d, (n, e) in enumerate(zip(index.shape, x.shape, strict=True)))


def _values_of(op: str, values: Operand, index: Tensor, dtype: DType) -> Tensor:
    """One for each index."""
    v = as_tensor(values)
    if v.ndim == 0:
        return v.astype(dtype).expand(*index.shape)
    if v.dtype != dtype:
        fail(DTypeError, f"{op}: the values are {v.dtype}, x is {dtype}. Cast one of them: v.astype('{dtype}').")
    fits = v.ndim == index.ndim and all(
        a == b or (isinstance(a, int) and isinstance(b, int) and a >= b)
        for a, b in zip(v.shape, index.shape, strict=True)
    )
    if not fits:
        fail(
            ShapeError,
            f"{op}: values are at least as large as the index {shape_text(index.shape)} on every axis; received "
            f"{shape_text(v.shape)}.",
        )
    return v[tuple(slice(0, n) if n != e else slice(None) for n, e in zip(index.shape, v.shape, strict=True))]


def _put(x: Tensor, index: Tensor, values: Tensor, reduce: str, include_self: bool) -> Tensor:
    """Along the last axis."""
    size, many = x.shape[-1], index.shape[-1]
    if reduce in ("sum", "mean") and not (isinstance(size, int) and size <= SHORT):
        flat = flat_row_index(index, x).reshape((product(index.shape),))
        total = product(x.shape)

        def added(v: Tensor) -> Tensor:
            return scatter_add(v.reshape((product(v.shape),)), flat, total).reshape(x.shape)

        return _combine_with_self(
            x, added(values), added(as_tensor(1).astype(x.dtype).expand(*index.shape)), reduce, include_self
        )
    places = iota((*x.shape, many), x.ndim - 1)
    here = places == index.reshape((*index.shape[:-1], 1, many))
    spread = values.reshape((*values.shape[:-1], 1, many))
    if reduce == "replace":
        chosen = where(here, iota((*x.shape, many), x.ndim), -1).max(-1)
        return where(chosen >= 0, take_along_axis(values, maximum(chosen, 0), -1), x)
    if reduce in ("sum", "mean"):
        nothing = as_tensor(0).astype(x.dtype)
        return _combine_with_self(
            x, where(here, spread, nothing).sum(-1), here.astype(x.dtype).sum(-1), reduce, include_self
        )
    found = here.astype("int32").max(-1) > 0
    neutral = as_tensor(_NEUTRAL[reduce](x.dtype)).astype(x.dtype)
    terms = where(here, spread, neutral)
    if reduce == "prod":
        made = prod(terms, -1)
        return where(found, made * x if include_self else made, x)
    made = terms.max(-1) if reduce == "max" else terms.min(-1)
    both = maximum(made, x) if reduce == "max" else minimum(made, x)
    return where(found, both if include_self else made, x)


def _combine_with_self(x: Tensor, total: Tensor, count: Tensor, reduce: str, include_self: bool) -> Tensor:
    """A sum or a mean with x, or in its place where something was put."""
    if reduce == "sum":
        return x + total if include_self else where(count > 0, total, x)
    number = count + 1 if include_self else maximum(count, 1)
    whole = x + total if include_self else total
    mean = whole / number if x.dtype.is_float else whole // number
    return where(count > 0, mean, x)


def _ends(dtype: DType) -> tuple[Any, Any]:
    if dtype.is_float:
        return -float("inf"), float("inf")
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


_NEUTRAL: dict[str, Callable[[DType], Any]] = {
    "prod": lambda dtype: 1,
    "max": lambda dtype: _ends(dtype)[0],
    "min": lambda dtype: _ends(dtype)[1],
}


# -- whole slices ------------------------------------------------------------------------------------------------


def index_add(x: Tensor, axis: int, index: Operand, source: Operand, alpha: Operand = 1) -> Tensor:
    """x with the slices of `source` added to those that the index names: y[index[i]] += alpha · source[i].

    Example: `ws.index_add(totals, 0, owners, amounts)`.
    """
    at, i, s = _slices("index_add", x, axis, index, source)
    added = scatter_add(s, i, x.shape[at], at)
    return x + (added if isinstance(alpha, int | float) and alpha == 1 else added * alpha)


def index_copy(x: Tensor, axis: int, index: Operand, source: Operand) -> Tensor:
    """x with the slices of `source` in place of those that the index names, of several the last.

    Example: `ws.index_copy(table, 0, changed, rows)`.
    """
    at, i, s = _slices("index_copy", x, axis, index, source)
    return _replace_slices(x, at, i, s)


def index_fill(x: Tensor, axis: int, index: Operand, value: Operand) -> Tensor:
    """x with a number in the slices that the index names.  Example: `ws.index_fill(x, 1, [0, 2], 0.0)`."""
    at = along("index_fill", x, axis)
    i = as_indices(index)
    _need_integers("index_fill", i)
    number = as_tensor(value)
    return _replace_slices(x, at, inside(i.reshape((-1,)), x.shape[at]), number.astype(x.dtype))


def _slices(op: str, x: Tensor, axis: int, index: Operand, source: Operand) -> tuple[int, Tensor, Tensor]:
    at = along(op, x, axis)
    i, s = as_indices(index), as_tensor(source)
    _need_integers(op, i)
    i = i.reshape((-1,)) if i.ndim != 1 else i
    if s.shape != (*x.shape[:at], i.shape[0], *x.shape[at + 1 :]):
        fail(
            ShapeError,
            f"{op}: of {i.shape[0]} indices along axis {at} of {shape_text(x.shape)} the source has that shape but for "
            f"the axis; received {shape_text(s.shape)}.",
        )
    return at, inside(i, x.shape[at]), s


def _replace_slices(x: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """index is a vector; source has its slices, or is one number."""
    size, many = x.shape[axis], index.shape[0]
    here = iota((size, many), 0) == index
    chosen = where(here, iota((size, many), 1), -1).max(-1)
    mask = (chosen >= 0).reshape((size, *[1] * (x.ndim - axis - 1)))
    return where(mask, source if source.ndim == 0 else gather(source, maximum(chosen, 0), axis), x)


def index_put(x: Tensor, indices: Sequence[Operand | None], values: Operand, accumulate: bool = False) -> Tensor:
    """x with values at the elements that one index for each axis names, as `x[i, j] = values`; None is a whole axis.

    Args:
        indices: whole numbers, which broadcast with each other and are counted from the end where negative; or one bool
            mask of x's leading axes, with a number or a tensor that broadcasts to x as values.
        values: broadcast to what x[indices] is.
        accumulate: they are added; else of several for one place the last stays.

    Example: `ws.index_put(x, (rows, columns), 1.0)`.
    """
    op = "index_put"
    given = [None if i is None else as_indices(i) for i in indices]
    if len(given) > x.ndim or all(i is None for i in given):
        fail(ShapeError, f"{op}: one index, or more, for the axes of {shape_text(x.shape)}; received {len(given)}.")
    masks = [i for i in given if i is not None and i.dtype == boolean]
    if masks:
        return _put_by_mask(op, x, given, values, accumulate)
    for i in given:
        if i is not None:
            _need_integers(op, i)
    order, linear, rest, kept = _flatten_indices(x, given)
    v = as_tensor(values)
    v = (v.astype(x.dtype) if v.ndim == 0 else v).expand(*kept)
    v = v.permute(_values_first(len(kept), linear.ndim, order, [d for d, i in enumerate(given) if i is not None]))
    places = product(x.shape[d] for d in order[: x.ndim - len(rest)])
    flat = x.permute(order).reshape((places, *rest))
    number = product(linear.shape)
    v, linear = v.reshape((number, *rest)), linear.reshape((number,))
    made = flat + scatter_add(v, linear, places) if accumulate else _replace_slices(flat, 0, linear, v)
    shape = [x.shape[d] for d in order]
    return made.reshape(shape).permute([order.index(d) for d in range(x.ndim)])


def _flatten_indices(x: Tensor, given: Sequence[Tensor | None]) -> tuple[list[int], Tensor, list[Extent], list[Extent]]:
    """The axes, the indexed ones first; the number of each place among those; the sizes of the others; the shape of
    x[given]."""
    named = [d for d, i in enumerate(given) if i is not None]
    others = [d for d in range(x.ndim) if d not in named]
    linear = flat_index(x, given)
    rest = [x.shape[d] for d in others]
    if named[-1] - named[0] == len(named) - 1:  # side by side: what they give stands in their place
        kept = [*x.shape[: named[0]], *linear.shape, *x.shape[named[-1] + 1 :]]
    else:
        kept = [*linear.shape, *rest]
    return [*named, *others], linear, rest, kept


def _values_first(rank: int, indexed: int, order: Sequence[int], named: Sequence[int]) -> list[int]:
    """The axes of the values, those of the indices first."""
    first = named[0] if named[-1] - named[0] == len(named) - 1 else 0
    own = list(range(first, first + indexed))
    return [*own, *(d for d in range(rank) if d not in own)]


def _put_by_mask(op: str, x: Tensor, given: Sequence[Tensor | None], values: Operand, accumulate: bool) -> Tensor:
    mask = given[0]
    if len(given) != 1 or mask is None or mask.shape != x.shape[: mask.ndim]:
        fail(
            ShapeError,
            f"{op}: a mask stands alone and has the leading axes of {shape_text(x.shape)}; received "
            f"{[None if i is None else shape_text(i.shape) for i in given]}.",
        )
    v = as_tensor(values)
    v = v.astype(x.dtype) if v.ndim == 0 else v
    wide = mask.reshape((*mask.shape, *[1] * (x.ndim - mask.ndim)))
    return where(wide, x + v if accumulate else v, x)


def masked_scatter(x: Tensor, mask: Operand, source: Tensor) -> Tensor:
    """x with the elements of `source`, one after another, where the mask is True.

    Example: `ws.masked_scatter(x, hidden, replacements)`.
    """
    m = as_tensor(mask)
    if m.dtype != boolean:
        fail(DTypeError, f"masked_scatter needs a bool mask; received {m!r}. Compare it first: m != 0.")
    m = m.expand(*x.shape)
    total = product(x.shape)
    number = (cumsum(m.reshape((total,)).astype("int32"), 0) - 1).reshape(x.shape)
    return where(m, gather(source.reshape((product(source.shape),)), maximum(number, 0)), x)


def scatter_slice(
    x: Tensor, source: Operand, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1
) -> Tensor:
    """x with `source` in place of x[start:stop:step] along an axis; torch calls it `slice_scatter`.

    Example: `ws.scatter_slice(x, rows, 0, 2, 4)`.
    """
    op, s = "scatter_slice", as_tensor(source)
    at = along(op, x, axis)
    size = x.shape[at]
    if not isinstance(size, int):
        fail(ShapeError, f"{op}: axis {axis} of {shape_text(x.shape)} has no size yet; use one of known size.")
    places = range(*slice(start, stop, step).indices(size))
    if s.shape != (*x.shape[:at], len(places), *x.shape[at + 1 :]):
        fail(
            ShapeError,
            f"{op}: {len(places)} slices along axis {at} of {shape_text(x.shape)} are replaced; received "
            f"{shape_text(s.shape)}.",
        )
    before = (slice(None),) * at
    if not places:
        return x
    if step == 1:
        parts = [x[(*before, slice(0, places[0]))], s, x[(*before, slice(places[-1] + 1, size))]]
        kept = [p for p in parts if p.shape[at] != 0]
        return concat(kept, at) if len(kept) > 1 else s
    which, mask = np.zeros(size, np.int32), np.zeros((size, *[1] * (x.ndim - at - 1)), bool)
    which[list(places)], mask[list(places)] = np.arange(len(places)), True
    return where(mask, gather(s, which, at), x)


def _need_integers(op: str, index: Tensor) -> None:
    if not index.dtype.is_integer:
        fail(DTypeError, f"{op} needs whole numbers as indices; received {index!r}. Cast them: i.astype('int32').")


take_their_words(globals(), __all__)
