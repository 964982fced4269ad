"""Node builders for passes: one short function per op, so that formulas read like formulas.

No-ops are not built: an expand to the same shape or a sum over no axes returns its argument.
New nodes inherit the name and the source line of the node that they replace: see `origin`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import NONE, Attrs
from wholestep.compiler.ir.graph import Node, SourceLine
from wholestep.compiler.ir.graph import attrs_of as attrs_of
from wholestep.compiler.ir.types import DType, Extent, Shape, TensorType, TupleType, boolean, int32

_ORIGIN: ContextVar[tuple[str, SourceLine | None]] = ContextVar("origin", default=("", None))


class origin:  # noqa: N801 - `with origin(node):`; @contextmanager would cost as much as building a node
    """Nodes built inside inherit this node's source line, and its name unless another is given."""

    __slots__ = ("_said", "_token")

    def __init__(self, node: Node, name: str | None = None) -> None:
        self._said = (node.name if name is None else name, node.line)

    def __enter__(self) -> None:
        self._token = _ORIGIN.set(self._said)

    def __exit__(self, *_: object) -> None:
        _ORIGIN.reset(self._token)


def make(op: str, inputs: Sequence[Node], attrs: Attrs = NONE) -> Node:
    """Build a node with the name and line of the current origin."""
    name, line = _ORIGIN.get()
    return Node(op, inputs, attrs, name, line)


def constant_value(node: Node) -> float | None:
    """The value of a node that is a constant with all elements equal; None otherwise."""
    while node.op in ("expand", "reshape", "permute"):
        (node,) = node.inputs
    if node.op != "constant":
        return None
    value = attrs_of(node, at.ConstantAttrs).array.value
    return float(value.flat[0]) if value.size == 1 else None


# -- leaves ------------------------------------------------------------------------------------------------------


def constant(value: object, dtype: DType) -> Node:
    """A constant; constants of rank 0 (scalars) belong to the scalar prologue and cost nothing."""
    return make("constant", (), at.ConstantAttrs(at.Array(np.asarray(value, dtype=dtype.numpy))))


def full(value: float, type: TensorType) -> Node:
    """A tensor filled with one value: a rank-0 constant, expanded."""
    return expand_to(constant(value, type.dtype), type.shape, ())


def full_like(x: Node, value: float) -> Node:
    return full(value, x.type)


def zeros_like(x: Node) -> Node:
    return full_like(x, 0)


def iota(shape: Shape, axis: int, dtype: DType = int32) -> Node:
    return make("iota", (), at.IotaAttrs(TensorType(shape, dtype), axis))


def size(extent: Extent) -> Node:
    """The run-time value of a dimension: a float64 host scalar."""
    return make("size", (), at.SizeAttrs(extent))


# -- pointwise ---------------------------------------------------------------------------------------------------


def unary(op: str, x: Node) -> Node:
    return make(op, (x,))


def add(x: Node, y: Node) -> Node:
    return make("add", (x, y))


def sub(x: Node, y: Node) -> Node:
    return make("sub", (x, y))


def mul(x: Node, y: Node) -> Node:
    return make("mul", (x, y))


def div(x: Node, y: Node) -> Node:
    return make("div", (x, y))


def power(x: Node, y: Node) -> Node:
    return make("pow", (x, y))


def maximum(x: Node, y: Node) -> Node:
    return make("maximum", (x, y))


def neg(x: Node) -> Node:
    return make("neg", (x,))


def scale(x: Node, factor: float) -> Node:
    """x times a constant."""
    return mul(x, full_like(x, factor))


def shift(x: Node, term: float) -> Node:
    """x plus a constant."""
    return add(x, full_like(x, term))


def less(x: Node, y: Node) -> Node:
    return make("less", (x, y))


def equal(x: Node, y: Node) -> Node:
    return make("equal", (x, y))


def where(condition: Node, x: Node, y: Node) -> Node:
    return make("where", (condition, x, y))


def cast(x: Node, dtype: DType) -> Node:
    return x if x.type.dtype == dtype else make("cast", (x,), at.CastAttrs(dtype))


# -- reduce ------------------------------------------------------------------------------------------------------


def sum_axes(x: Node, axes: Sequence[int]) -> Node:
    """The sum over some axes, which are removed, in the accumulation dtype."""
    return make("sum", (x,), at.SumAttrs(tuple(sorted(axes)), x.type.dtype.accumulate)) if axes else x


def max_axes(x: Node, axes: Sequence[int]) -> Node:
    return make("max", (x,), at.MaxAttrs(tuple(sorted(axes)))) if axes else x


# -- movement ----------------------------------------------------------------------------------------------------


