"""Type rules of data movement: views (reshape, permute, expand, slice), pad and concat, and indexed access."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.type_rules.require import need, need_axis, need_number
from wholestep.compiler.ir.types import Dim, Extent, TensorType, Type, product, shape_text, without
from wholestep.errors import DTypeError


def reshape(a: at.ReshapeAttrs, x: TensorType) -> Type:
    need(
        product(a.shape) == x.elements and all(isinstance(e, Dim) or e >= 0 for e in a.shape),
        f"reshape cannot turn {shape_text(x.shape)} ({x.elements} elements) "
        f"into {shape_text(a.shape)} ({product(a.shape)} elements).",
    )
    return TensorType(a.shape, x.dtype)


def permute(a: at.PermuteAttrs, x: TensorType) -> Type:
    need(
        sorted(a.order) == list(range(x.rank)),
        f"permute: {a.order} is not a permutation of the {x.rank} axes of {shape_text(x.shape)}.",
    )
    return TensorType(tuple(x.shape[d] for d in a.order), x.dtype)


def expand(a: at.ExpandAttrs, x: TensorType) -> Type:
    need(
        len(a.axes) == x.rank and list(a.axes) == sorted(set(a.axes)) and all(0 <= d < len(a.shape) for d in a.axes),
        f"expand: axes {a.axes} do not map the {x.rank} axes of {shape_text(x.shape)} to distinct, ascending axes of "
        f"{shape_text(a.shape)}.",
    )
    need(
        all(a.shape[d] == e for d, e in zip(a.axes, x.shape, strict=True)),
        f"expand: {shape_text(x.shape)} does not fit into {shape_text(a.shape)} at axes {a.axes}.",
    )
    return TensorType(a.shape, x.dtype)


def _slice_extent(start: Extent, stop: Extent, step: int, size: Extent) -> Extent:
    length = stop - start
    if isinstance(length, Dim):
        need(step == 1, f"slice: a step of {step} along a symbolic dimension is not supported; reshape it first.")
        return length
    integers = [e for e in (0, start, stop, size) if isinstance(e, int)]
    need(length >= 0 and integers == sorted(integers), f"slice: {start}:{stop} is outside a dimension of {size}.")
    need(step > 0, f"slice: steps must be positive; received {step}.")
    return -(-length // step)


def slice_(a: at.SliceAttrs, x: TensorType) -> Type:
    need(
        len(a.starts) == len(a.stops) == len(a.steps) == x.rank,
        f"slice needs one start, stop and step per axis of {shape_text(x.shape)}.",
    )
    shape = tuple(_slice_extent(*p) for p in zip(a.starts, a.stops, a.steps, x.shape, strict=True))
    return TensorType(shape, x.dtype)


def pad(a: at.PadAttrs, x: TensorType) -> Type:
    need(
        len(a.low) == len(a.high) == x.rank,
        f"pad needs one (low, high) pair per axis of {shape_text(x.shape)}; received {a.low} and {a.high}.",
    )
    need(min((*a.low, *a.high), default=0) >= 0, f"pad: amounts must not be negative; received {a.low} and {a.high}.")
    return TensorType(tuple(lo + e + hi for lo, e, hi in zip(a.low, x.shape, a.high, strict=True)), x.dtype)


def concat(a: at.ConcatAttrs, *xs: TensorType) -> Type:
    need(bool(xs), "concat needs at least one tensor; received none.")
    first = xs[0]
    need_axis("concat", a.axis, first)
    for x in xs[1:]:
        need(x.dtype == first.dtype, f"concat needs equal dtypes; received {first.dtype} and {x.dtype}.", DTypeError)
        need(
            x.rank == first.rank and without(x, (a.axis,)) == without(first, (a.axis,)),
            f"concat: shapes differ outside axis {a.axis}: {shape_text(first.shape)} and {shape_text(x.shape)}.",
        )
    total: Extent = 0
    for x in xs:
        total = x.shape[a.axis] + total
    return TensorType((*first.shape[: a.axis], total, *first.shape[a.axis + 1 :]), first.dtype)


def gather(a: at.GatherAttrs, data: TensorType, index: TensorType) -> Type:
    need_axis("gather", a.axis, data)
    need(
        index.dtype.is_integer,
        f"gather needs integer indices; received {index}. Cast them: i.astype('int32').",
        DTypeError,
    )
    return TensorType((*data.shape[: a.axis], *index.shape, *data.shape[a.axis + 1 :]), data.dtype)


def scatter_add(a: at.ScatterAddAttrs, updates: TensorType, index: TensorType) -> Type:
    need(index.dtype.is_integer, f"scatter_add needs integer indices; received {index}.", DTypeError)
    need_number("scatter_add", updates)
    need(0 <= a.axis <= updates.rank, f"scatter_add: axis {a.axis} does not exist in {shape_text(updates.shape)}.")
    inner = updates.shape[a.axis : a.axis + index.rank]
    need(
        inner == index.shape,
        f"scatter_add: the shape of the updates, {shape_text(updates.shape)}, must contain the indices' shape "
        f"{shape_text(index.shape)} from axis {a.axis} on.",
    )
    return TensorType((*updates.shape[: a.axis], a.size, *updates.shape[a.axis + index.rank :]), updates.dtype)


def write_rows(a: Attrs, x: TensorType, rows: TensorType, start: TensorType) -> Type:
    need(
        x.rank == rows.rank >= 1 and x.shape[1:] == rows.shape[1:],
        f"write_rows needs rows of the same shape; received {shape_text(rows.shape)} for {shape_text(x.shape)}.",
    )
    need(x.dtype == rows.dtype, f"write_rows needs equal dtypes; received {x.dtype} and {rows.dtype}.", DTypeError)
    error = f"write_rows needs the index of the first row, an integer scalar; received {start}."
    need(start.rank == 0, error)
    need(start.dtype.is_integer, error, DTypeError)
    return x
