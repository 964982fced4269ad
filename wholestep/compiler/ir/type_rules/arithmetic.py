"""Type rules of arithmetic: pointwise ops, reductions, matmul, softmax and cross entropy.

The result of a sum or a matmul has the accumulation dtype: float32 for half-precision operands.  Rounding it back to
half precision is a separate cast.
"""

from __future__ import annotations

from collections.abc import Callable

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.type_rules.require import (
    need,
    need_accumulate,
    need_axis,
    need_float,
    need_number,
    need_same,
)
from wholestep.compiler.ir.types import TensorType, Type, boolean, int32, shape_text, without
from wholestep.errors import DTypeError


def float_unary(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType) -> Type:
        need_float(op, x)
        return x

    return rule


def number_unary(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType) -> Type:
        need_number(op, x)
        return x

    return rule


def binary(op: str, *, floats_only: bool = False, integers_only: bool = False) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType, y: TensorType) -> Type:
        need_same(op, x, y)
        need_number(op, x)
        if floats_only:
            need_float(op, x)
        if integers_only:
            need(
                x.dtype.is_integer,
                f"{op} needs integers; received {x}. Cast them first: x.astype('int32').",
                DTypeError,
            )
        return x

    return rule


def compare(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, x: TensorType, y: TensorType) -> Type:
        need_same(op, x, y)
        return TensorType(x.shape, boolean)

    return rule


def logic(op: str) -> Callable[..., Type]:
    def rule(_: Attrs, *xs: TensorType) -> Type:
        need_same(op, *xs)
        need(xs[0].dtype == boolean, f"{op} needs bool tensors; received {xs[0]}.", DTypeError)
        return xs[0]

    return rule


def where(_: Attrs, c: TensorType, x: TensorType, y: TensorType) -> Type:
    need(c.dtype == boolean, f"where needs a bool condition; received {c}. Compare it first: c != 0.", DTypeError)
    need_same("where", x, y)
    need(c.shape == x.shape, f"where needs equal shapes; received {shape_text(c.shape)} and {shape_text(x.shape)}.")
    return x


def cast(a: at.CastAttrs, x: TensorType) -> Type:
    return TensorType(x.shape, a.dtype)


def _reduce_axes(op: str, axes: tuple[int, ...], x: TensorType) -> None:
    for axis in axes:
        need_axis(op, axis, x)
    need(
        bool(axes) and len(set(axes)) == len(axes) and tuple(sorted(axes)) == axes,
        f"{op}: axes {axes} must be distinct and sorted.",
    )


def sum_(a: at.SumAttrs, x: TensorType) -> Type:
    _reduce_axes("sum", a.axes, x)
    need_number("sum", x)
    need_accumulate("sum", x, a.accumulate)
    return without(x, a.axes, a.accumulate)


def max_(a: at.MaxAttrs, x: TensorType) -> Type:
    _reduce_axes("max", a.axes, x)
    need_number("max", x)
    return without(x, a.axes)


def argmax(a: at.ArgmaxAttrs, x: TensorType) -> Type:
    need_axis("argmax", a.axis, x)
    need_number("argmax", x)
    return without(x, (a.axis,), int32)


def matmul(a: at.MatmulAttrs, x: TensorType, y: TensorType) -> Type:
    need_float("matmul", x, y)
    need(x.dtype == y.dtype, f"matmul needs equal dtypes; received {x.dtype} and {y.dtype}.", DTypeError)
    need_accumulate("matmul", x, a.accumulate)
    need(
        x.rank == y.rank >= 2 and x.shape[:-2] == y.shape[:-2],
        f"matmul needs operands of equal rank (at least 2) with equal leading axes; "
        f"received {shape_text(x.shape)} and {shape_text(y.shape)}.",
    )
    m, k = (x.shape[-1], x.shape[-2]) if a.transpose_a else (x.shape[-2], x.shape[-1])
    k2, n = (y.shape[-1], y.shape[-2]) if a.transpose_b else (y.shape[-2], y.shape[-1])
    need(k == k2, f"matmul: inner dimensions differ: {k} of {shape_text(x.shape)} and {k2} of {shape_text(y.shape)}.")
    return TensorType((*x.shape[:-2], m, n), a.accumulate)


def softmax(a: at.SoftmaxAttrs, x: TensorType) -> Type:
    need_float("softmax", x)
    need_axis("softmax", a.axis, x)
    return x


def logsumexp(a: at.SoftmaxAttrs, x: TensorType) -> Type:
    need_float("logsumexp", x)
    need_axis("logsumexp", a.axis, x)
    return without(x, (a.axis,))


def cross_entropy(_: Attrs, logits: TensorType, labels: TensorType) -> Type:
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
        f"received {shape_text(labels.shape)}."
        + (" Drop the last axis: labels[..., 0]." if labels.shape == (*logits.shape[:-1], 1) else ""),
    )
    return TensorType(labels.shape, logits.dtype)
