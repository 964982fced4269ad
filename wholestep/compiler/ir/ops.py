"""The ops: one row each, with its family, arity, attributes and type rule."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import layers, scan, windows
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.require import need, need_axis, need_float, need_number, need_same
from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    TensorType,
    TupleType,
    Type,
    as_dtype,
    boolean,
    float64,
    int32,
    product,
    shape_text,
)
from wholestep.errors import DTypeError

__all__ = ["LEAVES", "OPS", "Attrs", "Family", "Op"]


class Family(enum.Enum):
    LEAF = "leaf"
    POINTWISE = "pointwise"
    REDUCE = "reduce"
    MOVEMENT = "movement"
    INDEX = "index"
    CONTRACTION = "contraction"
    WINDOW = "window"  # convolution, pooling and their adjoints
    RATIO = "ratio"
    CONTROL = "control"  # gradient, item, stop_gradient, by_mode, call: gone before planning
    LOOP = "loop"  # holds a graph that runs once per step
    COMPOSITE = "composite"  # has a decomposition into the others


@dataclass(frozen=True)
class Op:
    name: str
    family: Family
    arity: int | None  # None: one or more
    attrs: type[Attrs]
    rule: Callable[..., Type]

    def infer(self, inputs: tuple[Type, ...], attrs: Attrs) -> Type:
        """The result's type; raises ShapeError or DTypeError where the inputs do not fit."""
        assert type(attrs) is self.attrs, f"{self.name} takes {self.attrs.__name__}, not {type(attrs).__name__}"
        assert self.arity is None or len(inputs) == self.arity, (
            f"{self.name} takes {self.arity} inputs, not {len(inputs)}"
        )
        taken = TupleType if self.name == "item" else TensorType
        assert all(isinstance(t, taken) for t in inputs), f"{self.name} takes a {taken.__name__}; received {inputs}"
        if self.family in (Family.LEAF, Family.CONTROL, Family.LOOP):
            return self.rule(attrs, *inputs)
        return _known_type(self.rule, attrs, inputs)


@lru_cache(maxsize=16384)  # equal layers have equal types, and every pass makes nodes again
def _known_type(rule: Callable[..., Type], attrs: Attrs, inputs: tuple[Type, ...]) -> Type:
    return rule(attrs, *inputs)


# -- type rules --------------------------------------------------------------------------------------------------


def _leaf(a: Any) -> Type:
    return a.type  # type: ignore[no-any-return]


def _constant(a: at.ConstantAttrs) -> Type:
    return TensorType(a.array.value.shape, as_dtype(a.array.value.dtype))


def _host_scalar(_: Attrs) -> Type:
    return TensorType((), float64)


def _iota(a: at.IotaAttrs) -> Type:
    need_axis("iota", a.axis, a.type)
    need(a.type.dtype.is_integer, f"iota needs an integer dtype; received {a.type.dtype}.", DTypeError)
    return a.type


def _random(a: at.RandomAttrs) -> Type:
    need_float("random", a.type)
    return a.type


def _float_unary(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType) -> Type:
        need_float(op, x)
        return x

    return rule


def _number_unary(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType) -> Type:
        need_number(op, x)
        return x

    return rule


def _binary(op: str, *, floats_only: bool = False) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType, y: TensorType) -> Type:
        need_same(op, x, y)
        need_number(op, x)
        if floats_only:
            need_float(op, x)
        return x

    return rule


def _compare(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType, y: TensorType) -> Type:
        need_same(op, x, y)
        return TensorType(x.shape, boolean)

    return rule


def _logic(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, *xs: TensorType) -> Type:
        need_same(op, *xs)
        need(xs[0].dtype == boolean, f"{op} needs bool tensors; received {xs[0]}.", DTypeError)
        return xs[0]

    return rule


def _where(_: Attrs, c: TensorType, x: TensorType, y: TensorType) -> Type:
    need(c.dtype == boolean, f"where needs a bool condition; received {c}. Compare it first: c != 0.", DTypeError)
    need_same("where", x, y)
    need(c.shape == x.shape, f"where needs equal shapes; received {shape_text(c.shape)} and {shape_text(x.shape)}.")
    return x