def reshape(x: Node, shape: Shape) -> Node:
    return x if x.type.shape == shape else make("reshape", (x,), at.ReshapeAttrs(shape))


def permute(x: Node, order: Sequence[int]) -> Node:
    return x if list(order) == list(range(x.type.rank)) else make("permute", (x,), at.PermuteAttrs(tuple(order)))


def transpose(x: Node) -> Node:
    """The last two axes swapped."""
    rank = x.type.rank
    return permute(x, (*range(rank - 2), rank - 1, rank - 2))


def expand_to(x: Node, shape: Shape, axes: Sequence[int]) -> Node:
    """Broadcast: dimension d of x becomes dimension axes[d] of the result."""
    return x if x.type.shape == shape else make("expand", (x,), at.ExpandAttrs(shape, tuple(axes)))


def restore_axes(x: Node, axes: Sequence[int], shape: Shape) -> Node:
    """The adjoint of a reduction over `axes`: x repeated along them, so that it has `shape` again."""
    return expand_to(x, shape, [d for d in range(len(shape)) if d not in axes])


def slice_axes(x: Node, starts: Shape, stops: Shape, steps: Sequence[int] | None = None) -> Node:
    steps = tuple(steps) if steps is not None else (1,) * x.type.rank
    return make("slice", (x,), at.SliceAttrs(tuple(starts), tuple(stops), steps))


def pad(x: Node, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Node:
    if not any((*low, *high)):
        return x
    return make("pad", (x,), at.PadAttrs(tuple(low), tuple(high), value))


def interleave_zeros(x: Node, steps: Sequence[int]) -> Node:
    """Insert step - 1 zeros after each element along every axis: pads a new axis from 1 to step, then merges it."""
    if all(step == 1 for step in steps):
        return x
    shape = tuple(e * step for e, step in zip(x.type.shape, steps, strict=True))
    split_shape: list[Extent] = []
    high: list[int] = []
    for e, step in zip(x.type.shape, steps, strict=True):
        split_shape += [e] if step == 1 else [e, 1]
        high += [0] if step == 1 else [0, step - 1]
    return reshape(pad(reshape(x, tuple(split_shape)), [0] * len(high), high), shape)


def concat(xs: Sequence[Node], axis: int) -> Node:
    return xs[0] if len(xs) == 1 else make("concat", xs, at.ConcatAttrs(axis))


# -- indexing and contraction ------------------------------------------------------------------------------------


def gather(data: Node, index: Node, axis: int) -> Node:
    return make("gather", (data, index), at.GatherAttrs(axis))


def scatter_add(updates: Node, index: Node, axis: int, size: Extent) -> Node:
    return make("scatter_add", (updates, index), at.ScatterAddAttrs(axis, size))


def write_rows(x: Node, rows: Node, start: Node) -> Node:
    """x with the rows from `start` on replaced; rows beyond its end are dropped."""
    return make("write_rows", (x, rows, start))


def matmul(
    a: Node, b: Node, transpose_a: bool = False, transpose_b: bool = False, accumulate: DType | None = None
) -> Node:
    """The product, in the accumulation dtype."""
    return make("matmul", (a, b), at.MatmulAttrs(transpose_a, transpose_b, accumulate or a.type.dtype.accumulate))


# -- composites --------------------------------------------------------------------------------------------------


def softmax(x: Node, axis: int) -> Node:
    return make("softmax", (x,), at.SoftmaxAttrs(axis))


def log_softmax(x: Node, axis: int) -> Node:
    return make("log_softmax", (x,), at.SoftmaxAttrs(axis))


def logsumexp(x: Node, axis: int) -> Node:
    return make("logsumexp", (x,), at.SoftmaxAttrs(axis))


def one_hot_mask(labels: Node, classes: Extent) -> Node:
    """The one-hot mask of labels, bool[..., classes]: true where the index along the last axis equals the label."""
    shape = (*labels.type.shape, classes)
    axis = labels.type.rank
    mask = equal(iota(shape, axis, labels.type.dtype), restore_axes(labels, (axis,), shape))
    assert mask.type.dtype == boolean
    return mask


def results(op: str, inputs: Sequence[Node], attrs: Attrs) -> tuple[Node, ...]:
    """Build a node with several results; returns one item node per result."""
    node = make(op, inputs, attrs)
    assert isinstance(node.result, TupleType), f"{node!r} has one result"
    return tuple(make("item", (node,), at.ItemAttrs(i)) for i in range(len(node.result.items)))


def count(extent: Extent, dtype: DType) -> Node:
    """The number of elements along a dimension, as a host scalar."""
    return cast(size(extent), dtype)