def _cast(a: at.CastAttrs, x: TensorType) -> Type:
    return TensorType(x.shape, a.dtype)


def _without(t: TensorType, axes: tuple[int, ...], dtype: DType | None = None) -> TensorType:
    return TensorType(tuple(e for d, e in enumerate(t.shape) if d not in axes), dtype or t.dtype)


def _reduce_axes(op: str, axes: tuple[int, ...], x: TensorType) -> None:
    for axis in axes:
        need_axis(op, axis, x)
    need(
        bool(axes) and len(set(axes)) == len(axes) and tuple(sorted(axes)) == axes,
        f"{op}: axes {axes} must be distinct and sorted.",
    )


def _sum(a: at.SumAttrs, x: TensorType) -> Type:
    _reduce_axes("sum", a.axes, x)
    need_number("sum", x)
    need(a.accumulate == x.dtype, f"sum of {x.dtype} accumulates in {x.dtype}; received {a.accumulate}.", DTypeError)
    return _without(x, a.axes)


def _max(a: at.MaxAttrs, x: TensorType) -> Type:
    _reduce_axes("max", a.axes, x)
    need_number("max", x)
    return _without(x, a.axes)


def _argmax(a: at.ArgmaxAttrs, x: TensorType) -> Type:
    need_axis("argmax", a.axis, x)
    need_number("argmax", x)
    return _without(x, (a.axis,), int32)


def _reshape(a: at.ReshapeAttrs, x: TensorType) -> Type:
    need(
        product(a.shape) == x.elements and all(isinstance(e, Dim) or e >= 0 for e in a.shape),
        f"reshape cannot turn {shape_text(x.shape)} ({x.elements} elements) "
        f"into {shape_text(a.shape)} ({product(a.shape)} elements).",
    )
    return TensorType(a.shape, x.dtype)


def _permute(a: at.PermuteAttrs, x: TensorType) -> Type:
    need(
        sorted(a.order) == list(range(x.rank)),
        f"permute: {a.order} is not an order of the {x.rank} axes of {shape_text(x.shape)}.",
    )
    return TensorType(tuple(x.shape[d] for d in a.order), x.dtype)


def _expand(a: at.ExpandAttrs, x: TensorType) -> Type:
    need(
        len(a.axes) == x.rank and list(a.axes) == sorted(set(a.axes)) and all(0 <= d < len(a.shape) for d in a.axes),
        f"expand: axes {a.axes} do not place the {x.rank} axes of {shape_text(x.shape)} in {shape_text(a.shape)}.",
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
    known = [e for e in (0, start, stop, size) if isinstance(e, int)]
    need(length >= 0 and known == sorted(known), f"slice: {start}:{stop} is outside a dimension of {size}.")
    need(step > 0, f"slice: steps must be positive; received {step}.")
    return -(-length // step)


def _slice(a: at.SliceAttrs, x: TensorType) -> Type:
    need(
        len(a.starts) == len(a.stops) == len(a.steps) == x.rank,
        f"slice: one start, stop and step per axis of {shape_text(x.shape)}.",
    )
    shape = tuple(_slice_extent(*p) for p in zip(a.starts, a.stops, a.steps, x.shape, strict=True))
    return TensorType(shape, x.dtype)


def _pad(a: at.PadAttrs, x: TensorType) -> Type:
    need(
        len(a.low) == len(a.high) == x.rank,
        f"pad: one pair per axis of {shape_text(x.shape)}; received {a.low} and {a.high}.",
    )
    need(min((*a.low, *a.high), default=0) >= 0, f"pad: amounts must not be negative; received {a.low} and {a.high}.")
    return TensorType(tuple(lo + e + hi for lo, e, hi in zip(a.low, x.shape, a.high, strict=True)), x.dtype)


def _concat(a: at.ConcatAttrs, *xs: TensorType) -> Type:
    need(bool(xs), "concat needs one tensor or more; received none.")
    first = xs[0]
    need_axis("concat", a.axis, first)
    for x in xs[1:]:
        need(x.dtype == first.dtype, f"concat needs equal dtypes; received {first.dtype} and {x.dtype}.", DTypeError)
        need(
            x.rank == first.rank and _without(x, (a.axis,)) == _without(first, (a.axis,)),
            f"concat: shapes differ outside axis {a.axis}: {shape_text(first.shape)} and {shape_text(x.shape)}.",
        )
    total: Extent = 0
    for x in xs:
        total = x.shape[a.axis] + total
    return TensorType((*first.shape[: a.axis], total, *first.shape[a.axis + 1 :]), first.dtype)


def _gather(a: at.GatherAttrs, data: TensorType, index: TensorType) -> Type:
    need_axis("gather", a.axis, data)
    need(
        index.dtype.is_integer,
        f"gather needs integer indices; received {index}. Cast them: i.astype('int32').",
        DTypeError,
    )
    return TensorType((*data.shape[: a.axis], *index.shape, *data.shape[a.axis + 1 :]), data.dtype)


def _scatter_add(a: at.ScatterAddAttrs, updates: TensorType, index: TensorType) -> Type:
    need(index.dtype.is_integer, f"scatter_add needs integer indices; received {index}.", DTypeError)
    need_number("scatter_add", updates)
    need(0 <= a.axis <= updates.rank, f"scatter_add: axis {a.axis} does not exist in {shape_text(updates.shape)}.")
    inner = updates.shape[a.axis : a.axis + index.rank]
    need(
        inner == index.shape,
        f"scatter_add: updates {shape_text(updates.shape)} do not hold the indices' shape "
        f"{shape_text(index.shape)} at axis {a.axis}.",
    )
    return TensorType((*updates.shape[: a.axis], a.size, *updates.shape[a.axis + index.rank :]), updates.dtype)


def _write_rows(a: Attrs, x: TensorType, rows: TensorType, start: TensorType) -> Type:
    need(
        x.rank == rows.rank >= 1 and x.shape[1:] == rows.shape[1:],
        f"write_rows needs rows of one shape; received {shape_text(rows.shape)} for {shape_text(x.shape)}.",
    )
    need(x.dtype == rows.dtype, f"write_rows needs equal dtypes; received {x.dtype} and {rows.dtype}.", DTypeError)
    first = f"write_rows needs the number of its first row, an integer scalar; received {start}."
    need(start.rank == 0, first)
    need(start.dtype.is_integer, first, DTypeError)
    return x


def _matmul(a: at.MatmulAttrs, x: TensorType, y: TensorType) -> Type:
    need_float("matmul", x, y)
    need(x.dtype == y.dtype, f"matmul needs equal dtypes; received {x.dtype} and {y.dtype}.", DTypeError)
    need(a.accumulate == x.dtype, f"matmul of {x.dtype} accumulates in {x.dtype}; received {a.accumulate}.", DTypeError)
    need(
        x.rank == y.rank >= 2 and x.shape[:-2] == y.shape[:-2],
        f"matmul needs operands of one rank (at least 2) with equal leading axes; "
        f"received {shape_text(x.shape)} and {shape_text(y.shape)}.",
    )
    m, k = (x.shape[-1], x.shape[-2]) if a.transpose_a else (x.shape[-2], x.shape[-1])
    k2, n = (y.shape[-1], y.shape[-2]) if a.transpose_b else (y.shape[-2], y.shape[-1])
    need(k == k2, f"matmul: inner dimensions differ: {k} of {shape_text(x.shape)} and {k2} of {shape_text(y.shape)}.")
    return TensorType((*x.shape[:-2], m, n), x.dtype)


def _gradient(_: Attrs, loss: TensorType, *params: TensorType) -> Type:
    need(
        loss.shape == (),
        f"gradients are taken of a scalar; the loss has shape {shape_text(loss.shape)}. Reduce it: loss.mean().",
    )
    need_float("gradient", loss, *params)
    return TupleType(params)


def _item(a: at.ItemAttrs, x: TupleType) -> Type:
    need(0 <= a.index < len(x.items), f"item: {a.index} is outside the {len(x.items)} results of its input.")
    return x.items[a.index]


def _call(a: at.CallAttrs, *xs: TensorType) -> Type:
    expected = tuple(i.type for i in a.graph.inputs)
    need(
        xs == expected,
        f"call: arguments {', '.join(map(str, xs))} do not fit parameters {', '.join(map(str, expected))}.",
    )
    return TupleType(tuple(o.node.type for o in a.graph.outputs))


def _same(_: Attrs, x: TensorType) -> Type:
    return x


def _by_mode(_: Attrs, training: TensorType, evaluating: TensorType) -> Type:
    need_same("by_mode", training, evaluating)
    return training


def _softmax(a: at.SoftmaxAttrs, x: TensorType) -> Type:
    need_float("softmax", x)
    need_axis("softmax", a.axis, x)
    return x


def _logsumexp(a: at.SoftmaxAttrs, x: TensorType) -> Type:
    need_float("logsumexp", x)
    need_axis("logsumexp", a.axis, x)
    return _without(x, (a.axis,))


def _cross_entropy(_: Attrs, logits: TensorType, labels: TensorType) -> Type:
    need_float("cross_entropy", logits)
    need(logits.rank >= 1, f"cross_entropy needs a class axis; the logits have shape {shape_text(logits.shape)}.")
    need(
        labels.dtype.is_integer,
        f"cross_entropy needs class indices of an integer dtype; received {labels}.",
        DTypeError,
    )
    need(
        labels.shape == logits.shape[:-1],
        f"cross_entropy: logits {shape_text(logits.shape)} need labels of shape {shape_text(logits.shape[:-1])}; "
        f"received {shape_text(labels.shape)}.",
    )
    return TensorType(labels.shape, logits.dtype)


# -- the table ---------------------------------------------------------------------------------------------------

_FLOAT_UNARY = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "sqrt", "recip", "erf", "floor")
_NUMBER_UNARY = ("neg", "abs", "sign")
_NUMBER_BINARY = ("add", "sub", "mul", "maximum", "minimum", "mod")
_FLOAT_BINARY = ("div", "pow")
_COMPARE = ("less", "less_equal", "equal", "not_equal")
_ACTIVATIONS = ("relu", "sigmoid", "tanh", "silu", "softplus")
P, L, M, C = Family.POINTWISE, Family.LEAF, Family.MOVEMENT, Family.CONTROL

_ROWS = [
    Op("input", L, 0, at.InputAttrs, _leaf),
    Op("parameter", L, 0, at.StateAttrs, _leaf),
    Op("state", L, 0, at.StateAttrs, _leaf),
    Op("constant", L, 0, at.ConstantAttrs, _constant),
    Op("scalar", L, 0, at.ScalarAttrs, _host_scalar),
    Op("size", L, 0, at.SizeAttrs, _host_scalar),
    Op("iota", L, 0, at.IotaAttrs, _iota),
    Op("random", L, 0, at.RandomAttrs, _random),
    *(Op(n, P, 1, Attrs, _float_unary(n)) for n in _FLOAT_UNARY),
    *(Op(n, P, 1, Attrs, _number_unary(n)) for n in _NUMBER_UNARY),
    *(Op(n, P, 2, Attrs, _binary(n)) for n in _NUMBER_BINARY),
    *(Op(n, P, 2, Attrs, _binary(n, floats_only=True)) for n in _FLOAT_BINARY),
    *(Op(n, P, 2, Attrs, _compare(n)) for n in _COMPARE),
    Op("logical_and", P, 2, Attrs, _logic("logical_and")),
    Op("logical_or", P, 2, Attrs, _logic("logical_or")),
    Op("logical_not", P, 1, Attrs, _logic("logical_not")),
    Op("where", P, 3, Attrs, _where),
    Op("cast", P, 1, at.CastAttrs, _cast),
    Op("sum", Family.REDUCE, 1, at.SumAttrs, _sum),
    Op("max", Family.REDUCE, 1, at.MaxAttrs, _max),
    Op("argmax", Family.REDUCE, 1, at.ArgmaxAttrs, _argmax),
    Op("reshape", M, 1, at.ReshapeAttrs, _reshape),
    Op("permute", M, 1, at.PermuteAttrs, _permute),
    Op("expand", M, 1, at.ExpandAttrs, _expand),
    Op("slice", M, 1, at.SliceAttrs, _slice),
    Op("pad", M, 1, at.PadAttrs, _pad),
    Op("concat", M, None, at.ConcatAttrs, _concat),
    Op("gather", Family.INDEX, 2, at.GatherAttrs, _gather),
    Op("scatter_add", Family.INDEX, 2, at.ScatterAddAttrs, _scatter_add),
    Op("write_rows", Family.INDEX, 3, Attrs, _write_rows),
    Op("matmul", Family.CONTRACTION, 2, at.MatmulAttrs, _matmul),
    Op("conv2d", Family.WINDOW, 2, at.ConvAttrs, windows.conv2d),
    Op("conv2d_grad_input", Family.WINDOW, 2, at.ConvGradAttrs, windows.conv2d_grad_input),
    Op("conv2d_grad_weight", Family.WINDOW, 2, at.ConvGradAttrs, windows.conv2d_grad_weight),
    Op("max_pool2d", Family.WINDOW, 1, at.PoolAttrs, windows.max_pool2d),
    Op("max_pool2d_index", Family.WINDOW, 1, at.PoolAttrs, windows.max_pool2d_index),
    Op("max_pool2d_grad", Family.WINDOW, 2, at.PoolGradAttrs, windows.max_pool2d_grad),
    Op("max_pool2d_pick", Family.WINDOW, 2, at.PoolAttrs, windows.max_pool2d_pick),
    Op("pooled_grad_weight", Family.WINDOW, 3, at.PooledConvAttrs, windows.pooled_grad_weight),
    Op("pooled_grad_input", Family.WINDOW, 3, at.PooledConvAttrs, windows.pooled_grad_input),
    Op("ratio", Family.RATIO, 2, Attrs, _binary("ratio", floats_only=True)),
    Op("stop_gradient", C, 1, Attrs, _same),
    Op("by_mode", C, 2, Attrs, _by_mode),
    Op("gradient", C, None, Attrs, _gradient),
    Op("item", C, 1, at.ItemAttrs, _item),
    Op("call", C, None, at.CallAttrs, _call),
    Op("scan", Family.LOOP, None, at.ScanAttrs, scan.scan),
    *(Op(n, Family.COMPOSITE, 1, Attrs, _float_unary(n)) for n in _ACTIVATIONS),
    Op("gelu", Family.COMPOSITE, 1, at.GeluAttrs, _float_unary("gelu")),
    Op("bce_with_logits", Family.COMPOSITE, 2, Attrs, _binary("bce_with_logits", floats_only=True)),
    Op("softmax", Family.COMPOSITE, 1, at.SoftmaxAttrs, _softmax),
    Op("log_softmax", Family.COMPOSITE, 1, at.SoftmaxAttrs, _softmax),
    Op("logsumexp", Family.COMPOSITE, 1, at.SoftmaxAttrs, _logsumexp),
    Op("cross_entropy", Family.COMPOSITE, 2, Attrs, _cross_entropy),
    Op("layer_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("layer_norm", 2)),
    Op("layer_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("layer_norm_grad", 2)),
    Op("rms_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("rms_norm", 1)),
    Op("rms_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("rms_norm_grad", 1)),
    Op("group_norm", Family.COMPOSITE, None, at.GroupNormAttrs, layers.norm("group_norm", 2)),
    Op("group_norm_grad", Family.COMPOSITE, None, at.GroupNormAttrs, layers.norm_grad("group_norm_grad", 2)),
    Op("batch_norm", Family.COMPOSITE, None, at.NormAttrs, layers.norm("batch_norm", 2)),
    Op("batch_norm_grad", Family.COMPOSITE, None, at.NormAttrs, layers.norm_grad("batch_norm_grad", 2)),
    Op("dropout", Family.COMPOSITE, 2, at.DropoutAttrs, layers.dropout),
    Op("attention", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention),
    Op("attention_lse", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention_lse),
    Op("attention_grad", Family.COMPOSITE, None, at.AttentionAttrs, layers.attention_grad),
]

OPS: dict[str, Op] = {row.name: row for row in _ROWS}
LEAVES = frozenset(row.name for row in _ROWS if row.family is Family.LEAF)
